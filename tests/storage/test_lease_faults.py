"""A lease in a real Redis that is restarted, whose answers are late, and whose holder is stopped or hangs."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from speedo.errors import FencedError, MissingKeyError, StoreError
from speedo.run import kept_lease as kept_module
from speedo.run.kept_lease import KeptLease
from speedo.storage import keys
from speedo.storage import lease as module
from speedo.storage.conditional import Small, look_at
from speedo.storage.lease import MasterFence, MasterLease
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import Patience, RetryingStore
from tests.storage.conftest import RawClient, put
from tests.support.commands import how_loaded, wait_until

pytestmark = pytest.mark.redis


class Holding:
    """Between a client and Redis: the first transaction waits here, with all that follows on its connection."""

    def __init__(self, server: PrivateRedis) -> None:
        host, port = server.address.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.holds, self.let_go, self.gone = threading.Event(), threading.Event(), threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if asks and b"MULTI\r\n" in data and not self.holds.is_set():
                    self.holds.set()
                    self.let_go.wait(30)
                elif not asks and self.let_go.is_set():
                    self.gone.set()
                sink.sendall(data)

    def close(self) -> None:
        self._listener.close()


def test_a_write_that_arrives_late_does_not_undo_what_followed_it(
    server: PrivateRedis, raw: RawClient
) -> None:
    """The client has given it up, and written it again by another connection; a version later the first one arrives."""
    between = Holding(server)
    MasterLease(RedisStore(raw.url), "late").claim()
    fence = MasterFence(RedisStore(raw.url), "late", 0)
    url = raw.url.replace(server.address, between.address)
    store = RetryingStore(RedisStore(url, timeout_s=0.5, guard=fence.guard), patience_s=20)
    for version in (1, 2):
        fence.guard.entry = b"entry %d" % version
        put(store, keys.center("late:0", version))
    assert between.holds.is_set()
    assert fence.entry() == b"entry 2"
    between.let_go.set()
    assert between.gone.wait(10)
    assert fence.entry() == b"entry 2"
    between.close()


def has_expired(lease: MasterLease) -> bool:
    return lease.holder().is_expired


def test_a_claim_outlasts_a_redis_that_answers_late(raw: RawClient) -> None:
    """Each of its tries may have been carried out."""
    store = RedisStore(raw.url, timeout_s=0.3)
    own = MasterLease(store, "late claim", patience=Patience(60.0, has_worked=True))
    own.claim()
    held = KeptLease(own, print, thread=False)
    for epoch in (1, 2):
        raw.redis.client_pause(1200)
        assert held.next_epoch() == epoch
    assert own.holder().epoch == 2
    raw.redis.client_pause(1200)
    held.end(over=True)
    assert own.holder().is_over
    raw.redis.flushall()


def test_a_renewal_goes_on_after_whatever_error(
    raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a standby would take over from a master that is well."""
    own = MasterLease(RedisStore(raw.url), "renewed")
    own.claim()
    notes: list[str] = []
    held = KeptLease(own, notes.append, thread=False)

    def renew() -> None:
        raise errors.pop(0)

    errors = [StoreError("NOREPLICAS"), AttributeError("as of a library")]
    with monkeypatch.context() as patch:
        patch.setattr(own, "renew", renew)
        held.renew()
        held.renew()
    assert errors == []
    held.renew()
    assert notes == [
        "warning: the lease of the run cannot be renewed: NOREPLICAS",
        "the lease of the run is renewed again",
    ]
    held.check()
    raw.redis.flushall()


HOLDER = """
import sys
import speedo.storage.lease as lease
import speedo.run.kept_lease as kept
lease.LEASE_S, kept.RENEW_S = 0.6, 0.1
from speedo.errors import FencedError
from speedo.storage import keys
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import RetryingStore
url, run = sys.argv[1:]
own = lease.MasterLease(RedisStore(url, timeout_s=5), run)
epoch = own.claim()
held = kept.KeptLease(own, print)
held.expect_standby(True)
fence = lease.MasterFence(RedisStore(url), run, epoch)
store = RetryingStore(RedisStore(url, chunk_bytes=100, guard=fence.guard), patience_s=20)
version = 0
try:
    while True:
        version += 1
        fence.guard.entry = b"%d" % version
        store.write(keys.center(f"{run}:{epoch}", version), b"", memoryview(b"x" * 500))
        print(version, flush=True)
        held.check()
except FencedError as error:
    print(error, flush=True)
"""


def test_a_holder_that_is_stopped_anywhere_loses_the_run_and_writes_nothing_when_it_wakes(
    raw: RawClient,
) -> None:
    chance = random.Random(1)
    for attempt in range(4):
        run = f"stopped{attempt}"
        with (
            subprocess.Popen(
                [sys.executable, "-c", HOLDER, raw.url, run], stdout=subprocess.PIPE, text=True
            ) as process,
            ExitStack() as ending,
        ):
            ending.callback(process.kill)  # a stopped one is waited for without an end
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            time.sleep(chance.random() * 0.2)
            os.kill(process.pid, signal.SIGSTOP)
            waiting = MasterLease(RedisStore(raw.url), run)
            wait_until(partial(has_expired, waiting), 20)
            assert waiting.claim(0) == 1
            fence = MasterFence(RedisStore(raw.url), run, 1)
            before = fence.entry(), sorted(raw.redis.keys(f"speedo:{run}:0:*"))
            os.kill(process.pid, signal.SIGCONT)
            said, _ = process.communicate(timeout=30)
            assert "another master has taken this run over (its epoch is 1, ours 0)" in said
            after = (
                fence.entry(),
                [key for key in sorted(raw.redis.keys(f"speedo:{run}:0:*")) if b"#" not in key],
            )
            assert after == (before[0], [key for key in before[1] if b"#" not in key])


def test_a_redis_that_is_restarted_empty_gets_lease_and_epoch_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_module, "RENEW_S", 0.1)
    with PrivateRedis() as server:
        raw = RawClient(server)
        RedisStore(server.url).administer("ACL", "SAVE")
        own = MasterLease(RedisStore(raw.url, timeout_s=1.0), "run", "here:1")
        own.claim(least=2)
        notes: list[str] = []
        held = KeptLease(own, notes.append)
        fence = MasterFence(RedisStore(raw.url), "run", 2)
        store = RetryingStore(RedisStore(raw.url, guard=fence.guard), patience_s=30)
        put(store, keys.center("run:2", 1))
        os.kill(server.process_id, signal.SIGKILL)
        fence.guard.entry = b"entry 2"
        put(store, keys.center("run:2", 2))
        assert store.outages == 1
        held.check()
        holder = MasterLease(RedisStore(raw.url), "run").holder()
        assert (holder.epoch, holder.address) == (2, "here:1")
        assert fence.entry() == b"entry 2"
        held.end(over=True)
        assert MasterLease(RedisStore(raw.url), "run").holder().is_over
        assert all("lease" in one for one in notes)


def test_a_command_that_hangs_loses_its_lease(
    raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "RENEW_S", 0.05)
    lasts = 0.5 * how_loaded()
    monkeypatch.setattr(kept_module, "SILENT_S", lasts)
    monkeypatch.setattr(module, "LEASE_S", lasts)
    own = MasterLease(RedisStore(raw.url), "hangs")
    own.claim()
    held = KeptLease(own, print)
    waiting = MasterLease(RedisStore(raw.url), "hangs")
    end = time.monotonic() + 3 * lasts
    while time.monotonic() < end:
        held.check()
        time.sleep(0.05)
    assert not waiting.holder().is_expired
    wait_until(lambda: waiting.holder().is_expired, 20)
    assert waiting.claim(0) == 1

    def is_told() -> bool:
        try:
            held.check()
        except FencedError:
            return True
        return False

    wait_until(is_told, 20)
    raw.redis.flushall()


def test_small_values_last_as_long_as_they_are_to(raw: RawClient) -> None:
    store = RedisStore(raw.url)
    store.change(("speedo:a",), lambda _: {"speedo:a": Small(b"1"), "speedo:b": Small(b"2", 0.1)})
    found = look_at(store, ("speedo:a", "speedo:b", "speedo:c"))
    assert found["speedo:a"] == Small(b"1")
    assert found["speedo:c"] is None
    time.sleep(0.15)
    assert look_at(store, ("speedo:b",))["speedo:b"] is None
    with pytest.raises(MissingKeyError):
        store.read_head("speedo:c")
    raw.redis.flushall()
