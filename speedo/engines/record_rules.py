"""The rules for the records of a data layer: one shape, complete, and labels below the number of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from speedo.engines.schema import caffe_schema

Shape = tuple[int, int, int]
"""Channels, height, width."""

_JUDGES: Final = ("SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss", "Accuracy")


@dataclass(frozen=True, slots=True)
class RecordRule:
    """The rule of one source: an LMDB, or with `images` a list of images below `root`.

    Images are resized to `size` (height, width) if that is given, and converted to `channels` if that is not 0.
    `mean` is the shape of the mean file. A label must be one of `classes`, those of the blob `judged`, or `ignored`;
    0 classes: any label is accepted.
    """

    layer: str
    source: str
    images: bool
    root: str
    batch: int
    crop: int
    size: tuple[int, int] | None
    channels: int
    mean: Shape | None
    classes: int = 0
    judged: str = ""
    ignored: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> RecordRule:
        """The inverse of `to_plain`."""
        lists = {
            name: value and tuple(value) for name in ("size", "mean") for value in [values[name]]
        }
        return cls(**{**values, **lists})

    def shape_problem(self, shape: Shape, first: Shape) -> str | None:
        """What is wrong with a record of this shape after one of the shape `first`; follows `which `."""
        if min(shape) < 1:
            return f"has the shape {_text(shape)}: create the database again"
        if self.mean is not None and shape != self.mean:
            return f"is {_text(shape)}, but the mean file is {_text(self.mean)}: prepare both in one size, together"
        if self.crop and min(shape[1:]) < self.crop:
            return (
                f"is {_text(shape)}, smaller than crop_size {self.crop}: use a smaller crop_size, or prepare the "
                "images in a larger size"
            )
        if shape[0] != first[0]:
            return f"is {_text(shape)}, but the first record is {_text(first)}: prepare all with the same channels"
        if self.batch > 1 and not self.crop and shape != first:
            return (
                f"is {_text(shape)}, but the first record is {_text(first)}, and a batch holds images of one size: "
                "prepare them in one size, or give crop_size"
            )
        return None

    def label_problem(self, label: int, record: str) -> str | None:
        """A sentence for a label that the net has no class for."""
        if not self.classes or 0 <= label < self.classes or label == self.ignored:
            return None
        start = f"layer {self.layer!r} reads the label {label} (record {record})"
        if label < 0:
            return f"{start}: correct the labels, which count from 0"
        return (
            f"{start}, but {self.judged!r} has {self.classes} classes, 0 to {self.classes - 1}: correct the labels, "
            f"or make num_output {label + 1} or more"
        )


def record_rules(net: Any) -> list[RecordRule]:
    """The rules of a NetParameter's sources, as far as its text defines them; labels are checked by `with_classes`."""
    rules = []
    for layer in net.layer:
        transform = layer.transform_param
        crop, mean = int(transform.crop_size), _mean_shape(transform.mean_file)
        channels = 3 if transform.force_color else 1 if transform.force_gray else 0
        if layer.type == "Data" and layer.data_param.backend == layer.data_param.LMDB:
            data = layer.data_param
            rules.append(
                RecordRule(
                    layer.name,
                    data.source,
                    False,
                    "",
                    int(data.batch_size),
                    crop,
                    None,
                    channels,
                    mean,
                )
            )
        elif layer.type == "ImageData":
            image = layer.image_data_param
            size = (int(image.new_height), int(image.new_width))
            rules.append(
                RecordRule(
                    layer.name, image.source, True, image.root_folder, int(image.batch_size), crop,
                    size if all(size) else None, 3 if image.is_color else 1, mean,
                )
            )  # fmt: skip
    return rules


def with_classes(rule: RecordRule, net: Any, shapes: Mapping[str, tuple[int, ...]]) -> RecordRule:
    """The rule with the fewest classes that a layer of this net judges its labels by.

    `shapes` are those of the blobs of the net as built, by name.
    """
    labels = {
        layer.top[1]
        for layer in net.layer
        if layer.name == rule.layer and layer.type in ("Data", "ImageData") and len(layer.top) > 1
    }
    for layer in net.layer:
        if layer.type in _JUDGES and len(layer.bottom) > 1 and layer.bottom[1] in labels:
            classes = classes_of(layer, shapes)
            if classes and not 0 < rule.classes <= classes:
                rule = replace(
                    rule, classes=classes, judged=layer.bottom[0], ignored=_ignored(layer)
                )
    return rule


def classes_of(judge: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Extent of the judged blob along its classes; 0 where that is not known here."""
    shape = shapes.get(judge.bottom[0])
    if shape is None:
        return 0
    axis = judge.accuracy_param.axis if judge.type == "Accuracy" else judge.softmax_param.axis
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else 0


def _ignored(judge: Any) -> int | None:
    owner = judge.accuracy_param if judge.type == "Accuracy" else judge.loss_param
    return int(owner.ignore_label) if owner.HasField("ignore_label") else None


def _mean_shape(file: str) -> Shape | None:
    """Caffe: blob.cpp, FromProto: the shape is written in one of two ways."""
    if not file:
        return None
    try:
        blob = caffe_schema().BlobProto.FromString(Path(file).read_bytes())
    except (OSError, DecodeError):
        return None  # Caffe says it
    if blob.HasField("num") or blob.HasField("channels"):
        return int(blob.channels), int(blob.height), int(blob.width)
    dims = [int(dim) for dim in blob.shape.dim][-3:]
    return (dims[0], dims[1], dims[2]) if len(dims) == 3 else None


def _text(shape: Shape) -> str:
    return " x ".join(str(extent) for extent in shape)
