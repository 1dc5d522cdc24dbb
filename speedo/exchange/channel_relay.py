"""The other end of a `WorkerChannel` on a host where the master has none: one worker's commands and answers, passed on.

The messages are those of `speedo.exchange.channel`, whatever they are.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from speedo.exchange.channel import (
    CONNECT_S,
    MOST_GREETING,
    MOST_LINE_BYTES,
    SEND_S,
    SOCKET,
    limit_sending,
    pack,
    unpack,
)
from speedo.messages import SaveState, Train

LATER_S: Final = 60.0  # for a worker to connect before what is sent to it is lost


class ChannelRelay:
    """For one worker, which connects in `folder`; `heard` gets each of its answers, in their order, by a thread."""

    def __init__(self, folder: Path, heard: Callable[[Any], None]) -> None:
        self.folder, self._heard = folder, heard
        self._channel: socket.socket | None = None
        self._closed = False
        self._there = threading.Event()
        self._sending = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/{SOCKET}")
        self._listener.listen(1)
        threading.Thread(target=self._serve, name="relay", daemon=True).start()

    def send(self, command: Train | SaveState) -> None:
        """Pass it on; it is lost with a worker that is gone, whose end is being reported."""
        if self._there.wait(LATER_S) and self._channel is not None:
            with self._sending, suppress(OSError):
                self._channel.sendall(pack(command))

    def close(self) -> None:
        """Send no more commands, also to a worker that connects later; the present one is still answered."""
        with self._sending:
            self._closed = True
            self._hang_up()

    def _hang_up(self) -> None:
        if self._closed and self._channel is not None:
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def _serve(self) -> None:
        with suppress(OSError, ValueError, TypeError):  # it ended, or is no worker: its actor tells
            with self._listener:
                channel, _ = self._listener.accept()
            with channel, channel.makefile("rb") as lines:
                channel.settimeout(CONNECT_S)
                lines.readline(MOST_GREETING)
                channel.settimeout(None)
                limit_sending(channel, SEND_S)
                with self._sending:
                    self._channel = channel
                    self._hang_up()
                self._there.set()
                while line := lines.readline(MOST_LINE_BYTES):
                    self._heard(unpack(line))
