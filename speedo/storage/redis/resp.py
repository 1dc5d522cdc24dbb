"""Redis's wire protocol (RESP2) on a connected socket, to and from the caller's memory.

Commands are queued and sent together; large parts are sent without a copy. Replies come in the order of the commands.
`pending` counts the replies that have not been read. A stream with pending replies must be closed, because its next
reply would be that of an earlier command.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

BIG_BYTES: Final = 16 * 1024
"""Parts above this are sent apart instead of being joined; also the size of the reading buffer."""
MAX_REPLY_BYTES: Final = 64 << 20
"""The longest bulk that `reply` takes memory for; longer ones are read with `fill`."""


class ReplyError(Exception):
    """The server refused a command; the text is the server's, beginning with a code such as `OOM`."""

    @property
    def code(self) -> str:
        """The first word."""
        return str(self).split(" ", 1)[0]


class ProtocolError(Exception):
    """The bytes received are not RESP2: not a Redis server, or a stream out of step."""


Reply = bytes | int | None | ReplyError | list["Reply"]


def command(*arguments: bytes | int) -> bytes:
    """One command as bytes."""
    texts = [a if isinstance(a, bytes) else b"%d" % a for a in arguments]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(t), t) for t in texts)


def set_command(
    key: bytes, value: Sequence[bytes | memoryview], options: Sequence[bytes | int] = ()
) -> list[bytes | memoryview]:
    """SET as parts; those of `value` are not copied."""
    start = command(b"SET", key)[4:]  # without "*2\r\n": the count follows from the options
    size = sum(len(part) for part in value)
    tail = command(*options)
    tail = tail[tail.index(b"\n") + 1 :]
    return [b"*%d\r\n%b$%d\r\n" % (3 + len(options), start, size), *value, b"\r\n" + tail]


class RespStream:
    """Sends commands and reads replies.

    Raises `TimeoutError` when the time given to `start` is over or nothing moved for `stall_s`
    seconds, other `OSError` when the connection broke, `ReplyError` for a refusal, `ProtocolError`
    for bytes that are not RESP2.
    """

    def __init__(self, sock: socket.socket, *, stall_s: float) -> None:
        self.pending = 0
        self._socket = sock
        self._stall_s = stall_s
        self._end = time.monotonic() + stall_s
        self._unsent: list[bytes | memoryview] = []
        self._buffer = memoryview(bytearray(BIG_BYTES))
        self._low = self._high = 0
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def start(self, limit_s: float) -> None:
        """From now on the exchange may take `limit_s` seconds."""
        self._end = time.monotonic() + limit_s

    def is_quiet(self) -> bool:
        """Whether there is nothing to read: neither the end of the connection nor an unread reply."""
        if self.pending or self._low != self._high:
            return False
        if not isinstance(self._socket, ssl.SSLSocket):
            return not self._poll.poll(0)
        if self._socket.pending():
            return False
        if not self._poll.poll(0):
            return True
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)  # what waits may be a message of TLS's own
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        return False

    def queue(self, *parts: bytes | memoryview, replies: int = 1) -> None:
        """Queue these parts of commands; they are sent when the next reply is read, or before."""
        self.pending += replies
        for part in parts:
            if len(part) > BIG_BYTES:
                self.flush()
                self._send(part)
            else:
                self._unsent.append(part)

    def ask(self, *arguments: bytes | int) -> Reply:
        """One command and its reply."""
        self.queue(command(*arguments))
        return self.reply()

    def reply(self) -> Reply:
        """The next reply as a whole; inside an array a refusal is a value."""
        self.flush()
        value = self._value()
        self.pending -= 1
        if isinstance(value, ReplyError):
            raise value
        return value

    def parting_refusal(self) -> ReplyError | None:
        """The refusal that the server sent before it closed the connection, if any."""
        with suppress(OSError, ProtocolError):
            value = self._value()
            return value if isinstance(value, ReplyError) else None
        return None

    def begin_bulk(self) -> int | None:
        """Length in bytes of the next reply, which the caller reads with `fill` and `end_bulk`.

        None, and nothing to read, if the key does not exist.
        """
        self.flush()
        line = self._line()
        if line[:1] == b"-":
            self.pending -= 1
            raise ReplyError(line[1:].decode(errors="replace"))
        if line[:1] != b"$":
            raise ProtocolError(f"a string was expected, {line[:20]!r} came")
        if line == b"$-1":
            self.pending -= 1
            return None
        return _number(line)

    def fill(self, into: memoryview) -> None:
        """Read exactly as many bytes as `into` has."""
        ready = min(len(into), self._high - self._low)
        into[:ready] = self._buffer[self._low : self._low + ready]
        self._low += ready
        while ready < len(into):
            ready += self._receive(into[ready:])

    def take(self, count: int) -> bytes:
        """Read `count` bytes into new memory."""
        data = bytearray(count)
        self.fill(memoryview(data))
        return bytes(data)

    def end_bulk(self) -> None:
        """Read the end of a bulk."""
        if self._line():
            raise ProtocolError("a string is longer than it said")
        self.pending -= 1

    def _value(self) -> Reply:
        line = self._line()
        kind = line[:1]
        if kind == b"+":
            return line[1:]
        if kind == b"-":
            return ReplyError(line[1:].decode(errors="replace"))
        if kind == b":":
            return _number(line)
        if line in (b"$-1", b"*-1"):
            return None
        if kind == b"$":
            count = _number(line)
            if not 0 <= count <= MAX_REPLY_BYTES:
                raise ProtocolError(
                    f"a reply of {count} bytes, at most {MAX_REPLY_BYTES} were expected"
                )
            data = self.take(count)
            if self._line():
                raise ProtocolError("a string is longer than it said")
            return data
        if kind == b"*":
            return [self._value() for _ in range(_number(line))]
        raise ProtocolError(f"{line[:20]!r} begins no reply")

    def _line(self) -> bytes:
        while True:
            text = bytes(self._buffer[self._low : self._high])
            end = text.find(b"\r\n")
            if end >= 0:
                self._low += end + 2
                return text[:end]
            if len(text) == len(self._buffer):
                raise ProtocolError("a line without an end")
            self._buffer[: len(text)] = text
            self._low, self._high = 0, len(text)
            self._high += self._receive(self._buffer[self._high :])

    def _receive(self, into: memoryview) -> int:
        self._set_timeout()
        count = self._socket.recv_into(into)
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

    def flush(self) -> None:
        """Send what is queued."""
        if self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._send(data)

    def _send(self, data: bytes | memoryview) -> None:
        self._set_timeout()
        self._socket.sendall(data)

    def _set_timeout(self) -> None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call's time is over")
        self._socket.settimeout(min(left, self._stall_s))


def _number(line: bytes) -> int:
    try:
        return int(line[1:])
    except ValueError:
        raise ProtocolError(f"{line[:20]!r} holds no number") from None
