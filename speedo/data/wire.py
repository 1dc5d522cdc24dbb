"""Caffe's `Datum` and `BlobProto` as bytes, without Caffe.

Importing pycaffe loads a native library and takes a second; the two messages are a handful of
fields in protobuf's wire format (https://protobuf.dev/programming-guides/encoding/), so they are
written here by hand. Field numbers: Caffe, src/caffe/proto/caffe.proto. A test holds the result
against Caffe's own parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.errors import DataError

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5


@dataclass(frozen=True, slots=True)
class Datum:
    """One labelled image: raw bytes in channel, height, width order, or a whole image file if
    `encoded`."""

    channels: int
    height: int
    width: int
    data: bytes
    label: int
    encoded: bool = False

    def to_bytes(self) -> bytes:
        """The message; an encoded image carries no sizes, Caffe takes them from the file itself."""
        sizes = b"" if self.encoded else self._sizes()
        tail = b"\x38\x01" if self.encoded else b""
        return b"".join(
            (sizes, b"\x22", _varint(len(self.data)), self.data, b"\x28", _varint(self.label), tail)
        )

    def _sizes(self) -> bytes:
        numbers = (self.channels, self.height, self.width)
        return b"".join(_key(field, _VARINT) + _varint(n) for field, n in enumerate(numbers, 1))

    @classmethod
    def from_bytes(cls, message: bytes) -> Datum:
        """Read a message back; raises DataError if it is not one."""
        numbers = dict.fromkeys((1, 2, 3, 5, 7), 0)
        data = b""
        for field, value in _fields(message):
            if field in numbers and isinstance(value, int):
                numbers[field] = value
            elif field == 4 and isinstance(value, bytes):
                data = value
        return cls(numbers[1], numbers[2], numbers[3], data, numbers[5], bool(numbers[7]))


def mean_to_bytes(mean: npt.NDArray[np.float32]) -> bytes:
    """A mean image of shape (channels, height, width) as the `BlobProto` that `mean_file` names.

    It carries the four old size fields, as Caffe's own tool writes them, which every Caffe reads.
    """
    channels, height, width = mean.shape
    sizes = b"".join(
        _key(field, _VARINT) + _varint(number)
        for field, number in enumerate((1, channels, height, width), 1)
    )
    raw = np.ascontiguousarray(mean, dtype="<f4").tobytes()
    return sizes + _key(5, _LENGTH) + _varint(len(raw)) + raw


def mean_from_bytes(message: bytes) -> npt.NDArray[np.float32]:
    """The mean image in a `BlobProto` of ours; raises DataError if sizes and values do not
    agree."""
    sizes = {1: 0, 2: 0, 3: 0, 4: 0}
    raw = b""
    for field, value in _fields(message):
        if field in sizes and isinstance(value, int):
            sizes[field] = value
        elif field == 5 and isinstance(value, bytes):
            raw = value
    shape = (sizes[2], sizes[3], sizes[4])
    if sizes[1] != 1 or len(raw) != 4 * int(np.prod(shape)):
        raise DataError(
            f"the mean file says 1 x {shape} but holds {len(raw)} bytes: prepare it again"
        )
    return np.frombuffer(raw, dtype="<f4").reshape(shape).astype(np.float32)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(number: int) -> bytes:
    if number < 0:
        raise ValueError(f"{number} is negative: sizes and labels start at 0")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: numbers for varints, bytes for everything else."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            number, at = _read_varint(message, at)
            yield field, number
            continue
        if kind == _LENGTH:
            size, at = _read_varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise DataError(f"not a protobuf message: wire type {kind} at byte {at}")
        if at + size > len(message):
            raise DataError(
                f"the message is cut off: field {field} wants {size} bytes at byte {at}"
            )
        yield field, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise DataError("the message is cut off in the middle of a number")
