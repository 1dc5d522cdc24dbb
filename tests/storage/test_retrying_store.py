"""Patience: what is repeated, how long, and what is told. Time is the test's own."""

from __future__ import annotations

import pytest

from speedo.errors import (
    MissingKeyError,
    PayloadError,
    StoreAccessError,
    StoreCrowdedError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from speedo.storage.memory_store import MemoryStore
from speedo.storage.retrying_store import Patience, RetryingStore
from tests.storage.conftest import get, put


class Ailing(MemoryStore):
    """Fails as often as it is told, each time after a second."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pauses: list[float] = []
        self.told: list[str | None] = []
        self.failures: list[StoreError] = []
        self.patient = RetryingStore(
            self,
            patience_s=20.0,
            on_trouble=self.told.append,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.now += seconds

    def ping(self) -> None:
        self.now += 1.0
        if self.failures:
            raise self.failures.pop(0)

    def write(self, *arguments, **options) -> None:
        self.ping()
        super().write(*arguments, **options)

    def read(self, *arguments) -> bytes:
        self.ping()
        return super().read(*arguments)


@pytest.fixture
def ailing() -> Ailing:
    return Ailing()


def test_a_call_is_repeated_after_growing_pauses_until_it_works(ailing: Ailing):
    ailing.failures = [StoreUnavailableError("away")] * 7
    put(ailing.patient, "k", b"body")
    assert ailing.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert get(ailing.patient, "k") == (b"head", b"body")


def test_a_place_among_many_connections_is_tried_for_often(ailing: Ailing):
    ailing.failures = [StoreCrowdedError("no room")] * 3 + [StoreUnavailableError("away")]
    ailing.patient.ping()
    assert ailing.pauses == [0.03, 0.03, 0.03, 0.1]


def test_trouble_is_told_when_it_begins_and_when_it_is_over(ailing: Ailing):
    for _ in range(2):
        ailing.failures = [StoreUnavailableError("away"), StoreTimeoutError("slow")]
        ailing.patient.ping()
        ailing.patient.ping()
    assert ailing.told == ["away", None, "away", None]
    assert ailing.patient.outages == 2


def test_a_server_without_room_is_told_though_the_connection_broke_first(ailing: Ailing):
    broken, crowded = StoreUnavailableError("broke"), StoreCrowdedError("no room")
    ailing.failures = [broken, crowded, broken, crowded]
    ailing.patient.ping()
    assert ailing.told == ["broke", "no room", None]
    ailing.failures = [broken]
    ailing.patient.ping()
    assert ailing.told == ["broke", "no room", None, "broke", None]


def test_patience_ends_with_the_last_error_and_the_time_waited(ailing: Ailing):
    ailing.failures = [StoreUnavailableError("away")] * 8 + [StoreTimeoutError("slow")] * 50
    with pytest.raises(StoreTimeoutError, match=r"slow; it did not recover in 20\.\d s"):
        ailing.patient.ping()
    assert ailing.now <= 1 + 20 + 1
    assert ailing.patient.outages == 0
    ailing.failures = []
    ailing.patient.ping()
    assert ailing.told == ["away", None]
    assert ailing.patient.outages == 1


@pytest.mark.parametrize("error", [StoreError("no"), StoreAccessError("who")])
def test_what_does_not_pass_is_raised_at_once(ailing: Ailing, error: StoreError):
    ailing.failures = [error]
    with pytest.raises(StoreError, match=str(error)):
        ailing.patient.ping()
    assert ailing.pauses == []
    assert ailing.told == []


@pytest.mark.parametrize("error", [StoreError("NOPERM"), StoreAccessError("who")])
def test_a_refusal_passes_where_a_call_has_worked(ailing: Ailing, error: StoreError):
    ailing.patient.ping()
    ailing.failures = [error] * 3
    ailing.patient.ping()
    assert ailing.told == [str(error), None]
    known = Patience(20.0, clock=lambda: ailing.now, sleep=ailing.sleep, has_worked=True)
    ailing.failures = [error]
    known.call(ailing.ping)


def test_without_patience_an_error_is_raised_as_it_is(ailing: Ailing):
    ailing.failures = [StoreUnavailableError("away")]
    with pytest.raises(StoreUnavailableError, match=r"\Aaway\Z"):
        Patience(0.0, on_trouble=ailing.told.append).call(ailing.ping)
    assert ailing.told == []


@pytest.mark.parametrize("error", [MissingKeyError("none"), PayloadError("long")])
def test_an_answer_that_is_no_blob_ends_the_trouble(ailing: Ailing, error):
    ailing.failures = [StoreUnavailableError("away"), error]
    with pytest.raises(type(error), match=str(error)):
        ailing.patient.read("k", memoryview(bytearray(1)))
    assert ailing.told == ["away", None]


def test_a_user_that_was_known_before_may_be_known_again(ailing: Ailing):
    ailing.patient.ping()
    ailing.failures = [
        StoreUnavailableError("away"),
        StoreAccessError("who"),
        StoreAccessError("who"),
    ]
    ailing.patient.ping()
    assert ailing.patient.outages == 1
