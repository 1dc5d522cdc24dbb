"""The NumPy arrays that a user's script trains, as `Weights`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speedo.errors import ConfigError, ScriptMistake
from speedo.exchange.vector import Blob, Layout, Vector

Array = npt.NDArray[Any]

TYPES: Final = (np.float16, np.float32, np.float64)


class ArrayWeights:
    """Arrays by their names, in the order of the mapping; raises `ConfigError` for what cannot be averaged.

    They are read and changed in place, so the script has to train in place, too: `w -= rate * g`, not
    `w = w - rate * g`. Values travel as float32. Where an array is finer, a value that is the same in float32 stays.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        _check(arrays)
        self._given = arrays
        self._arrays = list(arrays.values())
        self.layout = Layout(tuple(Blob(name, array.shape) for name, array in arrays.items()))

    def read_weights(self, out: Vector) -> None:
        for array, (_, place) in zip(self._arrays, self.layout.slices(), strict=True):
            np.copyto(out[place].reshape(array.shape), array, casting="same_kind")

    def check_changes(self) -> None:
        """Raise `ScriptMistake` for an array that is no longer the one that was joined."""
        for joined, (blob, _) in zip(self._arrays, self.layout.slices(), strict=True):
            if self._given.get(blob.name) is not joined:
                raise ScriptMistake(
                    f"array {blob.name!r} is another one than that given to speedo.join, whose values do not change: "
                    f"train in place, as in {blob.name} -= rate * gradient or {blob.name}[...] = new"
                )

    def load_weights(self, vector: Vector) -> None:
        for array, (_, place) in zip(self._arrays, self.layout.slices(), strict=True):
            _write(array, vector[place])

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        """See `Weights.change_weights`; what is not contiguous float32 is changed in a copy that is written back."""
        for array, (blob, place) in zip(self._arrays, self.layout.slices(), strict=True):
            if array.dtype == np.float32 and array.flags.c_contiguous:
                change(blob, place, array.reshape(-1))
            else:
                copy = array.astype(np.float32, order="C").reshape(-1)
                change(blob, place, copy)
                _write(array, copy)


def _write(array: Array, values: Vector) -> None:
    new = values.reshape(array.shape)
    differs = True if array.dtype == np.float32 else array.astype(np.float32) != new
    np.copyto(array, new, casting="same_kind", where=differs)


def _check(arrays: Mapping[str, Array]) -> None:
    if not arrays:
        raise ConfigError("there is no array to train: give at least one, as in {'weights': w}")
    problems = []
    for name, array in arrays.items():
        fault = _fault(name, array)
        if fault:
            problems.append(f"array {name!r} {fault}")
    if not problems:
        problems = [
            f"arrays {first!r} and {second!r} share memory: give it once, under one name"
            for (first, one), (second, other) in combinations(arrays.items(), 2)
            if np.may_share_memory(one, other) and np.shares_memory(one, other)
        ]
    if problems:
        raise ConfigError(problems)


def _fault(name: object, array: object) -> str:
    """Why it cannot be trained, as the end of a sentence; empty if it can."""
    if not isinstance(name, str):
        return "has a name that is no text: use a str"
    if not isinstance(array, np.ndarray):
        return f"is a {type(array).__name__}: give the NumPy array that the script trains in place"
    if array.dtype.newbyteorder("=") not in TYPES:
        return f"has the type {array.dtype}: only float16, float32 and float64 are averaged; leave it out"
    if not array.flags.writeable:
        return "is read-only: give a copy, and train in that"
    if not array.size:
        return "has no values: leave it out"
    return ""
