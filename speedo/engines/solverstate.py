"""Caffe's `.solverstate` from and to flat vectors, without Caffe, so that a history can be cut into ranges.

Protobuf itself reads and writes it, by a schema made here in a descriptor pool of its own. A packed list of floats has
the same form as a field of bytes: so declared, the values are copied whole instead of one by one. Field numbers:
Caffe, src/caffe/proto/caffe.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from speedo.errors import EngineError
from speedo.exchange.vector import Layout, Vector

_VALUES: Final = np.dtype("<f4")


def _state_class() -> Any:
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="speedo/solverstate.proto", package="speedo", syntax="proto2")

    def declare(name: str, *fields: tuple[str, int, Any, Any, str | None]) -> None:
        message = file.message_type.add(name=name)
        for called, number, kind, label, of in fields:
            message.field.add(name=called, number=number, type=kind, label=label, type_name=of)

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    declare("BlobShape", ("dim", 1, field.TYPE_INT64, many, None))
    declare(
        "BlobProto",
        ("data", 5, field.TYPE_BYTES, one, None),
        ("shape", 7, field.TYPE_MESSAGE, one, ".speedo.BlobShape"),
    )
    declare(
        "SolverState",
        ("iter", 1, field.TYPE_INT32, one, None),
        ("learned_net", 2, field.TYPE_STRING, one, None),
        ("history", 3, field.TYPE_MESSAGE, many, ".speedo.BlobProto"),
        ("current_step", 4, field.TYPE_INT32, one, None),
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("speedo.SolverState"))


_STATE: Final = _state_class()


def write_solverstate(
    layout: Layout,
    history: Sequence[Vector],
    updates: int,
    *,
    learned_net: str | None = None,
    current_step: int = 0,
) -> bytes:
    """A SolverState with a blob for each blob of the layout, vector by vector.

    `updates` becomes its iteration: how many updates the solver has made. `learned_net` is the file of the weights that
    Caffe restores with it; None for none. `current_step` is the number of steps that the learning rate has taken.
    """
    blobs = [
        vector[place].reshape(blob.shape) for vector in history for blob, place in layout.slices()
    ]
    return state_of(updates, learned_net, current_step, blobs)


def state_of(
    iteration: int, learned_net: str | None, current_step: int, blobs: Sequence[Vector]
) -> bytes:
    """A SolverState of these fields and the blobs of its history, each in its shape."""
    state = _STATE(iter=iteration, learned_net=learned_net, current_step=current_step)
    for blob in blobs:
        values = blob.astype(_VALUES, copy=False).tobytes()
        state.history.add(data=values).shape.dim.extend(blob.shape)
    return bytes(state.SerializeToString())


def read_state(content: bytes) -> Any:
    """The SolverState; the values of each blob are bytes. Raises `EngineError`."""
    try:
        return _STATE.FromString(content)
    except DecodeError as error:
        raise EngineError(f"the solver history is damaged: {error}") from None


def read_solverstate(layout: Layout, vectors: int, content: bytes) -> tuple[list[Vector], int]:
    """The history as this many `vectors`, and the number of updates; `EngineError` if it is not of this layout."""
    state = read_state(content)
    sizes = [blob.size for blob in layout.blobs] * vectors
    if [len(blob.data) for blob in state.history] != [_VALUES.itemsize * size for size in sizes]:
        raise EngineError("the solver history is damaged: its blobs are not those of this net")
    blobs = iter(state.history)
    history = [layout.zeros() for _ in range(vectors)]
    for vector in history:
        for _, place in layout.slices():
            vector[place] = np.frombuffer(next(blobs).data, _VALUES)
    return history, int(state.iter)
