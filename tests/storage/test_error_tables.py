"""What each error of redis-py, of a Redis, of the network and of our own means for the call that failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from speedo import errors
from speedo.errors import (
    FencedError,
    MissingKeyError,
    NotFiniteError,
    PayloadError,
    SpeedoError,
    StoreAccessError,
    StoreCrowdedError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from speedo.storage.meaning import meaning_of, passes
from speedo.storage.redis.errors import store_error
from speedo.storage.redis.resp import ReplyError
from speedo.storage.redis.store import RedisStore
from tests.support.slow_stores import OF_THE_NETWORK, REDIS_CLASSES, REFUSALS

# What is not in these tables is `StoreUnavailableError`: asked for again, also by a call that never worked.
OF_REDIS_PY = {
    "AskError": StoreError,
    "AuthenticationError": StoreAccessError,
    "AuthenticationWrongNumberOfArgsError": StoreAccessError,
    "AuthorizationError": StoreAccessError,
    "ClusterCrossSlotError": StoreError,
    "InvalidResponse": StoreError,
    "MaxConnectionsError": StoreCrowdedError,
    "MovedError": StoreError,
    "NoPermissionError": StoreAccessError,
    "TimeoutError": StoreTimeoutError,
}
OF_A_REFUSAL = {
    "ASK": StoreError,
    "CROSSSLOT": StoreError,
    "DENIED": StoreError,
    "ERR": StoreError,
    "MOVED": StoreError,
    "NOAUTH": StoreAccessError,
    "NOPERM": StoreError,
    "NOPROTO": StoreError,
    "WRONGPASS": StoreAccessError,
    "WRONGTYPE": StoreError,
}
IN_THE_NETWORK = {
    "certificate": StoreError,
    "name not known": StoreError,
    "no RESP": StoreError,
    "socket of another user": StoreError,
    "timeout": StoreTimeoutError,
}
# Before the server has answered once, and afterwards.
MEANINGS = {
    StoreError: ("gone", "again"),
    StoreAccessError: ("gone", "again"),
    StoreUnavailableError: ("again", "again"),
    StoreCrowdedError: ("again", "again"),
    StoreTimeoutError: ("again", "again"),
    MissingKeyError: ("gone", "gone"),
    PayloadError: ("gone", "gone"),
    NotFiniteError: ("gone", "gone"),
    FencedError: ("fenced", "fenced"),
}


def meanings(error: BaseException) -> tuple[str, str]:
    return meaning_of(error, has_worked=False).value, meaning_of(error).value


class Refusing:
    """A connection of redis-py that cannot be opened."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def connect(self) -> None:
        raise self.error

    def disconnect(self) -> None:
        pass


def raised_by_a_store(error: Exception) -> Exception:
    """What a store makes of this error while it connects."""

    class Broken(RedisStore):
        def _new_connection(self) -> Any:
            return Refusing(error)

    with pytest.raises(Exception) as caught:  # noqa: PT011
        Broken("redis://10.0.0.9").ping()
    return caught.value


@pytest.mark.parametrize("name", REDIS_CLASSES)
def test_every_error_of_redis_py_has_a_meaning(name: str) -> None:
    ours = raised_by_a_store(REDIS_CLASSES[name]("1 10.0.0.9:6379"))
    assert type(ours) is OF_REDIS_PY.get(name, StoreUnavailableError)
    assert meanings(ours) == MEANINGS[type(ours)]
    assert "10.0.0.9:6379/0" in str(ours)


@pytest.mark.parametrize("code", REFUSALS)
def test_every_refusal_of_a_redis_has_a_meaning(code: str) -> None:
    ours = store_error(ReplyError(f"{code} no"), "redis:6379/0", "asking", 5.0)
    assert type(ours) is OF_A_REFUSAL.get(code, StoreUnavailableError)
    assert meanings(ours) == MEANINGS[type(ours)]
    assert "redis:6379/0 refused asking" in str(ours)


@pytest.mark.parametrize("name", OF_THE_NETWORK)
def test_every_error_of_the_network_has_a_meaning(name: str) -> None:
    error = OF_THE_NETWORK[name]
    kind = REDIS_CLASSES["TimeoutError" if name == "timeout" else "ConnectionError"]
    wrapped = kind("as redis-py wraps it")
    wrapped.__cause__ = error
    for one in (error, wrapped):
        ours = raised_by_a_store(one)
        assert type(ours) is IN_THE_NETWORK.get(name, StoreUnavailableError)
        assert meanings(ours) == MEANINGS[type(ours)]


def test_a_connection_that_is_not_known_is_asked_for_again() -> None:
    """As of a redis-py that does not expect what a proxy answers."""
    ours = raised_by_a_store(AttributeError("'NoneType' object has no attribute 'recv'"))
    assert type(ours) is StoreUnavailableError


def _classes(base: type[SpeedoError]) -> Iterator[type[SpeedoError]]:
    yield base
    for one in base.__subclasses__():
        yield from _classes(one)


def test_every_error_of_ours_has_a_meaning() -> None:
    found = {kind for kind in _classes(SpeedoError) if kind.__module__ == errors.__name__}
    assert found > MEANINGS.keys()
    for kind in found:
        assert meanings(kind("text")) == MEANINGS.get(kind, ("bug", "bug")), kind
    assert meanings(ValueError("text")) == ("bug", "bug")


def test_only_errors_of_a_store_pass() -> None:
    assert {kind for kind in MEANINGS if passes(kind("text"))} == MEANINGS.keys() - {FencedError}
    assert not passes(TypeError("text"))
