"""The driver's event queue: filled from any thread, and from sockets that the driver's own thread reads.

If a socket ends, breaks or sends something that is no message, its listener is called with the cause; otherwise the
loss would not be noticed.

With a thread per socket every message would be handed over between two threads, which costs a tenth of a millisecond.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

Event = TypeVar("Event")
READ_BYTES: Final = 1 << 16
LONGEST_S: Final = 3600.0
MOST_LINE_BYTES: Final = 16 << 20
Ended = Callable[[str], None]  # gets the cause


class EventQueue(Generic[Event]):
    """`put` and `listen` may be called from every thread, `get` and `waiting` from one.

    `awake` is called by that thread after each `get`.
    """

    def __init__(self) -> None:
        self.awake: Callable[[], None] = lambda: None
        self._events: deque[Event] = deque()
        self._last: deque[Event] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._sockets: dict[
            int, tuple[socket.socket, bytearray, Callable[[bytes], Event], Ended]
        ] = {}

    def put(self, event: Event) -> None:
        self._events.append(event)
        os.eventfd_write(self._bell, 1)

    def put_last(self, event: Event) -> None:
        """As `put`, but behind all that has come to the sockets by now."""
        self._last.append(event)
        os.eventfd_write(self._bell, 1)

    def listen(
        self,
        channel: socket.socket,
        read: Callable[[bytes], Event],
        ended: Ended = lambda cause: None,
    ) -> None:
        """Turn every line of this socket into an event with `read`, until the socket ends or `read` raises.

        The socket is closed then, and `ended` is called with the cause, in the thread that reads.
        """
        self._sockets[channel.fileno()] = (channel, bytearray(), read, ended)
        self._epoll.register(channel, select.EPOLLIN)

    def get(self, timeout: float) -> Event | None:
        """The next event; None if none comes within `timeout` seconds."""
        end = time.monotonic() + min(timeout, LONGEST_S)
        while not self._events:
            if not self._look(max(0.0, end - time.monotonic())):
                break
        self.awake()
        return self._events.popleft() if self._events else None

    def waiting(self, most: int) -> list[Event]:
        """The events that are there already, at most this many."""
        if len(self._events) < most:
            self._look(0.0)
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    def _look(self, timeout: float) -> bool:
        """Read what has come, within `timeout` seconds; whether anything has."""
        last = len(self._last)
        ready = self._epoll.poll(0.0 if last else timeout)
        for file, _ in ready:
            if file == self._bell:
                with suppress(BlockingIOError):
                    os.eventfd_read(file)
            else:
                self._read(file)
        self._events.extend([self._last.popleft() for _ in range(last)])
        return bool(ready or last)

    def _read(self, file: int) -> None:
        channel, buffer, read, ended = self._sockets[file]
        try:
            data = channel.recv(READ_BYTES, socket.MSG_DONTWAIT)
            if not data:
                raise ConnectionError("its channel has ended")
            *lines, rest = (buffer + data).split(b"\n")
            self._events.extend([read(bytes(line)) for line in lines])
            if len(rest) > MOST_LINE_BYTES:
                raise ValueError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
            buffer[:] = rest
            return
        except BlockingIOError:
            return
        except OSError as error:
            cause = str(error)
        except Exception as error:  # whatever it is about the line, the others are still heard
            cause = f"its channel sent what is no message: {type(error).__name__}: {error}"
        del self._sockets[file]
        with suppress(OSError):
            self._epoll.unregister(file)
        channel.close()
        ended(cause)
