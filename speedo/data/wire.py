"""Encodes `Datum` and `BlobProto` of Caffe, `AnnotatedDatum` of SSD's Caffe, without pycaffe.

Its import takes a second and needs a native library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from caffenets.caffe_schema import caffe_pb2
from speedo.data.base import Shape

# How the bytes of one begin, with the field `datum`; a Datum begins otherwise.
_ANNOTATED: Final = b"\n"


def datum(shape: Shape, data: bytes, label: int, *, encoded: bool = False) -> caffe_pb2.Datum:
    """One labelled image: raw bytes in channel, height, width order, or a whole image file if `encoded`.

    An encoded image carries no sizes, Caffe takes them from the file itself.
    """
    if label < 0:
        raise ValueError(f"{label} is negative: labels start at 0")
    if encoded:
        return caffe_pb2.Datum(data=data, label=label, encoded=True)
    channels, height, width = shape
    return caffe_pb2.Datum(channels=channels, height=height, width=width, data=data, label=label)


@dataclass(frozen=True, slots=True)
class Box:
    """An object in an image, in parts of its width and height."""

    label: int
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False


def annotated_to_bytes(image: caffe_pb2.Datum, boxes: Sequence[Box]) -> bytes:
    """The image with its boxes, those of a class together and numbered, as SSD's tools write it."""
    message = caffe_pb2.AnnotatedDatum(type=0, datum=image)
    for label in dict.fromkeys(box.label for box in boxes):
        group = message.annotation_group.add(group_label=label)
        for number, box in enumerate(box for box in boxes if box.label == label):
            corners = {"xmin": box.xmin, "ymin": box.ymin, "xmax": box.xmax, "ymax": box.ymax}
            group.annotation.add(
                instance_id=number, bbox={**corners, "label": label, "difficult": box.difficult}
            )
    return bytes(message.SerializeToString())


def is_annotated(record: bytes) -> bool:
    """Whether these bytes are an image with boxes, not a plain Datum."""
    return record[:1] == _ANNOTATED


def mean_to_bytes(mean: npt.NDArray[np.float32]) -> bytes:
    """A mean image of shape (channels, height, width) as the `BlobProto` that `mean_file` names.

    It carries the four old size fields, as Caffe's own tool writes them, which every Caffe reads.
    """
    channels, height, width = mean.shape
    blob = caffe_pb2.BlobProto(
        num=1, channels=channels, height=height, width=width, data=mean.ravel()
    )
    return bytes(blob.SerializeToString())
