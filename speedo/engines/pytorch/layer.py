"""What a layer of the PyTorch engine is: shapes once, then a differentiable function of its bottoms and blobs.

The net around it (`speedo.engines.pytorch.net`) keeps names, parameters, loss weights and the order of layers. Autograd
makes the backward pass; where Caffe's gradient is not that of the forward function, the layer brings its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from speedo.errors import EngineError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer runs: the phase of its net, and the shard that its data layers read.

    `phase` is "TRAIN" or "TEST". `seed` is the solver's, or None. Relative files are searched in `folder`.
    """

    phase: str = "TRAIN"
    rank: int = 0
    count: int = 1
    seed: int | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class BlobSpec:
    """A parameter that a layer needs: Caffe's shape of it, and the FillerParameter that draws its first values.

    Without a filler it begins with zeros. `statistic` marks BatchNorm's running sums.
    """

    shape: Shape
    filler: Any = None
    statistic: bool = False


class Layer(ABC):
    """One layer, made from its LayerParameter. `blobs` are known after `setup`."""

    # How many bottoms and tops there may be; None leaves an end open.
    bottoms: ClassVar[tuple[int, int | None]] = (1, 1)
    tops: ClassVar[tuple[int, int | None]] = (1, 1)
    # Bottoms that get no gradient, counted from the end if below 0, and what they are; Caffe ends where one is wanted.
    constant: ClassVar[Mapping[int, str]] = {}

    def __init__(self, param: Any, place: Place) -> None:
        self.param = param
        self.place = place
        self.name = str(param.name)
        self.blobs: list[BlobSpec] = []

    @abstractmethod
    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        """The shapes of the tops; declares `blobs`. Raises `EngineError` for what is not supported."""

    @abstractmethod
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        """The tops, by differentiable operations; `blobs` are those that `setup` declared."""

    def refuse(self, what: str) -> EngineError:
        """An error that names this layer; `what` says what is wrong and what to do."""
        return EngineError(f"layer {self.name!r} ({self.param.type}) {what}")


class SourceLayer(Layer):
    """A layer that makes records: it has no bottoms, and `forward([], [])` gives the next batch."""

    bottoms: ClassVar[tuple[int, int | None]] = (0, 0)
    tops: ClassVar[tuple[int, int | None]] = (1, None)

    @property
    @abstractmethod
    def samples(self) -> int:
        """Records of one batch."""

    @abstractmethod
    def skip(self, batches: int) -> None:
        """Pass over so many batches, drawing the random numbers that reading them would draw."""

    def close(self) -> None:
        """End its threads; may be called twice."""
