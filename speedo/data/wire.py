"""Encodes `Datum` and `BlobProto` of Caffe, `AnnotatedDatum` and `LabelMap` of SSD's, without pycaffe.

Its import takes a second and needs a native library.

Protobuf reads and writes them with a schema that is built here, in a separate descriptor pool, because Caffe's own
file defines messages of the same names in the default pool. Field numbers: Caffe, and SSD's Caffe,
src/caffe/proto/caffe.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_Field = FieldDescriptorProto
# Of each field its number and its type, or the name of its message; a list where `_LISTS` has it.
_MESSAGES: Final[dict[str, dict[str, tuple[int, _Field.Type.ValueType | str]]]] = {
    "Datum": {
        "channels": (1, _Field.TYPE_INT32),
        "height": (2, _Field.TYPE_INT32),
        "width": (3, _Field.TYPE_INT32),
        "data": (4, _Field.TYPE_BYTES),
        "label": (5, _Field.TYPE_INT32),
        "float_data": (6, _Field.TYPE_FLOAT),
        "encoded": (7, _Field.TYPE_BOOL),
    },
    "BlobProto": {
        "num": (1, _Field.TYPE_INT32),
        "channels": (2, _Field.TYPE_INT32),
        "height": (3, _Field.TYPE_INT32),
        "width": (4, _Field.TYPE_INT32),
        "data": (5, _Field.TYPE_FLOAT),
    },
    "NormalizedBBox": {
        "xmin": (1, _Field.TYPE_FLOAT),
        "ymin": (2, _Field.TYPE_FLOAT),
        "xmax": (3, _Field.TYPE_FLOAT),
        "ymax": (4, _Field.TYPE_FLOAT),
        "label": (5, _Field.TYPE_INT32),
        "difficult": (6, _Field.TYPE_BOOL),
    },
    "Annotation": {"instance_id": (1, _Field.TYPE_INT32), "bbox": (2, "NormalizedBBox")},
    "AnnotationGroup": {"group_label": (1, _Field.TYPE_INT32), "annotation": (2, "Annotation")},
    "AnnotatedDatum": {
        "datum": (1, "Datum"),
        "type": (2, _Field.TYPE_INT32),  # an enum, whose only value is 0: boxes
        "annotation_group": (3, "AnnotationGroup"),
    },
    "LabelMapItem": {
        "name": (1, _Field.TYPE_STRING),
        "label": (2, _Field.TYPE_INT32),
        "display_name": (3, _Field.TYPE_STRING),
    },
    "LabelMap": {"item": (1, "LabelMapItem")},
}
_LISTS: Final = ("float_data", "data", "annotation", "annotation_group", "item")


def _message_classes() -> dict[str, Any]:
    """A message class for each entry of `_MESSAGES`; a list of floats is packed where Caffe packs it."""
    file = FileDescriptorProto(name="speedo/datum.proto", package="speedo", syntax="proto2")
    for name, table in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in table.items():
            added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".speedo.{kind}"
            else:
                added.type = kind
            if field in _LISTS and kind != _Field.TYPE_BYTES:
                added.label = _Field.LABEL_REPEATED
                added.options.packed = name == "BlobProto"
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"speedo.{name}")) for name in _MESSAGES
    }


_CLASSES: Final = _message_classes()
BlobProto: Final = _CLASSES["BlobProto"]
DatumProto: Final = _CLASSES["Datum"]
AnnotatedProto: Final = _CLASSES["AnnotatedDatum"]
LabelMap: Final = _CLASSES["LabelMap"]
# How the bytes of one begin, with the field `datum`; a Datum begins otherwise.
_ANNOTATED: Final = b"\n"


@dataclass(frozen=True, slots=True)
class Datum:
    """One labelled image: raw bytes in channel, height, width order, or a whole image file if
    `encoded`."""

    channels: int
    height: int
    width: int
    data: bytes
    label: int
    encoded: bool = False

    def to_bytes(self) -> bytes:
        """The message; an encoded image carries no sizes, Caffe takes them from the file itself."""
        if self.label < 0:
            raise ValueError(f"{self.label} is negative: labels start at 0")
        message = DatumProto(data=self.data, label=self.label)
        if self.encoded:
            message.encoded = True
        else:
            message.channels, message.height, message.width = self.channels, self.height, self.width
        return bytes(message.SerializeToString())


@dataclass(frozen=True, slots=True)
class Box:
    """An object in an image, in parts of its width and height."""

    label: int
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False


def annotated_to_bytes(datum: Datum, boxes: Sequence[Box]) -> bytes:
    """The image with its boxes, those of a class together and numbered, as SSD's tools write it."""
    message = AnnotatedProto(type=0)
    message.datum.ParseFromString(datum.to_bytes())
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
    blob = BlobProto(num=1, channels=channels, height=height, width=width, data=mean.ravel())
    return bytes(blob.SerializeToString())
