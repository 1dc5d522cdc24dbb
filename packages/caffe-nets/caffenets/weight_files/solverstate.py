"""Caffe's `.solverstate`, in either form. Field numbers: Caffe, src/caffe/proto/caffe.proto."""

from __future__ import annotations

from pathlib import Path

from caffenets.weight_files import hdf5, wire
from caffenets.weight_files.stored import Stored, StoredState, Table, reading, size_of


def read_state(path: Path) -> StoredState:
    """The state in a file; which form it has, its content says. Raises `EngineError`."""
    with reading(path, "a .solverstate of Caffe") as file:
        if not file.peek(len(hdf5.SIGNATURE)).startswith(hdf5.SIGNATURE):
            size = size_of(file)
            table = Table(size)
            numbers = {1: 0, 4: 0}
            learned = ""
            history: list[Stored] = []
            for field in wire.fields(file, 0, size, table):
                if field.number in numbers and field.kind == wire.VARINT:
                    numbers[field.number] = wire.signed(field.value)
                elif field.number == 2:
                    learned = wire.text(file, field, 1 << 12)
                elif field.number == 3 and field.kind == wire.DELIMITED:
                    what = f"blob {len(history)} of the history"
                    history.append(wire.blob(file, field, path, what, table)[0])
            return StoredState(numbers[1], learned, numbers[4], tuple(history))
    return hdf5.read_state(path)
