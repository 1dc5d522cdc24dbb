"""Encodes Caffe's `Datum` and `BlobProto` without pycaffe, whose import takes a second and needs a native library.

Protobuf reads and writes them with a schema that is built here, in a separate descriptor pool, because Caffe's own
file defines messages of the same names in the default pool. Field numbers: Caffe, src/caffe/proto/caffe.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_Field = FieldDescriptorProto
_MESSAGES: Final[dict[str, dict[str, tuple[int, _Field.Type.ValueType]]]] = {
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
}


def _message_classes() -> dict[str, Any]:
    """A message class for each entry of `_MESSAGES`; its floats are a list, packed where Caffe packs it."""
    file = FileDescriptorProto(name="speedo/datum.proto", package="speedo", syntax="proto2")
    for name, table in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in table.items():
            added = message.field.add(name=field, number=number, type=kind)
            added.label = _Field.LABEL_OPTIONAL
            if kind == _Field.TYPE_FLOAT:
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


def mean_to_bytes(mean: npt.NDArray[np.float32]) -> bytes:
    """A mean image of shape (channels, height, width) as the `BlobProto` that `mean_file` names.

    It carries the four old size fields, as Caffe's own tool writes them, which every Caffe reads.
    """
    channels, height, width = mean.shape
    blob = BlobProto(num=1, channels=channels, height=height, width=width, data=mean.ravel())
    return bytes(blob.SerializeToString())
