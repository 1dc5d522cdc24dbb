"""A private server that dies is started again by its keeper; ours or its own end is final."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from speedo.errors import MissingKeyError, StoreUnavailableError
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.users import StoreUsers
from speedo.storage.retrying_store import RetryingStore
from tests.storage.conftest import BODY, get, is_alive, put
from tests.support.commands import wait_until

pytestmark = pytest.mark.redis

PARENT = """
import os, signal, time
from speedo.storage.redis.server import PrivateRedis
with PrivateRedis() as server:
    os.kill(server.process_id, signal.SIGKILL)
    print(server.process_id, server._keeper.pid, server._directory, flush=True)
    time.sleep(60)
"""

# Redis once; every later start ends at once and leaves a line.
FAILING = """#!/bin/sh
here=$(dirname "$0")
if mkdir "$here/once" 2>/dev/null; then exec {redis} "$@"; fi
date +%s.%N >>"$here/starts"
exit 1
"""


def kill(server: PrivateRedis) -> None:
    os.kill(server.process_id, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_server_that_dies_comes_back_empty_with_its_users(how: signal.Signals):
    with PrivateRedis(unix_socket=True) as server:
        stores = [RedisStore(url) for url in (server.url, server.unix_url)]
        put(stores[0], "k")
        pid = server.process_id
        os.kill(pid, how)
        wait_until(lambda: not is_alive(pid))
        for store in stores:
            patient = RetryingStore(store, patience_s=20)
            with pytest.raises(MissingKeyError):
                patient.read_head("k")
            put(patient, "k")
            assert get(patient, "k") == (b"head", bytes(BODY))
            patient.delete("k")
        assert server.process_id != pid
        assert is_alive(server.process_id)


def test_it_comes_back_every_time():
    with PrivateRedis() as server:
        store = RetryingStore(RedisStore(server.url), patience_s=20)
        for outages in range(1, 4):
            kill(server)
            store.ping()
            assert store.outages == outages


def test_a_killed_keeper_is_replaced_with_the_same_address_password_and_users():
    with PrivateRedis(unix_socket=True) as server:
        access = StoreUsers(server.url, "run:0", saved=True)
        worker = RetryingStore(RedisStore(access.admit_worker(3, 1)), patience_s=20)
        for _ in range(2):
            assert server._keeper is not None
            former = server.process_id
            os.kill(server._keeper.pid, signal.SIGKILL)
            wait_until(lambda former=former: not is_alive(former))
            server.keep()
            worker.ping()
            kill(server)  # and by the new one
            worker.ping()
        access.close()
        server.keep()  # does nothing while all is well
        keeper, home = server._keeper.pid, server._home
    assert not is_alive(keeper)
    assert not home.exists()


def test_stopping_while_the_server_is_away_is_final():
    with PrivateRedis() as server:
        assert server._keeper is not None
        keeper, home = server._keeper.pid, server._home
        kill(server)
    assert not is_alive(keeper)
    assert not home.exists()
    time.sleep(0.5)  # a keeper that went on would have started it by now
    with pytest.raises(StoreUnavailableError):
        RedisStore(server.url).ping()


def test_the_end_of_our_process_while_the_server_is_away_is_final():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, keeper, home = parent.stdout.readline().split()
    parent.kill()
    parent.communicate(timeout=10)
    wait_until(lambda: not is_alive(int(keeper)) and not Path(home).exists())
    assert not is_alive(int(pid))


def test_a_server_that_cannot_come_back_is_tried_with_growing_pauses(tmp_path: Path):
    redis = subprocess.run(["which", "redis-server"], capture_output=True, text=True, check=True)
    program, starts = tmp_path / "redis-server", tmp_path / "starts"
    program.write_text(FAILING.format(redis=redis.stdout.strip()))
    program.chmod(0o755)
    with PrivateRedis(program=str(program)) as server:
        kill(server)
        wait_until(lambda: starts.exists() and starts.read_text().count("\n") >= 3)
    times = [float(line) for line in starts.read_text().split()]
    assert times[1] - times[0] >= 0.5
    assert times[2] - times[1] >= 1.0
