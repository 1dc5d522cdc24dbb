"""One call of the leaders of hosts around their ring: what is said, and the pieces of a vector.

Every call begins with what each leader says: the call's words, and the rows that it brings. That goes around the ring,
so all know that all have called the same. A vector goes in pieces, whose bounds and owners follow from its size alone.
A piece begins at the leader after its owner; each leader on the way adds its own values; the owner, which is the last,
has the sum, and it goes around once more. So the order of a sum depends on nothing but the place in the vector, all
hosts have the same bits, and each link carries 2 (n - 1) / n of the vector. Pieces do not wait for each other: each
goes on once it has come and is ready here, in that order. So a link has something to carry to the end; with those
before that are already on their way the last ones would have the ring for themselves.

Each message has a checksum of its header and body (`speedo.exchange.host_links.LinkEnd`). What came is used, or added
to, only if that is right; otherwise the call ends on all hosts.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, NoReturn

import numpy as np

from speedo.errors import ConfigError, TeamBrokenError
from speedo.exchange.collective import SAME_CALLS, Array
from speedo.exchange.host_links import HostLinks, LinkEnd
from speedo.system.failpoints import reached

PIECE: Final = 1 << 19  # bytes at most; with half as much the processor has more to do
EACH: Final = 4  # pieces that begin at each leader, if they are not too small: else little overlaps
LEAST_PIECE: Final = 1 << 15
# Bytes for which a reader is woken; for each packet the processor has more to do
LOT: Final = 1 << 17
LOOK_EVERY_S: Final = 0.5  # for members that are gone; who waits says so to the next as often
GRACE: Final = 1.5  # times the limit; until then those who know better say who is slow
SLOWEST_BYTES_PER_S: Final = 4e6  # a third of 100 Mbit/s
MOST_WORDS: Final = 4000  # bytes
HEADER: Final = struct.Struct("<BBHIQ")  # what it is, asks, host, piece, bytes that follow
CHECK: Final = struct.Struct("<Q")  # behind the header: the checksum
SAYS, ROWS, PART, WHOLE, WAITS = range(1, 6)
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NOTHING: Final = memoryview(b"")


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a contiguous array."""
    return memoryview(array.data).cast("B") if array.nbytes else _NOTHING


def bounds_of(size: int, itemsize: int, hosts: int) -> list[int]:
    """Where the pieces of a vector begin, and its end: a multiple of `hosts` pieces, of which some may be empty."""
    nbytes = size * itemsize
    pieces = max(1, -(-nbytes // PIECE), min(EACH * hosts, nbytes // LEAST_PIECE))
    count = -(-pieces // hosts) * hosts if size else 0
    return [size * piece // count for piece in range(count + 1)] if count else [0]


def limit_s(patience_s: float, nbytes: int) -> float:
    """Seconds after which a call that carries about so many bytes on a link is too slow."""
    return patience_s + nbytes / SLOWEST_BYTES_PER_S


class Call:
    """One call of leader `own` of `hosts`.

    Without `combine`, `flat` is filled with that of `root`. `rows` are what each host brings, by host. `ready` gets the
    ranges of `flat` whose values are final here, in any order, each once. `lacks` counts those of each piece that are
    not ready; a piece is `given` once this host has added its values, and `done` once the result is here.
    """

    def __init__(
        self,
        words: str,
        asks: bool,
        own: int,
        hosts: int,
        flat: Array | None = None,
        combine: np.ufunc | None = None,
        root: int = 0,
        rows: Sequence[Array] = (),
    ) -> None:
        self.words = memoryview(words.encode()[:MOST_WORDS])
        self.asks = self.regroups = asks
        self.own, self.hosts, self.next = own, hosts, (own + 1) % hosts
        self.rows = [bytes_of(one) for one in rows] or [_NOTHING] * hosts
        self.flat = np.empty(0, np.uint8) if flat is None else flat
        self.combine, self._root = combine, root
        self.bounds = bounds_of(self.flat.size, self.flat.itemsize, hosts)
        brings = combine is not None or own == root
        lengths = [stop - start for start, stop in pairwise(self.bounds)]
        self.pieces = [piece for piece, length in enumerate(lengths) if length]
        self.lacks = lengths if brings else [0] * len(lengths)
        self.given, self.done = bytearray(len(lengths)), bytearray(len(lengths))
        self.ready: deque[tuple[int, int]] = deque()
        # An eventfd that is written to when something is ready, or there is a problem
        self.alarm = -1
        self.problem: BaseException | None = None
        self.changed: threading.Condition | None = None  # notified when a piece is done
        sums = [piece for piece in self.pieces if combine is not None]
        # What a leader says: its words, then its rows.
        self.says = (SAYS, ROWS) if any(map(len, self.rows)) else (SAYS,)
        self.to_hear = (hosts - 1) * len(self.says)
        self.to_read = sum(own != self.begins(piece) for piece in sums)
        self.to_read += sum(own != self.owner(piece) for piece in self.pieces)
        self.to_send = self.to_hear + sum(own != self.owner(piece) for piece in sums)
        self.to_send += sum(self.next != self.owner(piece) for piece in self.pieces)

    def owner(self, piece: int) -> int:
        """The leader that has the result first."""
        return self._root if self.combine is None else piece % self.hosts

    def begins(self, piece: int) -> int:
        """The leader whose values come first in the sum."""
        return (piece + 1) % self.hosts

    def part(self, piece: int) -> Array:
        return self.flat[self.bounds[piece] : self.bounds[piece + 1]]

    def pieces_of(self, start: int, stop: int) -> list[int]:
        """Those that have some of these values."""
        if start >= stop:
            return []
        near = range(bisect_right(self.bounds, start) - 1, bisect_right(self.bounds, stop - 1))
        return [piece for piece in near if len(self.part(piece))]

    def link_bytes(self) -> int:
        """About what a link carries."""
        return 2 * self.flat.nbytes + sum(map(len, self.rows))


NO_CALL: Final = Call("", asks=False, own=0, hosts=1)


class HostRing:
    """The ends of one leader: `prior`, from which it reads, and `after`, to which it writes.

    For one thread at a time. Raises `TeamBrokenError` if another leader does not do its part, `ConfigError` if it calls
    something else; then the ring is of no more use.
    """

    def __init__(
        self,
        links: HostLinks,
        prior: LinkEnd,
        after: LinkEnd,
        leaders: Sequence[int],
        patience_s: float,
    ) -> None:
        self._links, self._leaders, self.patience_s = links, leaders, patience_s
        self._from, self._to = prior, after
        self._prior, self._after = prior.socket, after.socket
        self._is_plain = not isinstance(self._after, ssl.SSLSocket)
        self._after_is_over = False
        self._lot = 1  # bytes for which a reader is woken
        self._header = bytearray(HEADER.size + CHECK.size)
        self._call = NO_CALL
        self._queue: deque[list[memoryview]] = deque()  # what is to be sent
        self._sending: list[memoryview] = []
        self._counts = True  # whether that is one of what the call has to send
        self._held: dict[int, Array] = {}  # parts of pieces that are not ready here
        self._spare: list[Array] = []
        self._heard = self._since = self._looked = 0.0

    def put_through(self, call: Call, gone: Callable[[], str]) -> None:
        """Take part in this call to its end. `gone` is asked now and then which member is gone."""
        self._call = call
        self._spare = [one for one in self._spare if one.dtype == call.flat.dtype]
        self._heard = self._since = self._looked = time.monotonic()
        if self._after_is_over:
            self._lost(self._links.next)
        for what, body in zip(call.says, (call.words, call.rows[call.own]), strict=False):
            self._pass_on(what, call.own, 0, body)
        reading = self._read_call()
        into = next(reading, None)
        while call.to_hear or call.to_read or call.to_send:
            if call.problem is not None:
                raise call.problem
            while call.ready:
                self._became_ready(*call.ready.popleft())
            moved = self._write()
            if into is not None and (count := self._read(into)):
                moved |= count == len(into) or not self._is_plain
                into = into[count:] or next(reading, None)
            if not moved:
                self._wait(into, gone)
        self._call = NO_CALL  # the vector is let go

    # ------------------------------------------------------------ what comes

    def _read_call(self) -> Iterator[memoryview]:
        """Yields what is to be filled next, until all of the call has come."""
        call, header = self._call, memoryview(self._header)
        room = PIECE // call.flat.itemsize + 1
        while call.to_hear or call.to_read:
            yield header
            what, asks, host, number, length = HEADER.unpack_from(header)
            if what == SAYS and (host, what) == self._awaited and length <= MOST_WORDS:
                words = memoryview(bytearray(length))
                yield from self._body(words)
                self._require_same(host, bytes(words))
                call.regroups |= bool(asks)
                self._is_heard(what, host, words, asks)
            elif what == ROWS and (host, what) == self._awaited and length == len(call.rows[host]):
                yield from self._body(call.rows[host])
                self._is_heard(what, host, call.rows[host], asks)
            elif what == WHOLE and self._fits(what, number, length):
                yield from self._body(bytes_of(call.part(number)))
                self._is_done(number)
                call.to_read -= 1
            elif what == PART and self._fits(what, number, length):
                part = self._spare.pop() if self._spare else np.empty(room, call.flat.dtype)
                yield from self._body(bytes_of(part)[:length])
                self._held[number] = part
                if not call.lacks[number]:
                    self._give(number)
                call.to_read -= 1
            elif what == WAITS and not length:
                yield from self._body(_NOTHING)
            else:
                self._is_damaged()

    def _body(self, room: memoryview) -> Iterator[memoryview]:
        """Yields `room` to be filled with what follows this header. Raises if any of it is not as it was sent."""
        if room:
            yield room
        header = memoryview(self._header)
        (checksum,) = CHECK.unpack_from(header, HEADER.size)
        if self._from.checksum(header[: HEADER.size], room) != checksum:
            self._is_damaged()

    @property
    def _awaited(self) -> tuple[int, int]:
        """The next one of whom it is to be heard, the leader before first, and what; nobody once all are."""
        call = self._call
        if not call.to_hear:
            return -1, 0
        parts = len(call.says)
        heard = (call.hosts - 1) * parts - call.to_hear
        return (call.own - 1 - heard // parts) % call.hosts, call.says[heard % parts]

    def _is_heard(self, what: int, host: int, body: memoryview, asks: int) -> None:
        self._call.to_hear -= 1
        if host != self._call.next:
            self._pass_on(what, host, 0, body, asks=asks)

    def _fits(self, what: int, piece: int, nbytes: int) -> bool:
        """Whether this message can be the next of the piece."""
        call = self._call
        is_early = call.to_hear == (call.hosts - 1) * len(call.says)
        if is_early or not nbytes or piece >= len(call.done) or call.done[piece]:
            return False
        if nbytes != call.part(piece).nbytes:
            return False
        if what == WHOLE:
            return bool(call.given[piece] or call.combine is None) and call.own != call.owner(piece)
        begins = call.combine is None or call.own == call.begins(piece)
        return not (begins or call.given[piece] or piece in self._held)

    def _require_same(self, host: int, words: bytes) -> None:
        call = self._call
        if words != call.words:
            self._links.why(host)  # it may be of a call that is broken
            ours, theirs = (str(one, errors="replace") for one in (call.words, words))
            raise ConfigError(
                f"worker {self._leaders[host]} calls {theirs}, worker {self._leaders[call.own]} calls {ours}: "
                f"{SAME_CALLS}"
            )

    def _is_damaged(self) -> NoReturn:
        sender, own = self._leaders[self._links.prior], self._leaders[self._call.own]
        raise TeamBrokenError(
            f"what worker {sender} sent to worker {own} came damaged, and is not used; if this comes again, check "
            "the network and the memory of both hosts"
        )

    # ------------------------------------------------------------ what goes on

    def _became_ready(self, start: int, stop: int) -> None:
        call = self._call
        for piece in call.pieces_of(start, stop):
            low, high = call.bounds[piece], call.bounds[piece + 1]
            call.lacks[piece] -= max(0, min(stop, high) - max(start, low))
            if not call.lacks[piece]:
                self._give(piece)
        self._since = time.monotonic()

    def _give(self, piece: int) -> None:
        """Add this host's values to what has come; the piece goes on."""
        call, own = self._call, self._call.part(piece)
        if call.combine is None:
            if call.own == call.owner(piece):
                self._is_done(piece)
            return
        if call.own != call.begins(piece):
            came = self._held.pop(piece, None)
            if came is None:
                return
            call.combine(came[: len(own)], own, out=own)
            self._spare.append(came)
        call.given[piece] = 1
        reached("ring-adds")
        if call.own == call.owner(piece):
            self._is_done(piece)
        else:
            self._pass_on(PART, call.own, piece, bytes_of(own))

    def _is_done(self, piece: int) -> None:
        call = self._call
        call.done[piece] = 1
        reached("ring-has")
        if call.next != call.owner(piece):
            self._pass_on(WHOLE, call.own, piece, bytes_of(call.part(piece)))
        if call.changed is not None:
            with call.changed:
                call.changed.notify_all()

    def _pass_on(
        self, what: int, host: int, number: int, body: memoryview, asks: int | None = None
    ) -> None:
        self._queue.append(self._message(what, host, number, body, asks))

    def _message(
        self, what: int, host: int, number: int, body: memoryview, asks: int | None = None
    ) -> list[memoryview]:
        """The next one that leaves; its checksum is made while the processor still has the body at hand."""
        asks = self._call.asks if asks is None else asks
        header = HEADER.pack(what, asks, host, number, len(body))
        header += CHECK.pack(self._to.checksum(header, body))
        return [one for one in (memoryview(header), body) if len(one)]

    # ------------------------------------------------------------ both ends

    def _read(self, into: memoryview) -> int:
        try:
            count = self._prior.recv_into(into)
        except _NOT_NOW:
            return 0
        except OSError:
            count = 0
        if not count:
            self._lost(self._links.prior)
        self._heard = time.monotonic()
        return count

    def _write(self) -> bool:
        """Whether more may be written at once."""
        if not self._sending:
            if not self._queue:
                return False
            self._sending, self._counts = self._queue.popleft(), True
        views = self._sending
        try:
            count = self._after.sendmsg(views) if self._is_plain else self._after.send(views[0])
        except _NOT_NOW:
            return False
        except OSError:
            self._next_is_over()
            return False
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views:
            views[0] = views[0][count:]
        else:
            self._call.to_send -= self._counts
        return not (views and self._is_plain)

    def _wait(self, into: memoryview | None, gone: Callable[[], str]) -> None:
        """Return once one of the ends may be ready. Raises if it takes too long."""
        ready = select.poll()
        if into is not None:
            ready.register(self._prior, select.POLLIN)
            lot = min(len(into), LOT) if self._is_plain else 1
            if lot != self._lot:
                self._lot = lot
                self._prior.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lot)
        if not self._after_is_over:
            ready.register(self._after, select.POLLIN | (select.POLLOUT if self._sending else 0))
        if self._call.alarm >= 0:
            ready.register(self._call.alarm, select.POLLIN)
        tick = min(LOOK_EVERY_S, self.patience_s / 4)
        for number, _ in ready.poll(1000 * tick):
            if number == self._call.alarm:
                os.eventfd_read(number)
            elif number == self._after.fileno():
                self._look_after()
        now = time.monotonic()
        if now - self._looked < tick:
            return
        self._looked = now
        if why := gone():
            raise TeamBrokenError(why)
        self._require_pace(now, reads=into is not None)
        if not (self._sending or self._queue or self._after_is_over):
            self._sending, self._counts = self._message(WAITS, 0, 0, _NOTHING), False

    def _require_pace(self, now: float, *, reads: bool) -> None:
        """Raise if somebody lets this call wait for too long: one that says nothing, else one that is slow."""
        call, patience_s = self._call, self.patience_s
        if reads and now - self._heard > patience_s:
            self._is_late(self._links.prior)
        if any(call.lacks):
            self._since = now
        limit = limit_s(patience_s, call.link_bytes())
        if now < self._since + limit:
            return
        unread = int.from_bytes(fcntl.ioctl(self._after, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        is_slow = bool(self._sending) or unread > len(self._header)
        if now < self._since + (1.0 if is_slow else GRACE) * limit:
            return
        if is_slow:
            own, after = self._leaders[call.own], self._leaders[call.next]
            raise TeamBrokenError(
                f"the way from worker {own} to worker {after} is too slow: {call.link_bytes() / 1e6:.1f} MB did not "
                f"pass within {limit:.1f} s"
            )
        self._is_late(self._awaited[0] if call.to_hear else self._links.prior)

    def _is_late(self, host: int) -> NoReturn:
        came = "does not go on" if not self._call.to_hear else "does not come"
        raise TeamBrokenError(f"worker {self._leaders[host]} {came} within {self.patience_s:g} s")

    def _look_after(self) -> None:
        """Nothing ever comes from the leader after this one, but the end."""
        with suppress(*_NOT_NOW):
            try:
                if self._after.recv(1):
                    raise TeamBrokenError(
                        f"worker {self._leaders[self._links.next]} answers, unasked"
                    )
            except _NOT_NOW:
                return
            except OSError:
                pass
            self._next_is_over()

    def _next_is_over(self) -> None:
        """The leader after this one may leave once it has all of this call."""
        self._after_is_over, self._sending = True, []
        if self._call.to_send:
            self._lost(self._links.next)

    def _lost(self, host: int) -> NoReturn:
        self._links.why(host)
        raise TeamBrokenError(f"worker {self._leaders[host]} has ended its connection")
