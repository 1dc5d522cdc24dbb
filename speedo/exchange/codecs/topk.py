"""Top-k: only the values of the largest magnitude are sent, six bytes each; the others count as zero.

Useful only with error feedback: the sender keeps what was not sent and adds it to the next vector (Aji, Heafield 2017,
"Sparse Communication for Distributed Gradient Descent"; Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with Memory").
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.errors import PayloadError
from speedo.exchange.codecs.base import Bytes, LossyCodec
from speedo.exchange.codecs.largest import Largest
from speedo.exchange.vector import Layout, Vector

PAGE_BITS = 16  # a place is two bytes within its page of 65,536 values


class TopK(LossyCodec):
    """A body has k float32 values, the number of them in each page (uint32), and their positions in it (uint16).

    k is the same for every vector of a layout: if needed, positions with value zero fill it up.
    """

    name = "topk"
    dtype = 4
    summary = "the fraction F of the values that are largest, as in topk:0.01"
    takes_fraction = True

    def __init__(self, layout: Layout, fraction: float) -> None:
        self._largest = Largest(layout.size, fraction)
        self._k = self._largest.count
        self._pages = -(-layout.size >> PAGE_BITS)
        super().__init__(layout, 6 * self._k + 4 * self._pages)

    def _parts(self, coded: Bytes) -> tuple[Vector, npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
        first, second = 4 * self._k, 4 * self._k + 4 * self._pages
        values, counts, lows = coded[:first], coded[first:second], coded[second:]
        return values.view(np.float32), counts.view(np.uint32), lows.view(np.uint16)

    def _encode(self, vector: Vector, residual: Vector | None, coded: Bytes) -> None:
        values, counts, lows = self._parts(coded)
        found, source = self._largest.find(vector, residual)
        values[:] = source[found]
        counts[:] = np.bincount(found >> PAGE_BITS, minlength=self._pages)
        lows[:] = found & ((1 << PAGE_BITS) - 1)
        if residual is not None:
            residual[found] = 0.0

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


CODEC: Final = TopK
