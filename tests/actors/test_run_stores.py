"""Where the vectors of a run are: what room it asks shared memory for, and what outlives an attempt at it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.actors.run_stores import RunStores, _kept
from speedo.errors import StoreError
from speedo.run.config.run_config import make_config
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import PASSWORD_VARIABLE
from speedo.watch.console import Quiet
from tests.support.store_server import OwnRedis

OUTER = {"mode": "sync", "rule": "outer-momentum", "local_steps": 4}


@pytest.mark.parametrize(
    ("options", "vectors"),
    [
        ({"mode": "sync"}, 0),
        ({"mode": "easgd"}, 0),
        ({"mode": "sync", "server_gradient": True}, 2),
        (OUTER, 1),
    ],
)
def test_the_vectors_that_are_kept_beside_the_center(options: dict[str, Any], vectors: int) -> None:
    assert _kept(make_config(options)) == vectors


@pytest.mark.redis
def test_they_are_opened_once_and_end_with_the_last_attempt() -> None:
    config = make_config({"workers": 1})
    prepared: Any = SimpleNamespace(config=config, run="a1b2c3")
    stores, watch = RunStores(), Quiet()
    first = stores.redis(prepared, watch, None)
    near = stores.near(config, 100, first.socket, watch)
    assert stores.redis(prepared, watch, None) == first
    assert stores.near(config, 100, first.socket, watch) == near
    stores._redis_ends.close()  # it is gone for good
    second = stores.redis(prepared, watch, None)
    assert second.url != first.url
    assert stores.near(config, 100, second.socket, watch).folder == near.folder
    assert stores.near(config, 100, second.socket, watch).socket == second.socket
    stores.close()
    for one in (first, second):
        with pytest.raises(StoreError):
            RedisStore(one.url).check_server()
    assert not Path(near.folder).exists()


@pytest.mark.redis
def test_a_users_redis_that_this_run_has_used_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standby that has claimed the run must not end because Redis is away for a moment."""
    redis, notes = OwnRedis(), list[str]()
    config = make_config({"workers": 1, "redis": redis.options[1], "timeout": 60.0})
    prepared: Any = SimpleNamespace(config=config, run="a1b2c3")
    watch: Any = SimpleNamespace(note=notes.append)
    monkeypatch.setenv(PASSWORD_VARIABLE, redis.password)
    with pytest.raises(
        StoreError, match=r"no Redis answers.*start it or give another --redis URL\Z"
    ):
        RunStores().redis(prepared, watch, None)
    assert notes == []
    with ExitStack() as stack:
        later = threading.Timer(1.0, lambda: stack.enter_context(redis))
        later.start()
        opened = RunStores().redis(prepared, watch, None, is_known=True)
        later.join()
        RedisStore(opened.url).ping()
    assert notes[0].startswith("waiting: no Redis answers")
    assert notes[1] == "the store is back"
