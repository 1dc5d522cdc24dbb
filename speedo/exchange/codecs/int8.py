"""int8: each value in 127ths of the largest in its row of 1,024, with a scale per row. A quarter of the bytes.

A scale per row and not per blob: the error of a value is at most 1/254 of the largest value in its row, whatever the
sizes elsewhere in a blob. The scales add 0.4 %, and rows of one length are fast to process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.exchange.codecs.base import BLOCK, Bytes, LossyCodec, blocks
from speedo.exchange.vector import Layout, Vector

ROW = 1024
_LEVELS = np.float32(127)
# Taken for the largest of a row whose values are all below it: 127 over less leaves float32.
_SMALLEST = np.float32(1e-30)


class Int8(LossyCodec):
    """A body has a float32 scale per row, and a code per value: value = scale * code."""

    name = "int8"
    dtype = 3
    summary = "a quarter of the bytes"

    def __init__(self, layout: Layout) -> None:
        self._rows = -(-layout.size // ROW)
        super().__init__(layout, 4 * self._rows + layout.size)
        self._scratch = np.empty(min(BLOCK, layout.size), np.float32)

    def _parts(self, coded: Bytes) -> tuple[Vector, npt.NDArray[np.int8]]:
        split = 4 * self._rows
        return coded[:split].view(np.float32), coded[split:].view(np.int8)

    def _encode(self, vector: Vector, residual: Vector | None, coded: Bytes) -> None:
        scales, codes = self._parts(coded)
        for place, block in blocks(vector, residual):
            for part, rows, shape in _rows_of(place):
                values = block[part.start - place.start : part.stop - place.start].reshape(shape)
                scaled = self._scratch[: values.size].reshape(shape)
                np.abs(values, out=scaled)
                largest = scaled.max(axis=1, keepdims=True)
                np.maximum(largest, _SMALLEST, out=largest)  # NaN stays NaN
                scale = scales[rows, np.newaxis]
                np.divide(largest, _LEVELS, out=scale)
                np.multiply(values, _LEVELS / largest, out=scaled)
                np.rint(scaled, out=scaled)
                np.copyto(codes[part].reshape(shape), scaled, casting="unsafe")
                if residual is not None:
                    scaled *= scale
                    values -= scaled

    def _decode(self, coded: Bytes, into: Vector) -> None:
        scales, codes = self._parts(coded)
        for start in range(0, into.size, BLOCK):
            for part, rows, shape in _rows_of(slice(start, min(start + BLOCK, into.size))):
                values = into[part].reshape(shape)
                values[:] = codes[part].reshape(shape)
                values *= scales[rows, np.newaxis]


def _rows_of(place: slice) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """The whole rows of a block, and the shorter last one: values, rows, and their shape."""
    row = place.start // ROW
    whole = (place.stop - place.start) // ROW
    middle = place.start + whole * ROW
    if whole:
        yield slice(place.start, middle), slice(row, row + whole), (whole, ROW)
    if middle < place.stop:
        last = row + whole
        yield slice(middle, place.stop), slice(last, last + 1), (1, place.stop - middle)


CODEC: Final = Int8
