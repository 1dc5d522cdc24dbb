"""The rules for the records of a data layer: one shape, complete, finite, and labels below the number of classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from caffenets.host_program import caffe_schema
from speedo.engines.label_rules import LabelUse, Values, checked_for_nan

Shape = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True, slots=True)
class RecordRule:
    """The rule of one source: an LMDB, with `images` a list of images below `root`, with `datasets` one of HDF5 files.

    Images are resized to `size` (height, width) if that is given, and converted to `channels` if that is not 0.
    `mean` is the shape of the mean file. `datasets` are the names of an HDF5Data layer's tops. `uses` say what the net
    takes as labels; tops with the numbers in `finite` must not hold NaN or infinity.
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
    datasets: tuple[str, ...] = ()
    uses: tuple[LabelUse, ...] = ()
    finite: tuple[int, ...] = ()

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
            return (
                f"is {_text(shape)}, but the first record is {_text(first)}: prepare all with the same channels, or, "
                "if they are encoded, give force_color: true in transform_param"
            )
        if self.batch > 1 and not self.crop and shape != first:
            return (
                f"is {_text(shape)}, but the first record is {_text(first)}, and a batch holds images of one size: "
                "prepare them in one size, or give crop_size"
            )
        return None

    def label_problem(self, top: int, values: Values) -> tuple[int, str, str] | None:
        """The first value of this top that the net has no class for: its row (first axis), its label, what is wrong."""
        for use in self.uses:
            if use.top == top:
                labels = use.labels(values)
                wrong = use.classes.first_wrong(labels)
                if wrong is not None:
                    label = float(labels.flat[wrong])
                    row = wrong // (labels.size // len(labels))
                    return row, f"{label:.9g}", use.classes.problem(label)
        return None


def record_rules(net: Any) -> list[RecordRule]:
    """The rules of a NetParameter's sources, as far as its text defines them: `uses` need the built net."""
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
                    finite=checked_for_nan(net, layer),
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
        elif layer.type == "HDF5Data":
            hdf5 = layer.hdf5_data_param
            rules.append(
                RecordRule(
                    layer.name, hdf5.source, False, "", int(hdf5.batch_size), 0, None, 0, None, tuple(layer.top),
                    finite=checked_for_nan(net, layer),
                )
            )  # fmt: skip
    return rules


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
