"""What a layer of the PyTorch engine is: shapes once, then a differentiable function of its bottoms and blobs.

The net around it keeps names, parameters, loss weights and the order of layers. Autograd
makes the backward pass; where Caffe's gradient is not that of the forward function, the layer brings its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from caffenets.errors import EngineError
from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual, Step
from caffenets.forms.torch_code import Code
from caffenets.torch_later import Tensor, torch

Shape = tuple[int, ...]
Array = npt.NDArray[Any]
Values = npt.NDArray[np.float32]
_NO_EQUAL: Final = (
    "has no equal in {}: leave the layer out of the net, so that its bottoms are outputs"
)


@dataclass(frozen=True, slots=True)
class LayerContext:
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


def host_waits(device: torch.device) -> bool:
    """Whether a value of this device costs nothing to read."""
    return device.type == "cpu"


class Layer(ABC):
    """One layer, made from its LayerParameter. `blobs` are known after `setup`."""

    # How many bottoms and tops there may be; None leaves an end open.
    bottoms: ClassVar[tuple[int, int | None]] = (1, 1)
    tops: ClassVar[tuple[int, int | None]] = (1, 1)
    # Bottoms that get no gradient, counted from the end if below 0, and what they are; Caffe ends where one is wanted.
    constant: ClassVar[Mapping[int, str]] = {}
    # Whether its top is right in Caffe where it overwrites the bottom. Others it refuses, or they read what they wrote.
    in_place: ClassVar[bool] = False
    # Whether its tops depend on nothing but the heights and widths of its bottoms.
    by_shape: ClassVar[bool] = False
    # The bottoms that `counted` reads.
    counts: ClassVar[tuple[int, ...]] = (1,)
    # The names of its blobs in ONNX and in a state dict, in Caffe's order.
    blob_names: ClassVar[tuple[str, ...]] = ("weight", "bias")
    # Whether its top has a row for each thing that it finds, in an order that rounding may change.
    searches: ClassVar[bool] = False
    # What its export knows of it, after `setup`.
    step: Step

    def __init__(self, param: Any, place: LayerContext) -> None:
        self.param = param
        self.place = place
        self.name = str(param.name)
        self.blobs: list[BlobSpec] = []
        self._noted: tuple[Tensor, int, str] | None = None

    @abstractmethod
    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        """The shapes of the tops; declares `blobs`. Raises `EngineError` for what is not supported."""

    @abstractmethod
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        """The tops, by differentiable operations; `blobs` are those that `setup` declared."""

    def param_name(self, number: int) -> str:
        """The name under which this blob is shared; empty for none."""
        return str(self.param.param[number].name) if number < len(self.param.param) else ""

    def loss_of_parts(self) -> str:
        """How its loss follows from those of parts of a batch: `mean` weighted by records, `sum`, or `counted`.

        `counted` is a mean weighted by what `counted` gives; empty for one that is made for each record.
        """
        return ""

    def counted(self, *bottoms: Tensor) -> Tensor:
        """By how many of what is in these bottoms (`counts`) its loss is divided."""
        raise NotImplementedError

    def checked(self, index: Tensor, size: int, what: str) -> Tensor:
        """`index`, of whole numbers, which must be from 0 to `size` - 1. Raises `EngineError` where one is not.

        A GPU would end at such an index without a cause, and the host must not wait for it: there it is taken into the
        range, and `check_indices` raises the error afterwards. `what` says what was read and what to do, with {}.
        """
        if not index.numel():
            return index
        ends = torch.stack(torch.aminmax(index))
        if self._noted is not None:
            ends = torch.stack(
                [
                    torch.minimum(ends[0], self._noted[0][0]),
                    torch.maximum(ends[1], self._noted[0][1]),
                ]
            )
        self._noted = ends, size, what
        if not host_waits(index.device):
            return index.clamp(0, size - 1)
        self.check_indices()
        return index

    def check_indices(self) -> None:
        """Raise what `checked` has noted."""
        if self._noted is None:
            return
        (low, high), size, what = self._noted[0].tolist(), *self._noted[1:]
        self._noted = None
        if low < 0 or high >= size:
            raise self.refuse(what.format(low if low < 0 else high))

    def refuse(self, what: str) -> EngineError:
        """An error that names this layer; `what` says what is wrong and what to do."""
        return EngineError(f"layer {self.name!r} ({self.param.type}) {what}")

    # ------------------------------------------------------------ export

    @classmethod
    def is_exported(cls) -> bool:
        """Whether it has a form in ONNX."""
        return cls.onnx is not Layer.onnx

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        """The names of its `count` blobs."""
        return cls.blob_names[:count]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        """Add the layer's nodes; the names of its tops' values. Raises `NoEqual` before anything is written."""
        raise NoEqual(_NO_EQUAL.format("ONNX"))

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        """Expressions of PyTorch for its tops; one alone may be a tuple of all. Raises `NoEqual`."""
        raise NoEqual(_NO_EQUAL.format("PyTorch"))

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        """Values that bottom `at` may have where it is an input of the net; None for any."""
        return None

    def from_onnx(self, stored: Mapping[str, Values], notes: Mapping[str, str]) -> list[Values]:
        """Caffe's blobs from the initializers of ONNX. Raises `KeyError` for one that is missing."""
        return [stored[key] for key in self.step.owners]


class SourceLayer(Layer):
    """A layer that makes records: it has no bottoms, and `forward([], [])` gives the next batch."""

    bottoms: ClassVar[tuple[int, int | None]] = (0, 0)
    tops: ClassVar[tuple[int, int | None]] = (1, None)
    boxes: ClassVar[int | None] = None  # of its tops the one of `caffenets.box_labels`

    @property
    @abstractmethod
    def samples(self) -> int:
        """Records of one batch."""

    @abstractmethod
    def skip(self, batches: int) -> None:
        """Pass over this many batches, drawing the random numbers that reading them would draw."""

    def read_next(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read the records of these ranges next, and then those that follow; no effect where none are read."""

    def close(self) -> None:
        """End its threads; may be called twice."""
