"""bfloat16: the upper half of a float32, rounded to the nearest, ties to even. Half the bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from speedo.exchange.codecs.base import BLOCK, Bytes, LossyCodec, blocks
from speedo.exchange.vector import Layout, Vector

_NAN = 0x7FC0


class BFloat16(LossyCodec):
    """float32's range with 8 bits of precision: the relative error of each value is at most 1/256."""

    name = "bfloat16"
    dtype = 2
    summary = "half the bytes"
    for_centers = True

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, 2 * layout.size)
        self._scratch = np.empty(min(BLOCK, layout.size), np.uint32)

    def _encode(self, vector: Vector, residual: Vector | None, coded: Bytes) -> None:
        halves = coded.view(np.uint16)
        for place, block in blocks(vector, residual):
            bits = block.view(np.uint32)
            rounded = self._scratch[: block.size]
            # bits + 0x7FFF + (the lowest bit that stays): ties go to even
            np.right_shift(bits, 16, out=rounded)
            rounded &= 1
            rounded += 0x7FFF
            rounded += bits
            rounded >>= 16
            if not np.isfinite(np.dot(block, block)):
                rounded[np.isnan(block)] = _NAN  # the addition can carry a NaN over into infinity
            halves[place] = rounded
            if residual is not None:
                rounded <<= 16
                block -= rounded.view(np.float32)

    def _decode(self, coded: Bytes, into: Vector) -> None:
        halves, bits = coded.view(np.uint16), into.view(np.uint32)
        for start in range(0, into.size, BLOCK):
            block = bits[start : start + BLOCK]
            block[:] = halves[start : start + BLOCK]
            block <<= 16


CODEC: Final = BFloat16
