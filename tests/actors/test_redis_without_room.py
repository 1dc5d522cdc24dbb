"""A Redis that accepts no more clients: who waits for it says so, and goes on once there is room."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from speedo.errors import StoreError
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.watch.status import NO_WORKER_WAITS
from tests.support.commands import Commands, wait_for_line, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
ROOM = 24
NO_ROOM = "accepts no more clients"
# In the command: it stands still before it says what an exchange takes.
HELD = """
import pathlib, sys, time
launch = sys.modules.get("speedo.actors.launch")
if launch is not None:
    def hold(*given, former=launch.exchange):
        here = pathlib.Path(__file__).parent
        (here / "reached").touch()
        while not (here / "released").exists():
            time.sleep(0.05)
        return former(*given)
    launch.exchange = hold
"""


class Members:
    """Connections with the password that take every place as soon as it is free, until `leave`."""

    def __init__(self, server: PrivateRedis) -> None:
        self._server = server
        self._held: list[RedisStore] = []
        self._over = Event()
        self._thread = Thread(target=self._take, daemon=True)

    def come(self) -> None:
        self._thread.start()
        wait_until(lambda: self._is_full())

    def cut_worker(self) -> None:
        """End the connection of worker 0 if it has one: it may be the first to take a place that comes free."""
        listed = self._held[0].administer("CLIENT", "LIST")
        assert isinstance(listed, bytes), listed
        found = re.search(rb" user=(\S*-w0-\S*) ", listed)
        if found is not None:
            self._held[0].administer("CLIENT", "KILL", "USER", found[1].decode())

    def leave(self) -> None:
        self._over.set()
        self._thread.join()
        for one in self._held:
            one.close()

    def _take(self) -> None:
        while not self._over.is_set():
            one = RedisStore(self._server.url)
            try:
                one.ping()
                self._held.append(one)
            except StoreError:
                one.close()

    def _is_full(self) -> bool:
        late = RedisStore(self._server.url)
        with suppress(StoreError):
            late.ping()
            late.close()
            return False
        return True


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis(max_clients=ROOM) as running:
        yield running


def run_of(speedo: Commands) -> dict[str, Any]:
    out, errors = speedo.start("status", "--json").communicate(timeout=120)
    (run,) = json.loads(out)["runs"] or [pytest.fail(errors)]
    return dict(run)


def test_a_start_and_a_worker_that_find_no_room_say_so_and_go_on(
    server: PrivateRedis, speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.mkdir()
    (held / "sitecustomize.py").write_text(HELD)
    process = speedo.start(
        *("train", str(problem), "--mode", "async", "--workers", "1", "--max-iter", "1000000"),
        *("--test-interval", "0", "--run-dir", "run", "--redis", "same_node=redis"),
        *("--redis", server.url, "--timeout", "300"),
        environment={"PYTHONPATH": str(held)},
    )
    log, metrics = tmp_path / "run" / "train.log", tmp_path / "run" / "metrics.jsonl"
    wait_until((held / "reached").exists, 60)  # it has looked at the server, and made no users yet
    first = Members(server)
    first.come()
    (held / "released").touch()
    wait_for_line(
        log,
        f"waiting for the master to give workers their places: {server.address}/0 {NO_ROOM}",
        90,
    )
    first.leave()
    wait_for_line(metrics, '"version":3,', 90)

    then = Members(server)
    then.come()
    words = f"warning: worker 0 waits for the store: {server.address}/0 {NO_ROOM}"

    def waits() -> bool:
        then.cut_worker()
        return words in log.read_text()

    wait_until(waits)
    (seen,) = run_of(speedo)["workers"]
    assert seen["state"].startswith(f"waiting for the store: {server.address}/0 {NO_ROOM}")
    assert not seen["away"]
    assert NO_ROOM in (tmp_path / "run" / "logs" / "worker-0.log").read_text()
    then.leave()
    wait_for_line(log, NO_WORKER_WAITS, 60)
    (seen,) = run_of(speedo)["workers"]
    assert not seen["state"].startswith("waiting for the store")
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
