"""Sparse: the values of the largest magnitude, each by its sign and one of two levels; the others count as zero.

Meant for the deltas of many local steps, with error feedback, which also keeps what the two levels lose. Sarfi,
Thérien, Lidin, Belilovsky 2025, "Communication Efficient LLM Pre-training with SparseLoCo": 1 to 3 % of the values in
2 bits. Basu, Data, Karakus, Diggavi 2019, "Qsparse-local-SGD", proves that such local steps converge. The places
are in the code of Elias 1974, "Efficient Storage and Retrieval by Content and Address of Static Files", whose length
depends only on their number: at 1 % a value takes 10.8 bits, of which 8.6 are its place.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from speedo.errors import PayloadError
from speedo.exchange.codecs.base import Bytes, LossyCodec
from speedo.exchange.codecs.largest import Largest
from speedo.exchange.vector import Layout, Vector

ROW = 256  # values with levels of their own: layers differ in the size of their deltas


class Sparse(LossyCodec):
    """A body has two float32 levels per row of values, planes of bits, and the upper parts of the places.

    A plane has a bit per value: signs, which level, and one for each of the lower bits of the places. The i-th place is
    `upper * 2^lower bits + lower`; its upper part is the bit `upper + i` of the last part, which has one per value.
    """

    name = "sparse"
    dtype = 5
    summary = "the same, each in 2 bits"
    takes_fraction = True

    def __init__(self, layout: Layout, fraction: float) -> None:
        self._largest = Largest(layout.size, fraction)
        k = self._k = self._largest.count
        self._lower = max(0, (layout.size // k).bit_length() - 1) if k else 0
        self._rows, self._plane = -(-k // ROW), -(-k // 8)
        self._upper = k + (layout.size >> self._lower)  # bits
        self._levels_end = 8 * self._rows
        self._planes_end = self._levels_end + (2 + self._lower) * self._plane
        super().__init__(layout, self._planes_end + -(-self._upper // 8))

    def _parts(self, coded: Bytes) -> tuple[Vector, Bytes, Bytes]:
        levels, planes = coded[: self._levels_end], coded[self._levels_end : self._planes_end]
        rows = levels.view(np.float32).reshape(self._rows, 2)
        return rows, planes.reshape(2 + self._lower, self._plane), coded[self._planes_end :]

    def _encode(self, vector: Vector, residual: Vector | None, coded: Bytes) -> None:
        levels, planes, upper = self._parts(coded)
        found, source = self._largest.find(vector, residual)
        values = source[found]
        is_high = _choose_levels(np.abs(values), levels)
        planes[0], planes[1] = np.packbits(np.signbit(values)), np.packbits(is_high)
        for bit in range(self._lower):
            planes[2 + bit] = np.packbits((found >> bit) & 1 == 1)
        marks = np.zeros(self._upper, np.bool_)
        marks[(found >> self._lower) + np.arange(self._k)] = True
        upper[:] = np.packbits(marks)
        if residual is not None:
            residual[found] -= self._values(levels, planes)

    def _values(self, levels: Vector, planes: Bytes) -> Vector:
        negative, is_high = (np.unpackbits(plane, count=self._k) for plane in planes[:2])
        values: Vector = levels.reshape(-1)[2 * (np.arange(self._k) // ROW) + is_high]
        np.negative(values, out=values, where=negative.view(np.bool_))
        return values

    def _decode(self, coded: Bytes, into: Vector) -> None:
        into.fill(0.0)
        levels, planes, upper = self._parts(coded)
        marks = np.flatnonzero(np.unpackbits(upper, count=self._upper))
        if marks.size != self._k:
            raise PayloadError(
                "the places of its values do not add up: damaged, or of another vector"
            )
        places = (marks - np.arange(self._k)) << self._lower
        for bit in range(self._lower):
            places |= np.unpackbits(planes[2 + bit], count=self._k).astype(np.intp) << bit
        if self._k and (places[-1] >= self._size or not (places[1:] > places[:-1]).all()):
            raise PayloadError("a place of its values is beyond the vector or comes twice")
        into[places] = self._values(levels, planes)


def _choose_levels(magnitudes: Vector, levels: Vector) -> Bytes:
    """Fill the levels of each row: the means of what is below the row's mean, and of the rest; 1 for the rest.

    A mean of each half leaves less than the vector had, whatever the values, which error feedback needs to converge.
    In float64, so that no sum of finite values overflows.
    """
    starts = np.arange(0, magnitudes.size, ROW)
    sizes = np.diff(starts, append=magnitudes.size)
    means = np.add.reduceat(magnitudes, starts, dtype=np.float64) / sizes
    is_high = magnitudes >= np.repeat(means, sizes)
    for column, chosen in enumerate((~is_high, is_high)):
        sums = np.add.reduceat(np.where(chosen, magnitudes, 0), starts, dtype=np.float64)
        levels[:, column] = sums / np.maximum(np.add.reduceat(chosen, starts, dtype=np.int64), 1)
    return is_high.view(np.uint8)


CODEC: Final = Sparse
