"""What data layers share: their place among the records, batches made ahead, tensors, random numbers, paths."""

from __future__ import annotations

import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from speedo.engines.pytorch.data.prefetch import Batch, Prefetch
from speedo.engines.pytorch.layer import Place, Shape, SourceLayer
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
        place: Place,
        *,
        pin: bool = False,
        ahead: bool | None = None,
        decoders: int | None = None,
    ) -> None:
        super().__init__(param, place)
        self._pin = pin
        self._ahead = ahead
        self._decoders = decoders or (min(_MOST_DECODERS, _cores()) if pin else 1)
        self._prefetch: Prefetch | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    @abstractmethod
    def samples(self) -> int: ...

    @abstractmethod
    def open(self) -> list[Shape]:
        """Check and open the source; the shapes of the tops."""

    @abstractmethod
    def read(self) -> Batch:
        """The next batch."""

    @abstractmethod
    def pass_over(self, batches: int) -> None:
        """Move on by this many batches, with the random numbers that reading them draws."""

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
        return self._read() if self._prefetch is None else self._prefetch.next()

    def skip(self, batches: int) -> None:
        """See `SourceLayer.skip`."""
        if self._prefetch is not None:
            batches -= self._prefetch.discard(batches)
        if batches > 0:
            self.pass_over(batches)

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


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
