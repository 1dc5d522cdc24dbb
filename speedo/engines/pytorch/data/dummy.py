"""DummyData: tops that fillers fill. Caffe: layers/dummy_data_layer.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from caffenets.layer import Shape
from caffenets.pytorch.fillers import fill
from speedo.engines.pytorch.data.prefetch import Batch
from speedo.engines.pytorch.data.source import BatchSource
from speedo.errors import EngineError


class DummyData(BatchSource):
    """Caffe's DummyData layer: tops of any shapes, float32.

    A constant top is filled once and is the same tensor in every batch; the others are drawn again, by the place's seed
    and rank. Without a filler a top is zero.
    """

    @property
    def samples(self) -> int:
        """Leading extent of the first top."""
        return self._shape(0)[0] if self._shape(0) else 1

    def open(self) -> list[Shape]:
        self._check_counts()
        shapes = [self._shape(index) for index in range(len(self.param.top))]
        seed = int(self.draws("fillers").integers(1 << 63))
        self._generator = torch.Generator().manual_seed(seed)
        self._constant: list[Tensor | None] = []
        for index in range(len(shapes)):
            # Also where the values are not kept: a filler that cannot be is refused before the first batch.
            values = self._fill(index, torch.Generator())
            self._constant.append(values if self._is_constant(index) else None)
        return shapes

    def read(self) -> Batch:
        return [
            self._fill(index, self._generator) if constant is None else constant
            for index, constant in enumerate(self._constant)
        ]

    def pass_over(self, batches: int) -> None:
        """See `BatchSource.pass_over`; draws as reading does."""
        for _ in range(batches):
            self.read()

    def _check_counts(self) -> None:
        param, tops = self.param.dummy_data_param, len(self.param.top)
        fillers = len(param.data_filler)
        if fillers not in (0, 1, tops):
            raise self.refuse(
                f"has {fillers} data_filler for {tops} tops: give none, one or {tops}"
            )
        old = [len(getattr(param, field)) for field in ("num", "channels", "height", "width")]
        if any(old) and len(param.shape):
            raise self.refuse("has both shape and num, channels, height, width: keep shape")
        for found in old if any(old) else [len(param.shape)]:
            if found not in (1, tops):
                raise self.refuse(
                    f"has {found} shapes for {tops} tops: give one shape, or one for each top"
                )

    def _shape(self, index: int) -> Shape:
        param = self.param.dummy_data_param

        def chosen(values: Sequence[Any]) -> Any:
            return values[0] if len(values) == 1 else values[index]

        if len(param.num):
            return tuple(
                int(chosen(extents))
                for extents in (param.num, param.channels, param.height, param.width)
            )
        return tuple(int(extent) for extent in chosen(param.shape).dim)

    def _filler(self, index: int) -> Any:
        """The FillerParameter of a top; None where the layer has none."""
        fillers = self.param.dummy_data_param.data_filler
        return None if not len(fillers) else fillers[0 if len(fillers) == 1 else index]

    def _is_constant(self, index: int) -> bool:
        filler = self._filler(index)
        return filler is None or filler.type == "constant"

    def _fill(self, index: int, generator: torch.Generator) -> Tensor:
        try:
            values = fill(self._filler(index), self._shape(index), generator)
        except EngineError as error:
            raise self.refuse(f"cannot fill top {self.param.top[index]!r}: {error}") from error
        return values.pin_memory() if self._pin else values


LAYERS: Final = (DummyData,)
