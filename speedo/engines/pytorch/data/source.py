"""What data layers share: their place among the records, batches made ahead, tensors, random numbers, paths."""

from __future__ import annotations

import os
import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from caffenets.layer import LayerContext, Shape, SourceLayer
from speedo.engines.pytorch.data.prefetch import Batch, Prefetch
from speedo.errors import EngineError, SpeedoError

# Batches read ahead where the layer names no number (Caffe: DataParameter, prefetch).
_DEPTH: Final = 4
# Threads that decode the images of one GPU.
_MOST_DECODERS: Final = 8

_From = TypeVar("_From")
_To = TypeVar("_To")


class BatchSource(SourceLayer):
    """A layer that makes batch after batch of a shard of its records.

    With `pin` the batches are in page-locked memory, for a GPU. `ahead` asks for a thread that makes them ahead, or
    forbids it; None leaves it to the layer. `decoders` threads decode the images of a batch; None: several for a GPU,
    else one.
    """

    def __init__(
        self,
        param: Any,
        place: LayerContext,
        *,
        pin: bool = False,
        ahead: bool | None = None,
        decoders: int | None = None,
    ) -> None:
        super().__init__(param, place)
        self._pin = pin
        self._ahead = ahead
        self._decoders = decoders or (
            min(_MOST_DECODERS, len(os.sched_getaffinity(0))) if pin else 1
        )
        self._prefetch: Prefetch | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._ranges: deque[tuple[int, int]] = deque()  # to come: first record, and how many
        self._left = 0  # of the present range, where another one comes
        # Of all that were to be read: behind the last, and not yet given
        self._end, self._owed = -1, 0

    @property
    @abstractmethod
    def samples(self) -> int: ...

    @property
    def batches(self) -> int:
        """How many batches are in memory at most: the step's, and those ahead of it with the one being made."""
        return 1 if self._prefetch is None else 2 + self._prefetch.depth

    @abstractmethod
    def open(self) -> list[Shape]:
        """Check and open the source; the shapes of the tops."""

    @abstractmethod
    def read(self) -> Batch:
        """The next batch."""

    @abstractmethod
    def pass_over(self, batches: int) -> None:
        """Move on by this many batches, with the random numbers that reading them draws."""

    def seek(self, record: int) -> None:
        """Read the record of this number next, and after it the one behind it."""
        raise self.refuse("cannot be read from a given record on: use another --data-share")

    def release(self) -> None:
        """Close what `open` opened; may be called twice."""

    def is_costly(self) -> bool:
        """Whether a batch takes long to make, so that a second core pays."""
        return self._pin

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        """See `Layer.setup`; reads the first record, as Caffe does, for its shape."""
        try:
            shapes = self.open()
            if self.samples < 1:
                raise self.refuse("makes batches of 0 records: use a batch_size of 1 or more")
        except EngineError:
            self.release()
            raise
        if self.is_costly() if self._ahead is None else self._ahead:
            depth = int(self.param.data_param.prefetch) or _DEPTH
            self._prefetch = Prefetch(self._read, depth, f"records of {self.name}")
        return shapes

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> Batch:
        """The next batch, on the CPU."""
        self._owed -= self.samples
        return self._read() if self._prefetch is None else self._prefetch.next()

    def skip(self, batches: int) -> None:
        if self._prefetch is not None:
            batches -= self._prefetch.discard(batches)
        if batches > 0:
            self.pass_over(batches)

    def read_next(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `SourceLayer.read_next`. What was read ahead is kept where these records follow the last ones."""
        if len(ranges) > 1 or ranges[0][0] != self._end or self._owed:
            if self._prefetch is not None:
                self._prefetch.close()
            self._ranges = deque((start, stop - start) for start, stop in ranges)
            self._left = self._owed = 0
        self._end = ranges[-1][1]
        self._owed += sum(stop - start for start, stop in ranges)

    def in_a_row(self, records: int) -> Iterator[int]:
        """The next records, as numbers of those that follow each other; between two of them it seeks."""
        while records:
            if self._ranges and not self._left:
                start, length = self._ranges.popleft()
                self.seek(start)
                self._left = length if self._ranges else 0  # the last goes on
            part = min(records, self._left) if self._left else records
            self._left -= part if self._left else 0
            records -= part
            yield part

    def close(self) -> None:
        """End the thread and close the files."""
        if self._prefetch is not None:
            self._prefetch.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.release()

    def find(self, name: str, what: str) -> Path:
        """The file or folder of this name, relative to the place's folder."""
        if not name:
            raise self.refuse(f"names no {what}: add it")
        path = (self.place.folder or Path()) / name
        if not path.exists():
            raise self.refuse(f"needs the {what} {path}, which does not exist: correct the path")
        return path

    def draws(self, purpose: str) -> np.random.Generator:
        """Random numbers of this layer: by the place's seed and rank, or unforeseeable without a seed."""
        seed = self.place.seed
        seed = None if seed is None or seed < 0 else seed + self.place.rank
        own = zlib.crc32(f"{self.name}\n{purpose}".encode())
        return np.random.Generator(np.random.PCG64(None if seed is None else [seed, own]))

    def each(self, make: Callable[[_From], _To], items: Sequence[_From]) -> list[_To]:
        """What `make` makes of every item, by the decoding threads."""
        if self._decoders == 1:
            return [make(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._decoders, f"records of {self.name}")
        return list(self._pool.map(make, items))

    def empty(self, shape: Sequence[int]) -> Tensor:
        """A float32 tensor for a batch."""
        return torch.empty(tuple(shape), dtype=torch.float32, pin_memory=self._pin)

    def _read(self) -> Batch:
        try:
            return self.read()
        except (SpeedoError, MemoryError):
            raise
        except Exception as error:
            raise self.refuse(f"cannot read its next batch: {error}") from error
