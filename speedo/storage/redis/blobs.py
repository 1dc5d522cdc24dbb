"""The format of a blob in Redis: a record under its key, and chunks for the rest of a long body.

The record is a prefix of fixed length, the head, and the first chunk of the body. The other chunks have the keys
`{key}#{write id}:{number}`. Every write has a new id and stores its record last, so a reader with the record of a
write finds only the chunks of that same write. Chunks have an expiry until their record is stored, so those of a
killed writer disappear. Record and chunks are deleted in one transaction, so that no chunk remains if the reply is
lost. With a guard (`speedo.storage.conditional`) the record is stored only if the run still has this master, together
with the journal's entry.
"""

from __future__ import annotations

import secrets
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from speedo.errors import (
    FencedError,
    MissingKeyError,
    PayloadError,
    StoreError,
    StoreUnavailableError,
)
from speedo.storage import keys
from speedo.storage.base import Arrived
from speedo.storage.conditional import Decide, Guard
from speedo.storage.keys import MAX_HEAD_BYTES
from speedo.storage.redis.conditional import queue_smalls, unwatch, watch
from speedo.storage.redis.resp import (
    ProtocolError,
    Reply,
    ReplyError,
    RespStream,
    command,
    set_command,
)
from speedo.system.failpoints import reached

SENT_BYTES: Final = 16 << 20
"""How much is sent before its replies are read."""
ASKED_BYTES: Final = 4 << 20
"""How much is asked for ahead. The server copies all of that before it sends any, out of its cache if it is more."""
PIECE_BYTES: Final = 256 << 10
"""How much is read before progress is reported."""
PAGE_KEYS: Final = 1000
MAX_CHUNKS: Final = 1 << 16
"""More than any model needs; a writer of records must not make their reader list more."""
_PREFIX: Final = struct.Struct("<4sHHIIQ8s")
_MAGIC: Final = b"SPB1"


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the prefix; all lengths in bytes."""

    write_id: bytes
    head_bytes: int
    body_bytes: int
    chunk_bytes: int

    @property
    def is_sound(self) -> bool:
        """Whether the lengths are plausible, so that a reader may allocate memory for them."""
        return (
            self.head_bytes <= MAX_HEAD_BYTES
            and self.chunk_bytes > 0
            and self.body_bytes <= self.chunk_bytes * MAX_CHUNKS
        )

    @property
    def inline_bytes(self) -> int:
        """How much of the body the record itself holds."""
        return min(self.body_bytes, self.chunk_bytes)

    @property
    def value_bytes(self) -> int:
        """Length of the record as a whole."""
        return _PREFIX.size + self.head_bytes + self.inline_bytes

    def chunks(self, key: bytes) -> list[tuple[bytes, slice]]:
        """Key, and place in the body, of every chunk outside the record."""
        stem, size = b"%b#%b:" % (key, self.write_id.hex().encode()), self.chunk_bytes
        starts = range(size, self.body_bytes, size)
        return [
            (b"%b%d" % (stem, number), slice(start, min(start + size, self.body_bytes)))
            for number, start in enumerate(starts)
        ]

    def pack(self) -> bytes:
        """The prefix as bytes."""
        sizes = self.head_bytes, 0, self.inline_bytes, self.chunk_bytes, self.body_bytes
        return _PREFIX.pack(_MAGIC, *sizes, self.write_id)

    @classmethod
    def unpack(cls, data: bytes) -> Record | None:
        """The record with this prefix; None if the bytes are not one of ours."""
        if len(data) != _PREFIX.size:
            return None
        magic, head_bytes, _, inline_bytes, chunk_bytes, body_bytes, write_id = _PREFIX.unpack(data)
        record = cls(write_id, head_bytes, body_bytes, chunk_bytes)
        ours = magic == _MAGIC and inline_bytes == record.inline_bytes
        return record if ours and record.is_sound else None


class _NotCarriedOut(Exception):
    """A transaction whose watched keys were written before it."""


class RedisBlobs:
    """Blobs over one stream, for one exchange; `address` is used in messages."""

    def __init__(self, stream: RespStream, address: str) -> None:
        self._stream = stream
        self._address = address

    def write(
        self,
        key: str,
        head: bytes,
        body: memoryview,
        *,
        chunk_bytes: int,
        expire_ms: int | None,
        orphan_ms: int,
        guard: Guard | None = None,
    ) -> None:
        """Chunks, then the record, which gives them its own expiry instead of `orphan_ms`."""
        stream, name = self._stream, key.encode()
        beside = {} if guard is None else guard.beside(key)
        if guard is not None:
            self._require(guard, tuple(beside))
        record = Record(secrets.token_bytes(8), len(head), len(body), chunk_bytes)
        if not record.is_sound:
            raise StoreError(f"{len(body)} bytes make too many chunks of {chunk_bytes}: use longer")
        chunks = record.chunks(name)
        former = stream.ask(b"GETRANGE", name, 0, _PREFIX.size - 1) if chunks else None
        replaced = _leftovers(former, name)
        try:
            self._write_chunks(chunks, body, _ahead(SENT_BYTES, chunk_bytes), orphan_ms)
        except ReplyError:
            if guard is not None:
                unwatch(stream)
            raise
        reached("worker-pushing")
        stream.queue(command(b"MULTI"), command(b"GETRANGE", name, 0, _PREFIX.size - 1), replies=2)
        value = (record.pack(), head, body[: record.inline_bytes])
        stream.queue(*set_command(name, value, () if expire_ms is None else (b"PX", expire_ms)))
        for chunk, _ in chunks:  # after the record, so that none expires before it
            stream.queue(
                command(b"PERSIST", chunk)
                if expire_ms is None
                else command(b"PEXPIRE", chunk, expire_ms)
            )
        if replaced:
            stream.queue(command(b"UNLINK", *replaced))
        others = queue_smalls(stream, beside)
        stream.queue(command(b"EXEC"))
        try:
            former, _, *kept = self._results(3 + len(chunks) + bool(replaced) + others)
        except _NotCarriedOut:
            self._unlink([chunk for chunk, _ in chunks])
            raise StoreUnavailableError(
                f"{self._address} has not stored {key}: another write came between"
            ) from None
        if guard is not None:
            guard.written(beside)
        self._unlink_others(_leftovers(former, name), replaced)
        if any(answer != 1 for answer in kept[: len(chunks)]):
            self._unlink([name, *(chunk for chunk, _ in chunks)])
            raise StoreError(
                f"{self._address} lost chunks of {key} while it was written: "
                "set its maxmemory-policy to noeviction"
            )

    def _require(self, guard: Guard, beside: tuple[str, ...]) -> None:
        """The guard allows a write now, and the next transaction depends on it."""
        own = keys.epoch(guard.run)
        try:
            guard.require(watch(self._stream, (own,), beside)[own])
        except (FencedError, StoreError):
            unwatch(self._stream)
            raise

    def read_head(self, key: str) -> tuple[bytes, int]:
        """Head, and length of the body in bytes."""
        last = _PREFIX.size + MAX_HEAD_BYTES - 1
        data = self._stream.ask(b"GETRANGE", key.encode(), 0, last)
        if not isinstance(data, bytes) or not data:
            raise MissingKeyError(f"{key} is not in {self._address}")
        record = self._known(key, data[: _PREFIX.size])
        return data[_PREFIX.size : _PREFIX.size + record.head_bytes], record.body_bytes

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        """Fill `into`; raising leaves replies pending on the stream."""
        stream = self._stream
        if arrived is not None:
            arrived(0)
        stream.queue(command(b"GET", key.encode()))
        length = stream.begin_bulk()
        if length is None:
            raise MissingKeyError(f"{key} is not in {self._address}")
        record = self._known(key, stream.take(min(length, _PREFIX.size)))
        if length != record.value_bytes:
            raise PayloadError(f"{key} in {self._address} is damaged: {length} bytes for {record}")
        if record.body_bytes != len(into):
            raise PayloadError(
                f"{key} has a body of {record.body_bytes} bytes, {len(into)} were expected"
            )
        head = stream.take(record.head_bytes)
        chunks, ahead = record.chunks(key.encode()), _ahead(ASKED_BYTES, record.chunk_bytes)
        for chunk, _ in chunks[:ahead]:
            stream.queue(command(b"GET", chunk))
        stream.flush()
        self._fill(into, slice(0, record.inline_bytes), arrived)
        stream.end_bulk()
        for number, (_, place) in enumerate(chunks):
            if stream.begin_bulk() != place.stop - place.start:
                raise MissingKeyError(
                    f"{key} in {self._address} was replaced, deleted or expired while it was read"
                )
            if number + ahead < len(chunks):
                stream.queue(command(b"GET", chunks[number + ahead][0]))
                stream.flush()
            self._fill(into, place, arrived)
            stream.end_bulk()
        return head

    def delete(self, names: list[bytes]) -> None:
        """Remove records and the chunks that belong to them."""
        stream = self._stream
        for name in names:
            stream.queue(command(b"GETRANGE", name, 0, _PREFIX.size - 1))
        chunks = [chunk for name in names for chunk in _leftovers(stream.reply(), name)]
        stream.queue(command(b"MULTI"))
        for name in names:
            stream.queue(command(b"GETRANGE", name, 0, _PREFIX.size - 1))
        stream.queue(command(b"UNLINK", *names, *chunks), command(b"EXEC"), replies=2)
        try:
            formers = self._results(2 + len(names))
        except ReplyError as error:
            if error.code not in ("OOM", "EXECABORT"):
                raise
            # A server that is full takes no transaction, but room can be made without one.
            stream.ask(b"UNLINK", *names, *chunks)
            return
        found = zip(names, formers, strict=False)  # the last is how many went
        self._unlink_others([c for name, former in found for c in _leftovers(former, name)], chunks)

    def change(self, names: tuple[str, ...], decide: Decide) -> bool:
        """One try of `Conditional.change`: whether it was carried out."""
        found = watch(self._stream, names)
        try:
            wanted = decide(found)
        except (FencedError, StoreError):
            unwatch(self._stream)
            raise
        if not wanted:
            unwatch(self._stream)
            return True
        self._stream.queue(command(b"MULTI"))
        count = queue_smalls(self._stream, wanted)
        self._stream.queue(command(b"EXEC"))
        try:
            self._results(1 + count)
        except _NotCarriedOut:
            return False
        return True

    def page_of_keys(self, cursor: bytes, prefix: str) -> tuple[bytes, list[str]]:
        """The next cursor (`b"0"` after the last page) and some keys; one may come twice."""
        matching = keys.pattern(prefix).encode()
        answer = self._stream.ask(b"SCAN", cursor, b"MATCH", matching, b"COUNT", PAGE_KEYS)
        if isinstance(answer, list) and len(answer) == 2:
            following, names = answer
            if isinstance(following, bytes) and isinstance(names, list):
                texts = [n.decode(errors="replace") for n in names if isinstance(n, bytes)]
                return following, [text for text in texts if "#" not in text]
        raise ProtocolError("SCAN answered with something else than a cursor and keys")

    def _fill(self, into: memoryview, place: slice, arrived: Arrived | None) -> None:
        """Read in parts that are still in the core's cache when `arrived` is called."""
        if arrived is None:
            self._stream.fill(into[place])
            return
        for start in range(place.start, place.stop, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, place.stop)
            self._stream.fill(into[start:stop])
            arrived(stop)

    def _write_chunks(
        self, chunks: list[tuple[bytes, slice]], body: memoryview, ahead: int, life_ms: int
    ) -> None:
        stream = self._stream
        try:
            for chunk, place in chunks:
                stream.queue(*set_command(chunk, (body[place],), (b"PX", life_ms)))
                if stream.pending > ahead:
                    stream.reply()
            while stream.pending:
                stream.reply()
        except ReplyError:
            while stream.pending:
                with suppress(ReplyError):
                    stream.reply()
            self._unlink([chunk for chunk, _ in chunks])
            raise

    def _known(self, key: str, prefix: bytes) -> Record:
        record = Record.unpack(prefix)
        if record is None:
            raise PayloadError(
                f"{key} in {self._address} is not of this version of SpeeDO: "
                "use another run name or database, or delete the key"
            )
        return record

    def _unlink_others(self, found: list[bytes], gone: list[bytes]) -> None:
        """Chunks of a record that another user put in place meanwhile."""
        if found != gone:
            self._unlink(list(set(found) - set(gone)))

    def _unlink(self, names: list[bytes]) -> None:
        if names:
            self._stream.ask(b"UNLINK", *names)

    def _results(self, before: int) -> list[Reply]:
        """The results of a transaction, after the `before` replies of MULTI and what was queued.

        Raises `_NotCarriedOut`.
        """
        refused: ReplyError | None = None
        answers: Reply = None
        for _ in range(before + 1):
            try:
                answers = self._stream.reply()
            except ReplyError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        if answers is None:
            raise _NotCarriedOut
        if not isinstance(answers, list) or not answers:
            raise ProtocolError("a transaction answered with something else than its results")
        for answer in answers:
            if isinstance(answer, ReplyError):
                raise answer
        return answers


def _ahead(nbytes: int, chunk_bytes: int) -> int:
    """How many chunks may be in flight at once."""
    return max(2, min(nbytes // chunk_bytes, 256))


def _leftovers(former: Reply, name: bytes) -> list[bytes]:
    """The chunks of a record that was replaced; `former` is its prefix."""
    record = Record.unpack(former) if isinstance(former, bytes) else None
    return [] if record is None else [chunk for chunk, _ in record.chunks(name)]
