"""What a data layer's transform_param does to a record, as layers of the exported net: subtract the mean, and scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caffenets.errors import SolverError
from caffenets.files import read_bytes
from caffenets.forms.steps import Dims, Shape, Step
from caffenets.host_program import caffe_schema
from caffenets.layer import Layer, LayerContext, Values
from caffenets.layers import LAYERS


@dataclass(frozen=True, slots=True)
class Transform:
    """(record - mean) scale; `mean` is None, one value for each channel, or one for each place.

    Caffe: data_transformer.cpp.
    """

    mean: Values | None
    scale: float

    def __call__(self, records: Values) -> Values:
        mean = np.float32(0) if self.mean is None else self._stretched()
        return (records - mean) * np.float32(self.scale)

    def back(self, values: Values) -> Values:
        """The records of whole numbers that `values` were made of."""
        mean = np.float32(0) if self.mean is None else self._stretched()
        return np.round(values / np.float32(self.scale) + mean)

    def layers(
        self, name: str, word: str, dims: Dims
    ) -> Iterator[tuple[Layer, Mapping[str, Values]]]:
        """The layers that work in place on the input of this name, and their values; `word` begins their names."""
        layer: Any = caffe_schema().LayerParameter
        if self.mean is not None:
            param = layer(name=f"{word}_mean", type="Bias", bottom=[name], top=[name])
            param.bias_param.num_axes = self.mean.ndim
            key = f"{word}_mean.bias"
            step = Step(param, f"{word}_mean", (dims,), (dims,), (self.mean.shape,), (key,), (key,))
            yield _made(step), {key: -self.mean}
        if self.scale != 1:
            param = layer(name=f"{word}_scale", type="Power", bottom=[name], top=[name])
            param.power_param.scale = self.scale
            yield _made(Step(param, f"{word}_scale", (dims,), (dims,))), {}

    def _stretched(self) -> Values:
        assert self.mean is not None
        return self.mean if self.mean.ndim == 3 else self.mean[:, None, None]


def _made(step: Step) -> Layer:
    layer = LAYERS[step.param.type](step.param, LayerContext("TEST"))
    layer.setup([tuple(1 if size is None else size for size in step.bottoms[0])])
    layer.step = step
    return layer


def transforms_of(
    net: Any, inputs: Mapping[str, Shape], require: Callable[[str, str], Path], origin: str
) -> dict[str, Transform]:
    """Of each input of a net with data layers what its layer does, where it does something. Raises `SolverError`.

    `require` finds the file of a mean, or raises an error that begins with the words it is given.
    """
    found = {}
    for layer in net.layer:
        name = str(layer.top[0]) if layer.top and not layer.bottom else ""
        if name not in inputs or layer.type == "Input":
            continue
        param, shape = layer.transform_param, inputs[name]
        mean = None
        if param.mean_file:
            path = require(param.mean_file, f"layer {layer.name!r} needs the mean file")
            mean = _cropped(_read(path), shape, f"{origin}: layer {layer.name!r}")
        elif param.mean_value:
            given = np.array(param.mean_value, np.float32)
            mean = np.broadcast_to(given, (shape[1],)).copy() if len(given) == 1 else given
        if mean is not None or param.scale != 1:
            found[name] = Transform(mean, float(param.scale))
    if not found:
        raise SolverError(
            f"{origin}: no data layer subtracts a mean or scales: leave --transform out"
        )
    return found


def _read(path: Path) -> Values:
    blob = caffe_schema().BlobProto()
    try:
        blob.ParseFromString(read_bytes(path))
        sizes: Sequence[int] = blob.shape.dim or (blob.num, blob.channels, blob.height, blob.width)
        return np.array(blob.data, np.float32).reshape(tuple(sizes)[-3:])
    except Exception as error:  # of any class: protobuf's own, too
        raise SolverError(
            f"the mean file {path} cannot be read, or is none ({type(error).__name__}): create it again"
        ) from None


def _cropped(mean: Values, shape: Shape, owner: str) -> Values:
    """The middle of the mean, as a test crops its records."""
    channels, height, width = shape[1:]
    top, left = (mean.shape[1] - height) // 2, (mean.shape[2] - width) // 2
    if mean.shape[0] != channels or min(top, left) < 0:
        raise SolverError(
            f"{owner} has a mean of {mean.shape} for records of {shape[1:]}: give the mean of its records"
        )
    return np.ascontiguousarray(mean[:, top : top + height, left : left + width])
