"""The two messages that data layers parse."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass


def _classes() -> tuple[Any, Any]:
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="speedo/records.proto", package="speedo", syntax="proto2")

    def declare(name: str, *fields: tuple[str, int, Any, Any, str | None]) -> None:
        message = file.message_type.add(name=name)
        for called, number, kind, label, of in fields:
            message.field.add(name=called, number=number, type=kind, label=label, type_name=of)

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    declare(
        "Datum",
        ("channels", 1, field.TYPE_INT32, one, None),
        ("height", 2, field.TYPE_INT32, one, None),
        ("width", 3, field.TYPE_INT32, one, None),
        ("data", 4, field.TYPE_BYTES, one, None),
        ("label", 5, field.TYPE_INT32, one, None),
        ("float_data", 6, field.TYPE_FLOAT, many, None),
        ("encoded", 7, field.TYPE_BOOL, one, None),
    )
    declare("BlobShape", ("dim", 1, field.TYPE_INT64, many, None))
    declare(
        "BlobProto",
        ("num", 1, field.TYPE_INT32, one, None),
        ("channels", 2, field.TYPE_INT32, one, None),
        ("height", 3, field.TYPE_INT32, one, None),
        ("width", 4, field.TYPE_INT32, one, None),
        ("data", 5, field.TYPE_FLOAT, many, None),
        ("shape", 7, field.TYPE_MESSAGE, one, ".speedo.BlobShape"),
        ("double_data", 8, field.TYPE_DOUBLE, many, None),
    )
    pool = DescriptorPool()
    pool.Add(file)
    return tuple(
        GetMessageClass(pool.FindMessageTypeByName(f"speedo.{name}"))
        for name in ("Datum", "BlobProto")
    )


Datum: Final[Any]
BlobProto: Final[Any]
Datum, BlobProto = _classes()
