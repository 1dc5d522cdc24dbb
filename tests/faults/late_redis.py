"""A Redis of the test's own behind a proxy that lets each of its answers arrive late, once it is told to.

As a program it is the proxy: `python -m tests.faults.late_redis HOST PORT TARGET FILE`. FILE holds the seconds.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from tests.support.commands import free_port
from tests.support.store_server import START_S, OwnRedis

PIECE = 1 << 16


class LateRedis(OwnRedis):
    """`options` name the proxy; `answers_after` says from now on how late each answer is."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._file, self._late_port = self._folder / "late", free_port()
        self.answers_after(0.0)
        place = self.host, str(self._late_port), str(self.port), str(self._file)
        self._proxy = subprocess.Popen(
            [*self._inside, sys.executable, "-m", "tests.faults.late_redis", *place],
            stdout=subprocess.PIPE,
        )
        assert self._proxy.stdout is not None
        assert self._proxy.stdout.readline() == b"ready\n", f"no proxy in {START_S} s"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.kill()
        self._proxy.communicate()
        super().__exit__(kind, error, trace)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--redis", f"redis://{self.host}:{self._late_port}/0")

    def answers_after(self, seconds: float) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(str(seconds))
        part.replace(self._file)


def _hand_on(source: socket.socket, sink: socket.socket, late: Path | None) -> None:
    """What comes from `source`, each piece so much later."""
    pieces: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=_send, args=(pieces, sink), daemon=True).start()
    with suppress(OSError):
        while piece := source.recv(PIECE):
            delay_s = 0.0 if late is None else float(late.read_text())
            pieces.put((time.monotonic() + delay_s, piece))
    pieces.put((0.0, b""))


def _send(pieces: SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
    with suppress(OSError):
        while (one := pieces.get())[1]:
            time.sleep(max(0.0, one[0] - time.monotonic()))
            sink.sendall(one[1])
        sink.shutdown(socket.SHUT_RDWR)


def main() -> None:
    host, port, target, file = sys.argv[1:]
    listener = socket.create_server((host, int(port)))
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(target)))
        for ends in ((client, server, None), (server, client, Path(file))):
            threading.Thread(target=_hand_on, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
