"""What a standby does about a Redis that is slow, away or refuses, before its claim and after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from speedo.errors import ConfigError, StoreError, StoreUnavailableError, TrainingStopped
from speedo.run.kept_lease import KeptLease
from speedo.run.standby_copy import RunFollower, read_follower
from speedo.run.standby_mirror import RunMirror
from speedo.run.standby_watch import LAST_S, StandbyWatch
from speedo.storage import keys
from speedo.storage.conditional import Decide
from speedo.storage.lease import LEASE_S, MasterLease
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import Patience
from tests.support.conditional_memory import ConditionalMemory

RUN = "0123456789ab"
PATIENCE_S = 60.0


class Watched(ConditionalMemory):
    """A Redis of the test's own time. `wrong` may raise, by the name of the call."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(clock=lambda: self.now)
        self.wrong: Callable[[str], None] = lambda call: None

    def change(self, names: tuple[str, ...], decide: Decide) -> None:
        self.wrong("change")
        super().change(names, decide)

    def read_head(self, key: str) -> tuple[bytes, int]:
        self.wrong("read_head")
        return super().read_head(key)


class Bench:
    """A master's command with a mirror, and a standby. Each pause of the standby lets the master go on, if it lives."""

    def __init__(self, folder: Path) -> None:
        self.store = Watched()
        self.there, self.here = folder / "master", folder / "standby"
        for one in (self.there, self.here):
            one.mkdir()
        self.notes: list[str] = []
        self.told: list[tuple[str, bool]] = []
        self.stopped: list[str] = []
        self.lives = True
        self.kept: KeptLease | None = None
        self.happens: Callable[[], None] = lambda: None
        self.master = MasterLease(self.store, RUN, "A", clock=self.clock)
        self.master.claim()
        self.mirror = RunMirror(
            *(self.store, RUN, self.there, lambda text: None),
            lambda *said: self.told.append(said),
            self.clock,
        )
        self.lease = MasterLease(
            self.store,
            *(RUN, "B"),
            patience=Patience(PATIENCE_S, clock=self.clock, sleep=self.sleep, has_worked=True),
            clock=self.clock,
        )
        self.copy = RunFollower(self.store, RUN, self.here, "B", self.clock)
        self.watch = StandbyWatch(
            *(self.copy, self.lease, self.here, "A", PATIENCE_S, self.notes.append),
            keep=self.keep,
            clock=self.clock,
            sleep=self.sleep,
        )

    def keep(self, lease: MasterLease, note: Callable[[str], None]) -> KeptLease:
        self.kept = KeptLease(lease, note, clock=self.clock, thread=False)
        return self.kept

    def clock(self) -> float:
        return self.store.now

    def sleep(self, seconds: float) -> None:
        self.store.now += seconds
        self.happens()
        if self.kept is not None:
            self.kept.renew()
        if self.lives:
            self.master.renew()
            self.mirror.step()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """In the pauses of the standby, from then on."""
        due = self.store.now + seconds
        self.happens = lambda: what() if self.store.now >= due else None

    def dies(self) -> None:
        self.lives = False


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_standby_that_is_stopped_says_so_and_the_master_need_not_expect_it(bench: Bench) -> None:
    bench.after(5.0, lambda: bench.stopped.append("SIGTERM"))
    assert bench.watch.follow(bench.stopped) is None
    assert bench.told[-1] == ("B", True)
    bench.sleep(1.0)
    assert bench.told[-1] == ("", False)


def test_a_standby_that_ends_with_an_error_says_that_it_leaves(bench: Bench) -> None:
    def full(call: str) -> None:
        if bench.store.now > 1005.0 and call == "change":
            bench.store.wrong = lambda call: None
            raise ConfigError("the disk is full")

    bench.store.wrong = full
    bench.lives = False  # it does not ask the store meanwhile
    with pytest.raises(ConfigError):
        bench.watch.follow(())
    follower = read_follower(bench.store, RUN)
    assert follower is not None
    assert follower.leaves


def test_a_second_standby_leaves_the_first_ones_note_alone(bench: Bench) -> None:
    RunFollower(bench.store, RUN, bench.here, "C", bench.clock).follow()
    with pytest.raises(ConfigError, match="another standby, at C, follows this run"):
        bench.watch.follow(())
    follower = read_follower(bench.store, RUN)
    assert follower is not None
    assert (follower.address, follower.leaves) == ("C", False)


def test_a_claim_that_may_have_been_carried_out_is_not_followed_by_a_farewell(
    bench: Bench,
) -> None:
    bench.after(5.0, bench.dies)
    claiming = bench.lease.claim

    def claim(after: int | None = None) -> int:
        def away(call: str) -> None:
            if call == "change":
                raise StoreUnavailableError("no Redis answers")

        bench.store.wrong = away
        return claiming(after)

    bench.lease.claim = claim  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailableError, match="did not recover in 60"):
        bench.watch.follow(())
    bench.store.wrong = lambda call: None
    assert read_follower(bench.store, RUN) is None, "it has expired, and is not written again"


@pytest.mark.parametrize("lasts_s", [30.0, 1e9])
@pytest.mark.parametrize(
    "error", [StoreUnavailableError("no Redis answers"), StoreError("NOPERM"), ConfigError("full")]
)
def test_after_its_claim_a_standby_goes_on_whatever_becomes_of_the_files(
    bench: Bench, lasts_s: float, error: Exception
) -> None:
    bench.after(5.0, bench.dies)

    def wrong(call: str) -> None:
        if bench.lease.epoch is not None and call == "read_head" and bench.store.now < until():
            raise error

    def until() -> float:
        began.append(bench.store.now)
        return began[0] + lasts_s

    began: list[float] = []
    bench.store.wrong = wrong
    taken = bench.watch.follow(())
    assert taken is not None
    assert (taken.lease.epoch, bench.lease.holder().address) == (1, "B")
    assert "has not been heard of for 5 s" in taken.why
    whole = lasts_s == 30.0 and not isinstance(error, ConfigError)
    assert ("goes on without the files" in bench.notes[-1]) is not whole
    assert ("all files that were on the way are here" in bench.notes[-1]) is whole
    if isinstance(error, StoreError):
        assert bench.store.now - began[0] >= min(lasts_s, PATIENCE_S) - 1


def test_a_redis_that_is_away_or_refuses_is_waited_for(bench: Bench) -> None:
    def wrong(call: str) -> None:
        if 1005.0 < bench.store.now < 1045.0:
            raise StoreError("NOPERM")

    bench.lives = False
    bench.store.wrong = wrong
    taken = bench.watch.follow(())
    assert taken is not None
    assert bench.store.now >= 1045.0
    assert bench.notes[0] == "waiting: NOPERM"


@pytest.mark.parametrize("slow_s", [0.0, 3.0])
@pytest.mark.parametrize("hands_over", [False, True])
def test_why_a_standby_takes_over(bench: Bench, hands_over: bool, slow_s: float) -> None:
    """Also where each look takes seconds."""

    def goes() -> None:
        if hands_over and bench.lives:
            bench.master.end(over=False)
        bench.lives = False

    def slow(call: str) -> None:
        if call == "read_head":
            bench.store.now += slow_s / 2

    bench.after(5.0, goes)
    bench.store.wrong = slow
    taken = bench.watch.follow(())
    assert taken is not None
    if not (hands_over and slow_s):  # this cannot be told from the other
        said = "has handed the run over" if hands_over else "has not been heard of for 5 s"
        assert said in taken.why


def test_a_run_that_is_over_is_not_taken_over(bench: Bench) -> None:
    bench.lives = False
    bench.master.end()
    with pytest.raises(TrainingStopped, match="its last files did not come"):
        bench.watch.follow(())
    assert bench.store.now - 1000.0 < LAST_S + LEASE_S


@pytest.mark.redis
@pytest.mark.parametrize("at", ["claim", "rest"])
def test_a_redis_that_answers_late_while_a_standby_takes_over(at: str, tmp_path: Path) -> None:
    """It answers nobody for 2.5 s, and each call of the standby has 1 s."""
    with PrivateRedis() as server:
        rules = ("on", ">everything", "~*", "&*", "+@all")
        RedisStore(server.url).administer("ACL", "SETUSER", "tester", *rules)
        url = f"redis://tester:everything@{server.address}/0"

        def pause() -> None:
            RedisStore(url).administer("CLIENT", "PAUSE", "2500")

        store = RedisStore(url, timeout_s=1.0)
        MasterLease(store, RUN, "A").claim()
        RedisStore(url).administer("DEL", keys.lease(RUN))  # it has expired
        lease = MasterLease(store, RUN, "B", patience=Patience(60.0, has_worked=True))
        # Of another thread than the lease, once that is kept.
        copy = RunFollower(RedisStore(url, timeout_s=1.0), RUN, tmp_path, "B")
        one, name = (lease, "claim") if at == "claim" else (copy, "take_rest")
        call, paused = getattr(one, name), threading.Event()

        def late(*arguments: object) -> object:
            if not paused.is_set():
                paused.set()
                pause()
            return call(*arguments)

        setattr(one, name, late)
        notes: list[str] = []
        began = time.monotonic()
        taken = StandbyWatch(copy, lease, tmp_path, "A", 60.0, notes.append).follow(())
        assert taken is not None
        assert time.monotonic() - began > 2.0
        assert any("files that were on the way are here" in note for note in notes)
        taken.lease.check()
        assert lease.holder().address == "B"
        taken.lease.end(over=True)
