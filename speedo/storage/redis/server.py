"""A private Redis server, which ends when the process that started it ends.

A keeper process (`keeper.KEEPER`) restarts the server if it dies early. Both are in a session of their own, so
Ctrl-C, SIGTERM and SIGHUP do not end the server before the run has exported its model.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from speedo.errors import StoreError
from speedo.storage.redis.certificate import make_certificate, trusting
from speedo.storage.redis.keeper import KEEPER, write_config
from speedo.storage.redis.resp import ProtocolError, ReplyError, RespStream
from speedo.storage.redis.strangers import LoginWatch
from speedo.storage.redis.url import url_by_socket
from speedo.storage.redis.users import MASTER
from speedo.system.background_process import start_keeper
from speedo.system.private_folders import make_private_folder

PROGRAM: Final = "redis-server"
MAX_CLIENTS: Final = 10_000  # Redis's own default
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.1
_STOP_S: Final = 5.0
_KEEP_MEMORY: Final = "dirty_decay_ms:-1,lg_extent_max_active_fit:20"
"""For jemalloc, Redis's allocator: what a deleted blob had is for the next one, and never goes back to the kernel.

Fresh pages cost more than what is written to them. Source: https://jemalloc.net/jemalloc.3.html
"""


class PrivateRedis:
    """A context in which a Redis server with a random password runs, without persistence.

    It listens on `port` of `host`, or else on a free one, and with `unix_socket` also on a socket in its directory.
    With `tls` the port accepts TLS only, with a certificate of its own. A server that dies is restarted, empty, at the
    same port and with the same users. `maxmemory_bytes` of 0 is no limit; at a limit it refuses writes and evicts
    nothing. Connections that do not log in are closed; `tell` is called if there are many. It accepts `max_clients`
    connections at once, or fewer if the limit of open files is lower.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        unix_socket: bool = False,
        tls: bool = False,
        maxmemory_bytes: int = 0,
        max_clients: int = MAX_CLIENTS,
        tell: Callable[[str], None] = lambda _: None,
        start_timeout_s: float = 10.0,
        program: str = PROGRAM,
    ) -> None:
        self._host = host
        self._given_port = port
        self._with_socket = unix_socket
        self._tls = tls
        self._ca_pem = ""
        self._maxmemory_bytes = maxmemory_bytes
        self._max_clients, self._tell = max_clients, tell
        self._door: LoginWatch | None = None
        self._start_timeout_s = start_timeout_s
        self._program = program
        self._password = ""
        self._port = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    def __repr__(self) -> str:
        return f"PrivateRedis({self.address})"

    def __enter__(self) -> Self:
        program = shutil.which(self._program)
        if program is None:
            raise StoreError(
                f"{self._program} is not installed: apt-get install redis-server, "
                "or give a --redis URL"
            )
        try:
            deadline = time.monotonic() + self._start_timeout_s
            for _ in range(_ATTEMPTS):
                if self._start(program, deadline):
                    self._keep_door()
                    return self
                self.stop()
                if self._given_port is not None:
                    time.sleep(_PAUSE_S)  # a former run's server may be ending
            if self._given_port is not None:
                raise StoreError(
                    f"the private Redis cannot listen at {self.address}, which is in use: stop what listens "
                    "there, or give another --port"
                )
            raise StoreError(
                f"{self.address}: {_ATTEMPTS} free ports were taken by others in between"
            )
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """host:port, without the password."""
        return f"{self._bracketed_host}:{self._port}"

    @property
    def url(self) -> str:
        """The master's URL with its password: not for logs or command lines."""
        scheme = "rediss" if self._tls else "redis"
        return f"{scheme}://{MASTER}:{self._password}@{self.address}/0"

    @property
    def ca_pem(self) -> str:
        """The CA certificate of the server, for all who connect; empty without TLS."""
        return self._ca_pem

    @property
    def unix_url(self) -> str:
        """The URL of the unix socket, with the password."""
        return f"unix://{MASTER}:{self._password}@{self._home}/socket?db=0"

    @property
    def socket_path(self) -> str:
        """The path of the unix socket; empty without `unix_socket`."""
        return f"{self._home}/socket" if self._with_socket else ""

    @property
    def process_id(self) -> int:
        """The process id of the server; after its death, the old one until it is restarted."""
        deadline = time.monotonic() + self._start_timeout_s
        while not (text := (self._home / "pid").read_text()).strip():  # it is just being written
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the private Redis at {self.address} does not report its process id"
                )
            time.sleep(0.01)
        return int(text)

    def keep(self) -> None:
        """Start the server again, empty, if its keeper has died; raises `StoreError` if that fails."""
        if self._keeper is None or self._keeper.poll() is None:
            return
        program = shutil.which(self._program) or self._program
        # Before its pipe closes, lest the rest of it end the new server
        self._end_group(self._keeper)
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        for name in ("exit", "over", "child"):
            (self._home / name).unlink(missing_ok=True)
        self._start_keeper(program)  # which tries until the port is free
        deadline = time.monotonic() + self._start_timeout_s
        while not self._answers():
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the private Redis at {self.address} does not start again: {self._log()}"
                )
            time.sleep(0.01)

    def stop(self) -> None:
        """End the server and remove its directory; may be called twice."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            try:
                keeper.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._end_group(keeper)
                keeper.wait()
            # Had someone killed the keeper, its group would still hold the server.
            self._end_group(keeper)
        door, self._door = self._door, None
        if door is not None:
            door.close()  # after the server, which it would wait for if that hangs
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    @staticmethod
    def _end_group(keeper: subprocess.Popen[bytes]) -> None:
        """Kill the keeper and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(keeper.pid, signal.SIGKILL)

    def _keep_door(self) -> None:
        url = url_by_socket(self.url, self.socket_path) if self._with_socket else self.url
        self._door = LoginWatch(
            url,
            place=self.address,
            max_clients=self._max_clients,
            ca_pem=self._ca_pem,
            tell=self._tell,
        )
        self._door.start()

    @property
    def _bracketed_host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    @property
    def _home(self) -> Path:
        if self._directory is None:
            raise StoreError("the private Redis does not run: use it inside its context")
        return self._directory

    def _start(self, program: str, deadline: float) -> bool:
        """Whether the server answers; False if another program took the port first."""
        # A new one for each attempt: another listener at the port has received the one before.
        self._password = secrets.token_hex(24)
        self._port = self._given_port or _free_port(self._host)
        self._directory = make_private_folder("speedo-redis-")
        if self._tls:
            self._ca_pem = make_certificate(self._directory, self._host)
        write_config(
            self._directory,
            host=self._host,
            port=self._port,
            password=self._password,
            maxmemory_bytes=self._maxmemory_bytes,
            tls=self._tls,
            unix_socket=self._with_socket,
            max_clients=self._max_clients,
        )
        self._start_keeper(program)
        while True:
            if self._answers():
                (self._home / "started").touch()  # from now on the keeper starts it again
                if not (self._home / "exit").exists():
                    return True
            if (self._home / "exit").exists():
                log = self._log()
                if "Address already in use" in log:
                    return False
                raise StoreError(f"the private Redis ended at once. Its last lines:\n{log}")
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the private Redis did not answer within {self._start_timeout_s:g} s. "
                    f"Its last lines:\n{self._log()}"
                )
            time.sleep(0.01)

    def _start_keeper(self, program: str) -> None:
        self._keeper = start_keeper(
            "speedo-redis",
            self._home,
            program,
            script=KEEPER,
            env={"MALLOC_CONF": _KEEP_MEMORY, "JE_MALLOC_CONF": _KEEP_MEMORY, **os.environ},
        )

    def _answers(self) -> bool:
        """Whether the process that answers at the port is our server, which knows the password."""
        try:
            with self._connection() as sock:
                stream = RespStream(sock, stall_s=1.0)
                stream.ask(b"AUTH", MASTER.encode(), self._password.encode())
                return stream.ask(b"PING") == b"PONG" and (self._home / "pid").exists()
        except (OSError, ReplyError, ProtocolError):
            return False

    def _connection(self) -> socket.socket:
        sock = socket.create_connection((self._host, self._port), timeout=1.0)
        if not self._tls:
            return sock
        try:
            return trusting(self._ca_pem).wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise

    def _log(self) -> str:
        with suppress(OSError):
            return "\n".join((self._home / "log").read_text(errors="replace").splitlines()[-8:])
        return "(none)"


def _free_port(host: str) -> int:
    """A port that is free now; the server may still find it taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
            return int(sock.getsockname()[1])
    except OSError as error:
        raise StoreError(f"no Redis can be started on {host}: {error.strerror or error}") from None
