"""The interface of codecs, which encode a vector into a body of bytes, and decode it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from speedo.errors import PayloadError
from speedo.exchange.vector import Layout, Vector

Bytes = npt.NDArray[np.uint8]

BLOCK = 1 << 15  # values: they and what is made of them stay in a core's second-level cache


class Codec(Protocol):
    """Encodes vectors of one layout. Its memory is reused: a body is valid until the next `encode` or `body_for`.

    A file here that declares `CODEC`, such a class, is found. It is made with a layout, and the fraction if it
    `takes_fraction`: then only a fraction of the values is sent, and `--compress` takes `name:F`. `dtype` is its number
    in the header, part of the format. `summary` is for the help. With `for_centers` it is a choice of
    the center's.
    """

    name: ClassVar[str]
    dtype: ClassVar[int]
    summary: ClassVar[str]
    takes_fraction: ClassVar[bool] = False
    for_centers: ClassVar[bool] = False

    @property
    def body_bytes(self) -> int:
        """The length of every body, so that a reader knows it in advance."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether decoding gives exactly the vector that was encoded."""
        ...

    def body_for(self, vector: Vector) -> memoryview:
        """Memory to read a body into, which is then decoded into `vector`."""
        ...

    def encode(self, vector: Vector, residual: Vector | None = None) -> memoryview:
        """The body of `vector`, which is not changed; a vector that is not finite stays not finite.

        With `residual` it encodes `vector + residual`, and `residual` becomes the error of that.
        """
        ...

    def decode(self, body: memoryview, into: Vector) -> None:
        """Fill `into` from a body; raises `PayloadError`, with `into` perhaps partly filled, if it is not valid."""
        ...


class LossyCodec(Codec, ABC):
    """A body is the statistics of BatchNorm, raw float32, and then what `_encode` makes of the rest.

    These running sums exceed the range of any narrow format (Caffe scales them by up to 1,000).
    """

    is_exact = False

    def __init__(self, layout: Layout, coded_bytes: int) -> None:
        self._size, self._places = layout.size, layout.statistics
        self._exact_bytes = 4 * sum(place.stop - place.start for place in self._places)
        self._coded_bytes = coded_bytes
        self._own = np.empty(self._exact_bytes + coded_bytes, np.uint8)
        self._exact = self._own[: self._exact_bytes].view(np.float32)

    @property
    def body_bytes(self) -> int:
        return self._own.size

    def body_for(self, vector: Vector) -> memoryview:
        return self._own.data

    def encode(self, vector: Vector, residual: Vector | None = None) -> memoryview:
        self._check_size(vector)
        start = 0
        for place in self._places:
            stop = start + place.stop - place.start
            self._exact[start:stop] = vector[place]
            vector[place] = 0.0
            start = stop
        try:
            with np.errstate(all="ignore"):  # what is not finite is for the reader to refuse
                self._encode(vector, residual, self._own[self._exact_bytes :])
        finally:
            self._put_statistics(self._exact, vector)
        return self._own.data

    def decode(self, body: memoryview, into: Vector) -> None:
        self._check_size(into)
        if len(body) != self.body_bytes:
            raise PayloadError(
                f"a body of {len(body)} bytes, {self.body_bytes} were expected", "length"
            )
        memory = np.frombuffer(body, np.uint8)
        with np.errstate(all="ignore"):
            self._decode(memory[self._exact_bytes :], into)
        self._put_statistics(memory[: self._exact_bytes].view(np.float32), into)

    @abstractmethod
    def _encode(self, vector: Vector, residual: Vector | None, coded: Bytes) -> None:
        """Fill `coded`; `vector` has zeros for the statistics."""

    @abstractmethod
    def _decode(self, coded: Bytes, into: Vector) -> None:
        """Fill `into` from `coded`."""

    def _check_size(self, vector: Vector) -> None:
        if vector.shape != (self._size,):
            raise PayloadError(
                f"the net has {self._size} parameters, the vector {vector.shape}", "length"
            )

    def _put_statistics(self, exact: Vector, into: Vector) -> None:
        start = 0
        for place in self._places:
            stop = start + place.stop - place.start
            into[place] = exact[start:stop]
            start = stop


def blocks(vector: Vector, residual: Vector | None) -> Iterator[tuple[slice, Vector]]:
    """Slices, each with the values to encode: `vector`'s own memory, or `residual`'s after `vector` was added to it."""
    for start in range(0, vector.size, BLOCK):
        place = slice(start, min(start + BLOCK, vector.size))
        if residual is None:
            yield place, vector[place]
        else:
            block = residual[place]
            block += vector[place]
            yield place, block
