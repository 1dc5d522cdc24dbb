"""Which values a layer takes as labels, and which records of a data layer become its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the blobs of a net as built, by name."""
Values = npt.NDArray[Any]

# Layer type -> which bottom it takes as indices. Caffe looks at none of them in a release build (Caffe: DCHECK).
_READERS: Final = {
    "SoftmaxWithLoss": 1, "InfogainLoss": 1, "MultinomialLogisticLoss": 1, "HingeLoss": 1, "Accuracy": 1, "Embed": 0,
}  # fmt: skip
# Where the label is looked at before it is used; the other losses do not know ignore_label.
_IGNORING: Final = {
    "SoftmaxWithLoss": "loss_param",
    "InfogainLoss": "loss_param",
    "Accuracy": "accuracy_param",
}
_KEEPING: Final = ("Split", "Reshape", "Flatten", "Tile", "Concat")


@dataclass(frozen=True, slots=True)
class Classes:
    """What `layer` takes as labels: 0 to `number` - 1, which are the classes of the blob `judged`, and `ignored`.

    Without `judged` they are the rows of an Embed layer. `may_ignore`: ignore_label can still be given.
    """

    layer: str
    judged: str
    number: int
    ignored: int | None = None
    may_ignore: bool = False

    def first_wrong(self, values: Values) -> int | None:
        """The flat index of the first value that is no label, as Caffe cuts it to a whole number."""
        if not values.size or (values.min() > -1 and values.max() < self.number):  # false for NaN
            return None
        wrong = ~((values > -1) & (values < self.number))
        if self.ignored is not None:
            wrong &= np.trunc(values) != self.ignored
        return int(wrong.argmax()) if wrong.any() else None

    def problem(self, label: float) -> str:
        """What is wrong with this label, and the remedy; follows `reads the label 7`."""
        # One that is the number of classes is of labels that begin with 1; one far above them stands for "unknown".
        limit = (
            f"{self.judged!r} has {self.number} classes, 0"
            if self.judged
            else f"layer {self.layer!r} takes 0"
        )
        remedies = ["correct the labels, which count from 0"]
        if self.number <= label < 2 * self.number:
            field = "num_output" if self.judged else "input_dim"
            remedies.append(f"make {field} {int(label) + 1} or more")
        if self.may_ignore and math.isfinite(label) and label != self.number:
            remedies.append(f"give layer {self.layer!r} ignore_label: {int(label)}")
        return f"but {limit} to {self.number - 1}: {', or '.join(remedies)}"


@dataclass(frozen=True, slots=True)
class LabelUse:
    """Channels `start` to `stop` of top number `top` of a data layer are labels, as scale * value + shift."""

    top: int
    classes: Classes
    start: int = 0
    stop: int | None = None
    scale: float = 1.0
    shift: float = 0.0

    def labels(self, values: Values) -> Values:
        """The labels in values whose second axis has the channels."""
        chosen = values[:, self.start : self.stop] if values.ndim > 1 else values
        if self.scale == 1 and not self.shift:
            return chosen
        return self.scale * chosen.astype(np.float64) + self.shift


def classes_of(layer: Any, shapes: Shapes) -> Classes | None:
    """What this layer takes as labels; None for a layer without labels, or where that is not known here."""
    if layer.type not in _READERS or len(layer.bottom) <= _READERS[layer.type]:
        return None
    if layer.type == "Embed":
        return Classes(layer.name, "", int(layer.embed_param.input_dim))
    shape = shapes.get(layer.bottom[0], ())
    if layer.type in ("MultinomialLogisticLoss", "HingeLoss"):
        return Classes(layer.name, layer.bottom[0], math.prod(shape[1:])) if shape else None
    axis = {
        "Accuracy": layer.accuracy_param.axis,
        "InfogainLoss": layer.infogain_loss_param.axis,
    }.get(layer.type, layer.softmax_param.axis)
    if not -len(shape) <= axis < len(shape):
        return None
    owner = getattr(layer, _IGNORING[layer.type])
    ignored = int(owner.ignore_label) if owner.HasField("ignore_label") else None
    return Classes(layer.name, layer.bottom[0], int(shape[axis]), ignored, ignored is None)


def label_bottom(layer: Any) -> int:
    """The number of the bottom with the labels of a layer that `classes_of` knows."""
    return _READERS[layer.type]


@dataclass(frozen=True, slots=True)
class _Flow:
    """A blob whose values come from channels of a data layer's top; `sliceable`: its axis 1 still has them."""

    top: int
    start: int = 0
    stop: int | None = None
    scale: float = 1.0
    shift: float = 0.0
    sliceable: bool = True

    def use(self, classes: Classes) -> LabelUse:
        return LabelUse(self.top, classes, self.start, self.stop, self.scale, self.shift)


def label_uses(net: Any, source: str, shapes: Shapes) -> tuple[LabelUse, ...]:
    """The uses of what the data layer `source` reads as labels, through layers that move labels or shift them.

    Behind other layers they are not followed: an engine looks at those labels when it comes to them.
    """
    flows: dict[str, list[_Flow]] = {}
    found: dict[LabelUse, None] = {}
    for layer in net.layer:
        if not layer.bottom:
            if layer.name == source:
                flows |= {name: _flows_of_top(layer, top) for top, name in enumerate(layer.top)}
            continue
        classes = classes_of(layer, shapes)
        if classes is not None:
            for flow in flows.get(layer.bottom[label_bottom(layer)], ()):
                found[flow.use(classes)] = None
        flows |= zip(layer.top, _passed_on(layer, flows, shapes), strict=True)
    return tuple(found)


def checked_for_nan(net: Any, layer: Any) -> tuple[int, ...]:
    """The numbers of this data layer's tops in which NaN or infinity would spoil the weights.

    A top is left out where nothing reads it, or layers of the user's own or Filter may leave such records out.
    """
    readers = [{reader.type for reader in net.layer if top in reader.bottom} for top in layer.top]
    return tuple(
        number
        for number, types in enumerate(readers)
        if types and not types & {"Python", "Filter", "Silence"}
    )


def _flows_of_top(layer: Any, top: int) -> list[_Flow]:
    if layer.type == "HDF5Data" or top > 0:
        return [_Flow(top)]
    transform = layer.transform_param
    if transform.mean_file or len(transform.mean_value) > 1 or transform.crop_size:
        return []
    mean = transform.mean_value[0] if transform.mean_value else 0.0
    return [_Flow(top, scale=transform.scale, shift=-mean * transform.scale)]


def _passed_on(
    layer: Any, flows: Mapping[str, list[_Flow]], shapes: Shapes
) -> Sequence[list[_Flow]]:
    """The flows of each top of a layer."""
    none: list[list[_Flow]] = [[] for _ in layer.top]
    read = [flow for bottom in layer.bottom for flow in flows.get(bottom, ())]
    if not read:
        return none
    if layer.type in _KEEPING:
        sliceable = layer.type == "Split"
        kept = [replace(flow, sliceable=flow.sliceable and sliceable) for flow in read]
        return [kept for _ in layer.top]
    if layer.type == "Power" and layer.power_param.power == 1:
        scale, shift = layer.power_param.scale, layer.power_param.shift
        return [
            [
                replace(flow, scale=scale * flow.scale, shift=scale * flow.shift + shift)
                for flow in read
            ]
        ]
    if layer.type == "Slice":
        return _sliced(layer, read, shapes.get(layer.bottom[0], ())) or none
    return none


def _sliced(layer: Any, read: list[_Flow], shape: tuple[int, ...]) -> list[list[_Flow]] | None:
    """Caffe: layers/slice_layer.cpp."""
    param, tops = layer.slice_param, len(layer.top)
    axis = int(param.slice_dim) if param.HasField("slice_dim") else int(param.axis)
    axis += len(shape) if axis < 0 else 0
    if axis == 0:
        return [read for _ in layer.top]
    if axis != 1 or len(shape) < 2 or not all(flow.sliceable for flow in read):
        return None
    points = list(param.slice_point) or [shape[1] // tops * part for part in range(1, tops)]
    bounds = [0, *points, shape[1]]
    return [
        [replace(flow, start=flow.start + low, stop=flow.start + high) for flow in read]
        for low, high in pairwise(bounds)
    ][:tops]
