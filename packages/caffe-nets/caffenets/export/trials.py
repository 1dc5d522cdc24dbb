"""What computes a deploy net and the files that are made of it, so that these can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from caffenets.forms.steps import Shape

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Computed:
    """What was made of a net: the shapes between its layers and of its blobs, and its outputs.

    `constants` are the tops that depend on shapes alone, by their names.
    """

    shapes: Mapping[str, Shape]
    blobs: Mapping[str, tuple[Shape, ...]]
    outputs: Arrays
    constants: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class Trials(Protocol):
    """Where they run; `judge` is what people call that which computes the net."""

    @property
    def judge(self) -> str: ...

    def engine(self, nets: Sequence[tuple[Any, Arrays]], weights: Path | None) -> list[Computed]:
        """Nets with inputs, in Caffe's TEST phase. Raises `SolverError`, `EngineError`."""
        ...

    def onnx(self, file: Path, inputs: Sequence[Arrays]) -> list[Arrays]:
        """The outputs of an ONNX file."""
        ...

    def torch(
        self,
        file: Path,
        inputs: Sequence[Arrays],
        names: Sequence[str],
        values: Arrays,
        owners: Mapping[str, str],
    ) -> list[Arrays]:
        """The outputs of the module in this file, which have these names in the net.

        Before, its state dict is written beside it, with a tensor for each key of `owners`.
        """
        ...
