"""Finds the values of the largest magnitude, for the codecs that send only these."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from speedo.exchange.codecs.base import BLOCK, blocks
from speedo.exchange.vector import Vector

Places = npt.NDArray[np.intp]

SAMPLE = 1 << 14  # values that the threshold is guessed from


class Largest:
    """Finds the same number of places, `count`, in every vector of `size` values."""

    def __init__(self, size: int, fraction: float) -> None:
        self._size = size
        self.count = min(size, max(1, round(fraction * size)))
        self._magnitudes = np.empty(min(BLOCK, size), np.float32)
        self._small = np.empty(min(BLOCK, size), np.bool_)

    def find(self, vector: Vector, residual: Vector | None) -> tuple[Places, Vector]:
        """Where the largest are, ascending, and the vector that they are in: `residual` after `vector` was added.

        If the vector has fewer values other than zero, zeros make up the number. NaN counts as the largest.
        """
        source = vector if residual is None else residual
        if not self.count:
            return np.empty(0, np.intp), source
        found = self._at_least(self._guess(vector, residual), vector, residual)
        if found.size < self.count:  # the guess was too high: look at all
            found = np.arange(self._size)
        return found[self._largest(np.abs(source[found]))], source

    def _largest(self, magnitudes: Vector) -> npt.NDArray[np.bool_]:
        """A mask of the largest: sorting positions would take longer."""
        magnitudes[np.isnan(magnitudes)] = np.inf
        last = magnitudes.size - self.count
        least = np.partition(magnitudes, last)[last]
        mask: npt.NDArray[np.bool_] = magnitudes > least
        equal = np.flatnonzero(magnitudes == least)
        mask[equal[: self.count - np.count_nonzero(mask)]] = True
        return mask

    def _guess(self, vector: Vector, residual: Vector | None) -> np.float32:
        """A magnitude that slightly more values reach than are wanted, estimated from a sample."""
        every = slice(None, None, max(1, self._size // SAMPLE))
        sample = np.abs(vector[every] if residual is None else vector[every] + residual[every])
        wanted = self.count * sample.size / self._size
        position = sample.size - math.ceil(wanted + 4 * math.sqrt(wanted) + 4)
        guess: np.float32 = np.partition(sample, max(0, position))[max(0, position)]
        return guess

    def _at_least(self, least: np.float32, vector: Vector, residual: Vector | None) -> Places:
        """Places of values whose magnitude is `least` or more, or NaN; adds `vector` to `residual`."""
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
