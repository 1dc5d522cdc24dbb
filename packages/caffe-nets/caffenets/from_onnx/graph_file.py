"""The graph of an ONNX file, read without the package `onnx`. Field numbers: ONNX, onnx/onnx.proto."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from caffenets.forms.steps import Dims
from caffenets.weight_files import wire
from caffenets.weight_files.onnx import MOST_WHOLE, Tensor, read_tensor
from caffenets.weight_files.stored import (
    FLOAT32,
    MOST_AXES,
    DamagedError,
    Table,
    reading,
    size_of,
    stored,
)

_DOMAINS: Final = ("", "ai.onnx")
Fields = Mapping[int, list[wire.Field]]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator; one of another domain than ONNX's has it before its type. Tensors in `options` are not read yet."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GraphFile:
    """`known` are the shapes that the file says of what is between nodes. A size that is not fixed is None."""

    path: Path
    name: str
    opset: int
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Dims]
    outputs: tuple[str, ...]
    known: Mapping[str, Dims]
    constants: Mapping[str, Tensor]


def read_graph(path: Path) -> GraphFile:
    """The graph of this file, with its large constants not read yet. Raises `EngineError`."""
    with reading(path, "an ONNX file") as file:
        return _Reader(file, path).graph()


class _Reader:
    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file, self._path = file, path
        self._size = size_of(file)
        self._table = Table(self._size)

    def graph(self) -> GraphFile:
        whole = self._fields(wire.Field(0, wire.DELIMITED, 0, self._size))
        if len(whole[7]) != 1:
            raise DamagedError("is no ONNX file, or a truncated one: it has not one graph")
        own = self._fields(whole[7][-1])
        opsets = [self._fields(one) for one in whole[8]]
        versions = [_number(one[2]) for one in opsets if self._text(one[1]) in _DOMAINS]
        constants = {}
        for field in own[5]:
            one = read_tensor(self._file, field, self._path, self._table)
            constants[one.name] = one
        inputs, outputs, known = (dict(map(self._value, own[number])) for number in (11, 12, 13))
        return GraphFile(
            self._path,
            self._text(own[2]),
            max(versions, default=1),
            tuple(map(self._node, own[1])),
            {name: dims for name, dims in inputs.items() if name not in constants},
            tuple(outputs),
            known | outputs,
            constants,
        )

    def _fields(self, place: wire.Field) -> Fields:
        found: dict[int, list[wire.Field]] = defaultdict(list)
        for field in wire.fields(self._file, place.begin, place.end, self._table):
            found[field.number].append(field)
        return found

    def _text(self, fields: list[wire.Field]) -> str:
        return wire.text(self._file, fields[-1]) if fields else ""

    def _node(self, place: wire.Field) -> Node:
        own = self._fields(place)
        inputs, outputs = (
            tuple(wire.text(self._file, one) for one in own[number]) for number in (1, 2)
        )
        op, domain = self._text(own[4]), self._text(own[7])
        name = self._text(own[3]) or next(filter(None, outputs), op)
        options = dict(map(self._option, own[5]))
        return Node(op if domain in _DOMAINS else f"{domain}.{op}", name, inputs, outputs, options)

    def _option(self, place: wire.Field) -> tuple[str, Any]:
        """An AttributeProto; None for one of a kind that no operator of ours has."""
        own = self._fields(place)
        name, kind = self._text(own[1]), _number(own[20])
        what = f"the attribute {name!r:.100}"
        if kind == 1:
            return name, self._floats(own[2], what)[-1]
        if kind == 2:
            return name, _number(own[3])
        if kind == 3:
            return name, self._text(own[4])
        if kind == 4 and own[5]:
            return name, read_tensor(self._file, own[5][-1], self._path, self._table)
        if kind == 6:
            return name, self._floats(own[7], what)
        if kind == 7:
            most = MOST_WHOLE
            return name, [n for one in own[8] for n in wire.integers(self._file, one, what, most)]
        return name, None

    def _floats(self, fields: list[wire.Field], what: str) -> list[float]:
        pieces = [wire.piece(one, FLOAT32, what) for one in fields]
        length = sum(one.length for one in pieces)
        found: list[float] = stored(self._path, what, (length,), pieces).read().tolist()
        return found or [0.0]

    def _value(self, place: wire.Field) -> tuple[str, Dims]:
        """Name and shape of a ValueInfoProto; no shape for one that the file does not say."""
        own = self._fields(place)
        dims: list[int | None] = []
        for kind in own[2]:
            for tensor in self._fields(kind)[1]:
                for shape in self._fields(tensor)[2]:
                    for dim in self._fields(shape)[1]:
                        size = wire.signed(_number(self._fields(dim)[1]))
                        dims.append(size if size > 0 else None)
        if len(dims) > MOST_AXES:
            raise DamagedError(f"is damaged: a value has more than {MOST_AXES} axes")
        return self._text(own[1]), tuple(dims)


def _number(fields: list[wire.Field]) -> int:
    return wire.signed(fields[-1].value) if fields else 0
