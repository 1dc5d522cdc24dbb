"""Top-k: only the values of the largest magnitude are sent, six bytes each; the others count as zero.

Useful only with error feedback: the sender keeps what was not sent and adds it to the next vector (Aji, Heafield 2017,
"Sparse Communication for Distributed Gradient Descent"; Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with Memory").
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from speedo.errors import PayloadError
from speedo.vectors.codecs.base import BLOCK, Bytes, LossyCodec, blocks
from speedo.vectors.vector import DType, Layout, Vector

Places = npt.NDArray[np.intp]

PAGE_BITS = 16  # a place is two bytes within its page of 65,536 values
SAMPLE = 1 << 14  # values that the threshold is guessed from


class TopK(LossyCodec):
    """A body has k float32 values, the number of them in each page (uint32), and their positions in it (uint16).

    k is the same for every vector of a layout: if needed, positions with value zero fill it up.
    """

    dtype = DType.TOPK

    def __init__(self, layout: Layout, fraction: float) -> None:
        self._k = min(layout.size, max(1, round(fraction * layout.size)))
        self._pages = -(-layout.size >> PAGE_BITS)
        super().__init__(layout, 6 * self._k + 4 * self._pages)
        self._magnitudes = np.empty(min(BLOCK, layout.size), np.float32)
        self._small = np.empty(min(BLOCK, layout.size), np.bool_)

    def _parts(self, coded: Bytes) -> tuple[Vector, npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
        first, second = 4 * self._k, 4 * self._k + 4 * self._pages
        values, counts, lows = coded[:first], coded[first:second], coded[second:]
        return values.view(np.float32), counts.view(np.uint32), lows.view(np.uint16)

    def _encode(self, vector: Vector, residual: Vector | None, coded: Bytes) -> None:
        if not self._k:
            return
        values, counts, lows = self._parts(coded)
        found = self._at_least(self._guess(vector, residual), vector, residual)
        source = vector if residual is None else residual
        if found.size < self._k:  # the guess was too high: look at all
            found = np.arange(self._size)
        found = found[self._largest(np.abs(source[found]))]
        values[:] = source[found]
        counts[:] = np.bincount(found >> PAGE_BITS, minlength=self._pages)
        lows[:] = found & ((1 << PAGE_BITS) - 1)
        if residual is not None:
            residual[found] = 0.0

    def _largest(self, magnitudes: Vector) -> npt.NDArray[np.bool_]:
        """A mask of the k largest: sorting positions would take longer. NaN counts as the largest."""
        magnitudes[np.isnan(magnitudes)] = np.inf
        last = magnitudes.size - self._k
        least = np.partition(magnitudes, last)[last]
        mask: npt.NDArray[np.bool_] = magnitudes > least
        equal = np.flatnonzero(magnitudes == least)
        mask[equal[: self._k - np.count_nonzero(mask)]] = True
        return mask

    def _guess(self, vector: Vector, residual: Vector | None) -> np.float32:
        """A magnitude that slightly more than k values reach, estimated from a sample."""
        every = slice(None, None, max(1, self._size // SAMPLE))
        sample = np.abs(vector[every] if residual is None else vector[every] + residual[every])
        wanted = self._k * sample.size / self._size
        position = sample.size - math.ceil(wanted + 4 * math.sqrt(wanted) + 4)
        guess: np.float32 = np.partition(sample, max(0, position))[max(0, position)]
        return guess

    def _at_least(self, least: np.float32, vector: Vector, residual: Vector | None) -> Places:
        """A mask of values whose magnitude is `least` or more, or NaN; adds `vector` to `residual`."""
        found = []
        for place, block in blocks(vector, residual):
            magnitudes, small = self._magnitudes[: block.size], self._small[: block.size]
            np.abs(block, out=magnitudes)
            np.less(magnitudes, least, out=small)
            np.logical_not(small, out=small)
            places = np.flatnonzero(small)
            places += place.start
            found.append(places)
        return np.concatenate(found)

    def _decode(self, coded: Bytes, into: Vector) -> None:
        into.fill(0.0)
        if not self._k:
            return
        values, counts, lows = self._parts(coded)
        if counts.sum(dtype=np.int64) != self._k:
            raise PayloadError(
                "the places of its values do not add up: damaged, or of another vector"
            )
        places = np.repeat(np.arange(self._pages) << PAGE_BITS, counts)
        places += lows
        if places[-1] >= self._size or not (places[1:] > places[:-1]).all():
            raise PayloadError("a place of its values is beyond the vector or comes twice")
        into[places] = values
