"""No compression: a vector's own memory is its body."""

from __future__ import annotations

from typing import Final

import numpy as np

from speedo.errors import PayloadError
from speedo.exchange.codecs.base import Codec
from speedo.exchange.vector import FLOAT32, Layout, Vector, as_bytes


class Float32(Codec):
    """The codec `none`: nothing is copied, neither to encode nor to decode."""

    name = "none"
    dtype = FLOAT32
    summary = "float32"
    for_centers = True
    is_exact = True

    def __init__(self, layout: Layout) -> None:
        self._size = layout.size

    @property
    def body_bytes(self) -> int:
        return 4 * self._size

    def body_for(self, vector: Vector) -> memoryview:
        """The vector's own memory: no decoding is needed."""
        return as_bytes(vector)

    def encode(self, vector: Vector, residual: Vector | None = None) -> memoryview:
        """The vector's own memory; nothing is lost, so there is no residual to add."""
        if vector.shape != (self._size,):
            raise PayloadError(
                f"the net has {self._size} parameters, the vector {vector.shape}", "length"
            )
        return as_bytes(vector)

    def decode(self, body: memoryview, into: Vector) -> None:
        if len(body) != self.body_bytes or into.shape != (self._size,):
            raise PayloadError(
                f"a body of {len(body)} bytes, {self.body_bytes} were expected", "length"
            )
        values = np.frombuffer(body, np.float32)
        if not np.may_share_memory(values, into):
            np.copyto(into, values)


CODEC: Final = Float32
