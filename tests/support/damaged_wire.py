"""Wires between the leaders of hosts that do not carry what was sent: a proxy before each leader that listens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from speedo.storage.base import Store
from speedo.system.json_lines import line_of, values_of

Change = Callable[[bytes], bytes]


def flipped(bit: int) -> Change:
    """The same with this bit of its first byte inverted."""
    return lambda data: bytes((data[0] ^ 1 << bit,)) + data[1:]


class DamagedWire:
    """A store for leaders to meet in, which says of each that it listens at its proxy's port.

    `carried` has all bytes by the key of the leader that they were sent to. To be closed.
    """

    def __init__(self, inner: Store) -> None:
        self._inner, self._open = inner, list[socket.socket]()
        self.carried: dict[str, bytearray] = {}
        self._changes: dict[str, tuple[int, Change]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def damage(self, key: str, after: int, change: Change) -> None:
        """Put what comes to this leader through `change` once, `after` so many more bytes."""
        self._changes[key] = len(self.carried.get(key, b"")) + after, change

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        with suppress(ValueError):  # says why it has left
            said = values_of(head)
            listener = socket.create_server((said["address"], 0))
            self._open.append(listener)
            self.carried[key] = bytearray()
            there = said["address"], said["port"]
            threading.Thread(target=self._accept, args=(listener, key, there), daemon=True).start()
            head = line_of({**said, "port": listener.getsockname()[1]})
        self._inner.write(key, head, body, expire_s=expire_s)

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket, key: str, there: tuple[str, int]) -> None:
        with suppress(OSError):
            while True:
                came, _ = listener.accept()
                goes = socket.create_connection(there)
                self._open += [came, goes]
                for pair in ((came, goes, key), (goes, came, "")):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, key: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(self._carry(key, data) if key else data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _carry(self, key: str, data: bytes) -> bytes:
        carried = self.carried[key]
        at, change = self._changes.get(key, (-1, bytes))
        at -= len(carried)
        carried += data
        if not 0 <= at < len(data):
            return data
        del self._changes[key]
        return data[:at] + change(data[at:])
