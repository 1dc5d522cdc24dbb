from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from speedo.errors import StoreError
from speedo.storage.redis import server as module
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.storage.conftest import is_alive
from tests.support.commands import wait_until

pytestmark = pytest.mark.redis

PARENT = """
import signal, sys, time, threading
# A shell gives its background commands an ignored SIGINT, and with it the tests that it runs.
signal.signal(signal.SIGINT, signal.default_int_handler)
from speedo.storage.redis.server import PrivateRedis
servers = []
def start():
    server = PrivateRedis()
    server.__enter__()
    servers.append(server)
thread = threading.Thread(target=start)  # the thread that started it ends; the server must not
thread.start(); thread.join()
server = servers[0]
print(server.process_id, server._keeper.pid, server._directory, server._port, flush=True)
time.sleep(60)
"""


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stopped", [False, True])
def test_the_server_ends_with_its_parent_however_that_ends(how: signal.Signals, stopped: bool):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    server, keeper, directory, port = parent.stdout.readline().split()
    assert is_alive(int(server))
    assert is_open(int(port))
    if stopped:
        os.kill(int(server), signal.SIGSTOP)
    parent.send_signal(how)
    parent.communicate(timeout=10)
    wait_until(lambda: not is_alive(int(server)) and not is_alive(int(keeper)))
    wait_until(lambda: not Path(directory).exists())
    assert not is_open(int(port))


def test_it_ends_with_its_context_and_leaves_nothing():
    with contextlib.suppress(KeyError), PrivateRedis() as server:
        pid, home, port = server.process_id, server._home, server._port
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        for name in ("redis.conf", "users.acl", "log"):
            assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
            assert server._password not in (home / name).read_text()
        raise KeyError
    assert not is_alive(pid)
    assert not home.exists()
    assert not is_open(port)
    server.stop()


def test_it_survives_ctrl_c_of_the_terminal_and_ends_with_a_killed_keeper():
    with PrivateRedis() as server:
        assert server._keeper is not None
        pid, keeper = server.process_id, server._keeper.pid
        assert os.getsid(pid) == keeper != os.getsid(0)
        os.kill(keeper, signal.SIGINT)
        os.kill(keeper, signal.SIGTERM)
        time.sleep(0.05)
        assert is_alive(keeper)
        RedisStore(server.url).ping()
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        home = server._home
    assert not home.exists()


def test_the_password_is_not_in_any_command_line():
    with PrivateRedis() as server:
        secret = server._password.encode()
        assert server._keeper is not None
        for pid in (server.process_id, server._keeper.pid):
            assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert secret not in Path(f"/proc/{pid}/environ").read_bytes()


def test_two_live_side_by_side():
    with PrivateRedis() as one, PrivateRedis() as two:
        assert one.address != two.address
        RedisStore(one.url).write("k", b"", memoryview(b"1"))
        assert RedisStore(two.url).keys("") == []
        with pytest.raises(StoreError, match="does not accept"):
            RedisStore(one.url.replace(one.address, two.address)).ping()


def test_a_port_that_another_took_first_is_passed_over(monkeypatch):
    free = module._free_port
    with PrivateRedis() as first:
        ports = iter([first._port, free("127.0.0.1")])
        monkeypatch.setattr(module, "_free_port", lambda host: next(ports))
        with PrivateRedis() as second:
            assert second._port != first._port
            RedisStore(second.url).ping()


def test_an_early_death_is_told_with_its_last_lines(tmp_path):
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho Bad directive >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(StoreError, match=r"ended at once.*\nBad directive"):
        PrivateRedis(program=str(program)).__enter__()


def test_a_server_that_never_answers_is_told_in_time(tmp_path):
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(StoreError, match=r"did not answer within 0\.2 s"):
        PrivateRedis(program=str(program), start_timeout_s=0.2).__enter__()


def test_a_missing_program_is_told_with_the_remedy():
    with pytest.raises(StoreError, match="apt-get install redis-server, or give a --redis URL"):
        PrivateRedis(program="redis-server-that-is-not-there").__enter__()


def test_a_host_that_is_not_ours_is_told():
    with pytest.raises(StoreError, match=r"no Redis can be started on 192\.0\.2\.1"):
        PrivateRedis(host="192.0.2.1").__enter__()


def fresh_pages(process: int) -> int:
    """How many pages the kernel has given to this process."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[7])


def test_the_memory_of_deleted_blobs_is_used_again():
    body = memoryview(bytearray(128 << 20))
    with PrivateRedis() as server, contextlib.closing(RedisStore(server.url)) as store:
        before = []
        for version in range(5):
            before.append(fresh_pages(server.process_id))
            store.write(f"run:center:{version}", b"head", body)
            if version:
                store.delete(f"run:center:{version - 1}")
    pages = len(body) // os.sysconf("SC_PAGESIZE")
    assert before[1] - before[0] > pages  # the figures are what they are taken for
    assert before[4] - before[2] < pages / 2  # of two writes


def test_who_took_the_port_first_learns_no_password_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program that listens at the port which we have chosen is asked for our server's answer."""
    chosen = module._free_port
    heard: list[bytes] = []

    def listen(squatter: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = squatter.accept()
                with connection:
                    heard.append(connection.recv(4096))
                    connection.sendall(b"-ERR no\r\n")

    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken = iter([squatter.getsockname()[1]])
        monkeypatch.setattr(module, "_free_port", lambda host: next(taken, None) or chosen(host))
        listening = threading.Thread(target=listen, args=(squatter,))
        listening.start()
        with PrivateRedis() as server:
            password = server.url.split(":")[2].split("@")[0].encode()
            assert RedisStore(server.url).keys("") == []
        squatter.shutdown(socket.SHUT_RDWR)
        listening.join(10)
    told = b"".join(heard)
    assert b"AUTH" in told
    assert password not in told
