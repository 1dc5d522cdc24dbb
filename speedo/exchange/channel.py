"""Sends turns to workers on the master's machine over a unix socket, in a tenth of the time of a Ray actor call.

`bench/messages.py` has the figures. A message is a line of JSON: a list with the name of its class and its values,
which takes a third of the time of an object with names. The socket is in the run's private folder
(mode 0700), so only the master's user can connect. A worker serves its channel in one long actor call; if the worker
dies, Ray reports that as the end of the call.

The driver's own thread reads all channels, in its `EventQueue`: with a thread per socket every message would be handed
over between two threads, which costs a tenth of a millisecond.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from speedo.errors import NotFiniteError, TeamBrokenError
from speedo.exchange.core_affinity import Draw, DriverCore, DriverThread
from speedo.messages import (
    NO_RESULTS,
    NO_TUNING,
    Kind,
    OwnResults,
    Pause,
    Refused,
    SaveState,
    StateSaved,
    Team,
    Train,
    Trained,
    Tuning,
)
from speedo.storage.meaning import passes
from speedo.system.json_lines import line_of, values_of

SOCKET: Final = "turns"
CONNECT_S: Final = 10.0
SEND_S: Final = 5.0  # a message fits the socket's buffer, unless the other end takes nothing at all
AGAIN_S: Final = 0.2
BACKLOG: Final = 128
MOST_GREETING: Final = 100  # bytes
READ_BYTES: Final = 1 << 16
LONGEST_S: Final = 3600.0  # that an event is waited for
MOST_LINE_BYTES: Final = 16 << 20

Event = TypeVar("Event")
Ended = Callable[[str], None]  # is told why

Answer = Trained | Refused | StateSaved | Pause
Message = Train | SaveState | Answer | DriverThread
_KINDS: Final = {
    kind.__name__: kind
    for kind in (Train, SaveState, Trained, Refused, StateSaved, Pause, DriverThread)
}
_FIELDS: Final = {name: [one.name for one in fields(kind)] for name, kind in _KINDS.items()}
_VALUES: Final = {name: attrgetter(*names) for name, names in _FIELDS.items()}


def _team(values: dict[str, Any] | None) -> Team | None:
    if values is None:
        return None
    members, spread = (tuple(map(tuple, values.pop(name))) for name in ("members", "spread"))
    return Team(members=members, spread=spread, **values)


# How to make the value of a field from what JSON has for it. No results and no tuning are null, which is faster.
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "payload": Kind,
    "own": lambda values: OwnResults(**values) if values else NO_RESULTS,
    "tuning": lambda values: Tuning(**values) if values else NO_TUNING,
    "team": _team,
    "loss": lambda value: math.nan if value is None else value,
    "losses": lambda values: tuple(math.nan if one is None else one for one in values),
    "records": lambda values: tuple(map(tuple, values)),
}
_TO_READ: Final = {
    name: [(at, _READ[field]) for at, field in enumerate(names) if field in _READ]
    for name, names in _FIELDS.items()
}


def pack(message: Message) -> bytes:
    """A message as a line of JSON."""
    name = type(message).__name__
    values: Any = _VALUES[name](message)
    if name == "Train":
        values = [None if one is NO_RESULTS or one is NO_TUNING else one for one in values]
    return line_of([name, *values])


def unpack(line: bytes) -> Message:
    """Raises `ValueError` or `TypeError` for anything that is no message.

    A loss of NaN or infinity, for which JSON has no word, arrives as NaN.
    """
    name, *values = values_of(line)
    try:
        for at, read in _TO_READ[name]:
            values[at] = read(values[at])
    except (LookupError, AttributeError):
        raise ValueError("no message of a channel") from None
    if len(values) != len(_FIELDS[name]):
        raise ValueError(f"{len(values)} values of {name}")
    message: Message = _KINDS[name](*values)
    return message


def refusal(command: Train, error: BaseException) -> Refused:
    """The message for a turn that raised; the store, a damaged center and its team are not the worker's fault."""
    passing = isinstance(error, TeamBrokenError) or passes(error)
    blame = isinstance(error, NotFiniteError) or not passing
    return Refused(command.worker, command.incarnation, command.ticket, first_line(error), blame)


def first_line(error: BaseException) -> str:
    """An error as one sentence."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


class WorkerChannel:
    """The worker's end: yields commands until the master closes it or dies."""

    _draw: Draw | None = None

    def __init__(self, folder: str, worker: int, incarnation: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            limit_sending(self._socket, CONNECT_S)
            self._socket.connect(f"{folder}/{SOCKET}")
            self._socket.sendall(json.dumps([worker, incarnation]).encode() + b"\n")
            limit_sending(self._socket, 0)
        except OSError:
            self._socket.close()
            raise
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def commands(self) -> Iterator[Train | SaveState]:
        for line in self._lines():
            message = unpack(line)
            if isinstance(message, DriverThread):
                self._draw = Draw(message, self._socket)
                continue
            assert isinstance(message, (Train, SaveState))
            yield message

    def serve(
        self, turn: Callable[[Train], Trained], save: Callable[[SaveState], StateSaved]
    ) -> None:
        """Carry out one command after another, until the master closes the channel."""
        for command in self.commands():
            if isinstance(command, Train):
                try:
                    self.answer(turn(command), waits=True)
                except Exception as error:
                    self.answer(refusal(command, error))
            else:
                self.answer(save(command))

    def _lines(self) -> Iterator[bytes]:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        rest = b""
        with suppress(ConnectionError):
            while True:
                # Who waits in `recv` is woken for nothing as well, once the master has taken our answer out.
                ready.poll()
                data = self._socket.recv(READ_BYTES)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from lines

    def answer(self, message: Answer, *, waits: bool = False) -> None:
        """Answer the last command. A worker that `waits` for the next one can offer its core until that comes."""
        line = pack(message)
        if waits and self._draw is not None:
            self._draw()
        with self._lock, suppress(ConnectionError):  # the end of the commands comes next
            self._socket.sendall(line)


class EventQueue(Generic[Event]):
    """The driver's events: `put` and `listen` may be called from every thread, `get` and `waiting` from one.

    `awake` is called by that thread after each `get`. If a socket ends, breaks or sends something that is no message,
    its listener is called with the cause; otherwise the loss would not be noticed.
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


class Channels:
    """The master's end of all channels; answers go to `events`, and workers may move the thread that reads them.

    `ended(worker, incarnation, cause)` is notified of a channel that gives no more answers, also if it was `close`d.
    """

    def __init__(
        self,
        folder: Path,
        events: EventQueue[Any],
        ended: Callable[[int, int, str], None] = lambda worker, incarnation, cause: None,
    ) -> None:
        self.folder, self._events, self._ended = str(folder), events, ended
        self._core = DriverCore()
        events.awake = self._core.awake
        self._open: dict[tuple[int, int], socket.socket] = {}
        self._told: dict[tuple[int, int], DriverThread] = {}
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{SOCKET}")  # a former master's
        self._listener.bind(f"{folder}/{SOCKET}")
        self._listener.listen(BACKLOG)
        threading.Thread(target=self._accept, name="channels", daemon=True).start()

    def wait_for(
        self,
        worker: int,
        incarnation: int,
        timeout_s: float = CONNECT_S,
        *,
        gone: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Whether this worker's channel opens in time; `gone`, called at every `look_again`, ends the wait."""
        key = (worker, incarnation)
        with self._changed:
            self._changed.wait_for(lambda: key in self._open or gone(), timeout_s)
            return key in self._open

    def look_again(self) -> None:
        """Check again whether the workers that are waited for still live."""
        with self._changed:
            self._changed.notify_all()

    def send(self, command: Train | SaveState) -> bool:
        """Whether this worker has a channel. A broken one loses the command: its worker's end is being reported."""
        key = (command.worker, command.incarnation)
        channel = self._open.get(key)
        if channel is None:
            return False
        line, driver = pack(command), self._core.for_workers(len(self._open))
        if self._told.get(key) is not driver:
            self._told[key] = driver
            line = pack(driver) + line
        with suppress(OSError):
            channel.sendall(line)
        return True

    def close(self, worker: int, incarnation: int) -> None:
        """Send no more commands; the present one is still answered."""
        self._told.pop((worker, incarnation), None)
        channel = self._open.pop((worker, incarnation), None)
        if channel is not None:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
                greeter = threading.Thread(target=self._greet, args=(channel,), daemon=True)
                greeter.start()
            except (OSError, RuntimeError):  # no free file or thread now: other workers will come
                if self._listener.fileno() < 0:
                    return
                time.sleep(AGAIN_S)

    def _greet(self, channel: socket.socket) -> None:
        """Read the first line, with which a worker identifies itself."""
        try:
            channel.settimeout(CONNECT_S)
            with channel.makefile("rb") as lines:
                worker, incarnation = map(int, json.loads(lines.readline(MOST_GREETING)))
            channel.settimeout(None)
            limit_sending(channel, SEND_S)  # reading is never waited for
            self._events.listen(channel, _answer, partial(self._ended, worker, incarnation))
        except (OSError, ValueError, TypeError):  # its worker counts as lost after `CONNECT_S`
            channel.close()
            return
        with self._changed:
            self._open[worker, incarnation] = channel
            self._changed.notify_all()


def _answer(line: bytes) -> Answer:
    message = unpack(line)
    if not isinstance(message, (Trained, Refused, StateSaved, Pause)):
        raise ValueError("a worker sends answers")
    return message


def limit_sending(channel: socket.socket, seconds: float) -> None:
    """Raise `OSError` from a call that connects or sends, and takes longer; 0 is no limit. See SO_SNDTIMEO."""
    parts = int(seconds), int(seconds % 1 * 1e6)
    timeval = b"".join(part.to_bytes(8, sys.byteorder) for part in parts)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
