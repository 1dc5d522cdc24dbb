"""A Redis of the test's own, as a user may have one: with a password, and what a test does to it."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.support.commands import free_port
from tests.support.left_behind import short_folder

START_S = 10.0


class OwnRedis:
    """A server whose `default` user may do everything; `host` may be an address in a namespace (`inside`)."""

    def __init__(self, host: str = "127.0.0.1", inside: tuple[str, ...] = ()) -> None:
        self.host, self.port, self.password = host, free_port(), secrets.token_hex(16)
        self._inside = inside
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        self._folder = short_folder("speedo-test-redis-")
        (self._folder / "redis.conf").write_text(
            f'bind {self.host}\nport {self.port}\nprotected-mode no\nsave ""\nappendonly no\n'
            f"requirepass {self.password}\ndir {self._folder}\nmaxmemory-policy noeviction\n"
        )
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--redis", f"redis://{self.host}:{self.port}/0")

    @property
    def environment(self) -> dict[str, str]:
        return {"SPEEDO_REDIS_PASSWORD": self.password}

    def start(self) -> None:
        """Start it, with what is in its dump, if there is one."""
        self._process = subprocess.Popen(
            [*self._inside, "redis-server", str(self._folder / "redis.conf")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, "the test's Redis does not start"
            time.sleep(0.02)

    def _answers(self) -> bool:
        told = subprocess.run(
            [*self._inside, "redis-cli", "-h", self.host, "-p", str(self.port), "ping"],
            capture_output=True,
            text=True,
            timeout=START_S,
        ).stdout
        return "NOAUTH" in told  # it wants the password

    def admin(self) -> redis.Redis:
        return redis.Redis(self.host, self.port, password=self.password, socket_timeout=5.0)

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it at once; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end_with_data(self) -> None:
        """End it in order; what it held is there again after the next start."""
        assert self._process is not None
        with suppress(redis.RedisError):
            self.admin().execute_command("SHUTDOWN", "SAVE")
        self._process.wait(START_S)
        assert (self._folder / "dump.rdb").exists()

    def keys(self, kind: str) -> list[bytes]:
        """Keys of centers or payloads."""
        found: Any = self.admin().keys(f"speedo:*:{kind}:*")
        return sorted(found)


PIECE = 65_536


class Proxy:
    """Hands on what clients of `port` and the server at `target` say, `delay_s` for every 64 KiB.

    A piece is as long as the kernel happens to have it, so its delay is its share.
    """

    def __init__(self, target: int) -> None:
        self.delay_s = 0.0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                if self.delay_s:
                    time.sleep(self.delay_s * len(piece) / PIECE)
                sink.sendall(piece)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
