"""The flat float32 vector: the blobs in it, and its format outside the process.

Every exchange moves one vector: all parameter blobs of the net end to end in the net's own order, shared parameters
once. Outside the process a vector is a header of fixed length, little-endian, and the array, raw or encoded by
`speedo.exchange.codecs`. The header names kind, layout, worker and ticket, so a delta is never taken for weights.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from speedo.errors import PayloadError
from speedo.messages import Kind
from speedo.system.records import record

Vector = npt.NDArray[np.float32]

MAGIC: Final = b"SPDO"
FORMAT: Final = 1
# magic, format, kind, dtype, reserved, worker, incarnation, epoch, count, layout, version, ticket, checksum
_STRUCT: Final = struct.Struct("<4sBBBBIIIQQQQQ")
HEADER_BYTES: Final = _STRUCT.size
SQUARES: Final = struct.Struct("<d")  # behind the header of a vector that stays in one memory
# The dtype of raw values; each other codec declares its own (`speedo.exchange.codecs`).
FLOAT32: Final = 1


_KINDS: Final = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Blob:
    """One parameter blob. `statistic` marks BatchNorm's running sums: they are merged, but never
    pulled elastically and never sent through a lossy format (Caffe: layers/batch_norm_layer.cpp).

    `average` marks a statistic that is no sum but a moving average, as PyTorch's `running_mean`. It is merged by
    averaging in every mode (`speedo.sgd_modes.rules.average_into`), so a payload has its value, never its change.
    """

    name: str
    shape: tuple[int, ...]
    statistic: bool = False
    average: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The blobs of a net in the order in which the flat vector holds them."""

    blobs: tuple[Blob, ...]

    @cached_property
    def size(self) -> int:
        """Number of float32 values."""
        return sum(blob.size for blob in self.blobs)

    @property
    def nbytes(self) -> int:
        return 4 * self.size

    @cached_property
    def digest(self) -> int:
        """64 bits that two nets share only if names, shapes and order of their blobs agree."""
        text = ";".join(
            f"{b.name}:{','.join(map(str, b.shape))}:{b.statistic + 2 * b.average}"
            for b in self.blobs
        )
        return xxhash.xxh3_64_intdigest(text.encode())

    def slices(self) -> Iterator[tuple[Blob, slice]]:
        """Each blob with its slice of the flat vector."""
        start = 0
        for blob in self.blobs:
            yield blob, slice(start, start + blob.size)
            start += blob.size

    @cached_property
    def statistics(self) -> tuple[slice, ...]:
        """The slices of the BatchNorm statistics."""
        return tuple(place for blob, place in self.slices() if blob.statistic)

    @cached_property
    def averages(self) -> tuple[slice, ...]:
        """The slices of the moving averages; they are among the statistics."""
        return tuple(place for blob, place in self.slices() if blob.average)

    @cached_property
    def sums(self) -> tuple[slice, ...]:
        """The slices of the running sums, which are the other statistics."""
        return tuple(place for blob, place in self.slices() if blob.statistic and not blob.average)

    def zeros(self) -> Vector:
        return np.zeros(self.size, np.float32)


@record
class Header:
    """Describes the bytes after it. `worker`, `incarnation` and `ticket` are 0 for a center.

    `count` is the number of values in any encoding; `checksum` is that of the bytes as sent.
    """

    kind: Kind
    count: int
    layout: int
    version: int
    checksum: int
    worker: int = 0
    incarnation: int = 0
    ticket: int = 0
    epoch: int = 0
    dtype: int = FLOAT32

    def pack(self) -> bytes:
        return _STRUCT.pack(
            MAGIC, FORMAT, self.kind, self.dtype, 0, self.worker, self.incarnation, self.epoch,
            self.count, self.layout, self.version, self.ticket, self.checksum,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Raises `PayloadError` for anything that is not a header of this format."""
        if len(data) != HEADER_BYTES:
            raise PayloadError(f"a header has {HEADER_BYTES} bytes, this one {len(data)}", "length")
        magic, form, kind, dtype, _, worker, incarnation, epoch, *numbers = _STRUCT.unpack(data)
        count, layout, version, ticket, checksum = numbers
        if magic != MAGIC:
            raise PayloadError(
                f"the bytes begin with {magic!r}, not with {MAGIC!r}: not written by SpeeDO",
                "format",
            )
        if form != FORMAT:
            raise PayloadError(
                f"format {form} is not known here (format {FORMAT}): run the same version of SpeeDO on every node",
                "format",
            )
        what = _KINDS.get(kind)
        if what is None:
            raise PayloadError(f"a vector of unknown kind {kind}", "format")
        return cls(
            what, count, layout, version, checksum, worker, incarnation, ticket, epoch, dtype
        )


def checksum(body: memoryview) -> int:
    """64-bit xxh3 of the bytes."""
    return xxhash.xxh3_64_intdigest(body)


class RunningChecksum:
    """The checksum of a body that arrives in parts: called with the number of bytes so far, 0 to start again."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._upto = body, 0
        self._state = xxhash.xxh3_64()

    def __call__(self, upto: int) -> None:
        if upto < self._upto:
            self._state.reset()
            self._upto = 0
        self._state.update(self._body[self._upto : upto])
        self._upto = upto

    def whole(self) -> int:
        """The checksum of the whole body, once it has arrived."""
        self(len(self._body))
        return int(self._state.intdigest())


def squared_norm(vector: Vector) -> float:
    """In one pass, without a temporary: it is finite only if every value is.

    A norm above 1e19, whose square overflows float32, counts as not finite; so no sum of two accepted
    vectors can overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(vector, vector))


def as_bytes(vector: Vector) -> memoryview:
    """The vector's own memory as bytes, without a copy; it must be contiguous float32."""
    if vector.dtype != np.float32 or not vector.flags.c_contiguous:
        raise PayloadError(f"a vector must be contiguous float32, not {vector.dtype}", "dtype")
    return vector.data.cast("B")


def header_for(
    body: memoryview,
    layout: Layout,
    kind: Kind,
    *,
    dtype: int = FLOAT32,
    checked: bool = True,
    **said: int,
) -> Header:
    """The header for this body, which says the rest as `said`; without a checksum if it is not `checked`.

    Raises `PayloadError` if the number of raw values is not the layout's.
    """
    if dtype == FLOAT32 and len(body) != layout.nbytes:
        raise PayloadError(
            f"the net has {layout.size} parameters, {layout.nbytes} bytes; the vector has {len(body)}",
            "length",
        )
    found = checksum(body) if checked else 0
    return Header(kind, layout.size, layout.digest, checksum=found, dtype=dtype, **said)


def check_header(header: Header, layout: Layout, kind: Kind) -> None:
    """Refuse a header of another kind or layout."""
    if header.kind is not kind:
        raise PayloadError(
            f"a {header.kind.name.lower()} where a {kind.name.lower()} was expected", "kind"
        )
    if header.layout != layout.digest or header.count != layout.size:
        raise PayloadError(
            f"{header.count} parameters of another net (layout {header.layout:016x}, "
            f"here {layout.digest:016x}): give every node the same net",
            "layout",
        )


def check_sum(header: Header, found: int) -> None:
    """Refuse bytes with another checksum than the header's."""
    if found != header.checksum:
        raise PayloadError("the checksum differs: the bytes changed in transit", "checksum")
