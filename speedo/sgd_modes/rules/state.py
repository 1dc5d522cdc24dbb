"""What a merge rule keeps from one merge to the next, and its form as bytes, in checkpoints and servers' stores.

The bytes are the length of a JSON object (4 bytes, little-endian), that object, and the vectors end to end, float32.
The object has the rule's name, the names of the vectors, their common length, and the numbers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

import numpy as np

from speedo.errors import PayloadError
from speedo.exchange.vector import Vector, as_bytes

MOST_NAMES: Final = 64
MOST_HEAD_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct("<I")


@dataclass(eq=False, slots=True)
class State:
    """`vectors` have a value for each of the center, `numbers` are of the whole; a new state is 0 everywhere.

    A merge changes both in place. `rule` is the name of the rule whose state it is; empty: there is none.
    """

    rule: str = ""
    vectors: dict[str, Vector] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to keep."""
        return bool(self.vectors or self.numbers)

    @property
    def is_finite(self) -> bool:
        return all(map(isfinite, self.numbers.values())) and all(
            np.isfinite(vector).all() for vector in self.vectors.values()
        )

    def pack(self) -> bytes:
        """A copy as bytes; none for a state without anything."""
        return b"".join(self.parts())

    def parts(self) -> list[bytes | memoryview]:
        """The same without a copy of the vectors, in parts."""
        if not self:
            return []
        size = next((vector.size for vector in self.vectors.values()), 0)
        head = json.dumps([self.rule, list(self.vectors), size, self.numbers]).encode()
        body = [as_bytes(vector) for vector in self.vectors.values()]
        return [_LENGTH.pack(len(head)), head, *body]

    @classmethod
    def unpack(cls, data: bytes | memoryview, size: int) -> State:
        """The state of a center of `size` values in bytes that `pack` made. Raises `PayloadError` for others."""
        if not len(data):
            return cls()
        length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else MOST_HEAD_BYTES + 1
        begin = _LENGTH.size + length
        if length > MOST_HEAD_BYTES or begin > len(data):
            raise PayloadError("a rule's state is damaged: its head is incomplete")
        rule, names, numbers = _head(bytes(data[_LENGTH.size : begin]), size)
        if len(data) - begin != 4 * size * len(names):
            raise PayloadError("a rule's state is damaged: it is not as long as it says")
        values = np.frombuffer(data, "<f4", offset=begin).astype(np.float32)
        found = cls(rule, {}, numbers)
        for at, name in enumerate(names):
            found.vectors[name] = values[at * size : (at + 1) * size].copy()
        if not found.is_finite:
            raise PayloadError("a rule's state has numbers that are not finite")
        return found

    def part(self, place: slice) -> State:
        """That of a range of the center."""
        parts = {name: vector[place].copy() for name, vector in self.vectors.items()}
        return State(self.rule, parts, dict(self.numbers))

    @classmethod
    def of_parts(cls, parts: Sequence[State]) -> State:
        """The whole of the states of all ranges, in their order; none if a range has lost its own."""
        first = parts[0]
        if any(
            one.rule != first.rule or one.vectors.keys() != first.vectors.keys() for one in parts
        ):
            return cls()
        whole = {
            name: np.concatenate([one.vectors[name] for one in parts]) for name in first.vectors
        }
        return cls(first.rule, whole, dict(first.numbers))


NO_STATE: Final = State()


def _head(text: bytes, size: int) -> tuple[str, list[str], dict[str, float]]:
    try:
        found: Any = json.loads(text)
        rule, names, length, numbers = found
        fits = isinstance(rule, str) and isinstance(names, list) and isinstance(numbers, dict)
        fits = fits and len(names) + len(numbers) <= MOST_NAMES and length == (size if names else 0)
        fits = fits and all(isinstance(one, str) for one in names) and len(set(names)) == len(names)
        fits = fits and all(type(one) in (int, float) for one in numbers.values())
    except (ValueError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise PayloadError("a rule's state is damaged: its head is not that of this center's")
    return rule, names, {name: float(one) for name, one in numbers.items()}
