"""A state dict of PyTorch's, as `torch.save(model.state_dict(), file)` writes it, read without PyTorch.

The file is a pickle that names tensors, and their values beside it. Of pickle's instructions only those are followed
that make tables, and of what they would call only the names that `torch.save` writes for tensors: nothing is run.
PyTorch: torch/serialization.py; torch/_utils.py, _rebuild_tensor_v2.
"""

from __future__ import annotations

import io
import math
import operator
import pickletools
import struct
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from caffenets.weight_files.archives import entries
from caffenets.weight_files.stored import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    DamagedError,
    Piece,
    Shape,
    Stored,
    Table,
    check_shape,
    exactly,
    reading,
    shape_text,
    size_of,
    stored,
)

_REMEDY: Final = "save model.state_dict() alone, by torch.save"
_NO_CODE: Final = "is no state dict that can be read without running code"
_OLD_MAGIC: Final = 0x1950A86A20F9469CFC6C  # before PyTorch 1.6: pickles, one after another
_OLD_VERSION: Final = 1001
_MOST_PICKLE_BYTES: Final = 64 << 20
_KINDS: Final[Mapping[str, np.dtype[Any]]] = {
    "FloatStorage": FLOAT32,
    "DoubleStorage": FLOAT64,
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": BFLOAT16,
    "ComplexFloatStorage": np.dtype("<c8"),
    "ComplexDoubleStorage": np.dtype("<c16"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("<i1"),
    "ByteStorage": np.dtype("<u1"),
    "BoolStorage": np.dtype("<u1"),
}
_TENSORS: Final = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
_PARAMETER: Final = "torch._utils _rebuild_parameter"
# Pickle's instructions that put a value on the stack which they carry themselves.
_VALUES: Final = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
_MADE: Final[Mapping[str, Callable[[], Any]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_MARKED: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": lambda items: _set_items({}, items),
}


class _Name(NamedTuple):
    """What the pickle would import."""

    name: str


class _Storage(NamedTuple):
    """Numbers that are stored under this key, from the `first` on."""

    key: str
    kind: np.dtype[Any]
    first: int


class _Tensor(NamedTuple):
    storage: _Storage
    first: int
    shape: Shape
    strides: Shape


def read_state_dict(path: Path) -> dict[str, Stored]:
    """The tensors of floating point by their names, not read yet; those with the same values are one object.

    Raises `EngineError` for a file that is damaged, or holds anything else than tensors by names.
    """
    with reading(path, "a state dict of PyTorch") as file:
        table = Table(size_of(file))
        try:
            found, places = (_new if file.peek(2).startswith(b"PK") else _old)(file, table)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{_NO_CODE}, or is damaged ({error!s:.100})", _REMEDY) from None
        if not isinstance(found, dict):
            raise DamagedError(f"holds a {type(found).__name__}, no state dict", _REMEDY)
        others = [name for name, one in found.items() if not isinstance(one, _Tensor)]
        if others:
            names = ", ".join(f"{one!r:.40}" for one in others[:3])
            raise DamagedError(f"holds other things than tensors ({names})", _REMEDY)
        arrays: dict[_Tensor, Stored] = {}
        weights = {}
        for name, tensor in found.items():
            if tensor.storage.kind.kind in "fV":
                if tensor not in arrays:
                    arrays[tensor] = table.array(_located(path, f"{name!r:.100}", tensor, places))
                weights[str(name)] = arrays[tensor]
        return weights


Places = Mapping[str, tuple[int, int]]  # where the bytes of a storage begin, and how many there are


def _new(file: BufferedReader, table: Table) -> tuple[Any, Places]:
    found = entries(file)
    pickles = [name for name in found if name.endswith("/data.pkl")]
    if not found:
        return {}, {}
    if len(pickles) != 1:
        raise DamagedError(f"{_NO_CODE}: it is an archive of something else", _REMEDY)
    root = pickles[0].removesuffix("data.pkl")
    order = found.get(f"{root}byteorder")
    if order is not None and exactly(file, order.begin, min(order.size, 9), "it") != b"little":
        raise DamagedError("was written by a machine with another order of bytes", _REMEDY)
    entry = found[pickles[0]]
    content = exactly(file, entry.begin, min(entry.size, _MOST_PICKLE_BYTES), "its table")
    data = f"{root}data/"
    places = {
        name.removeprefix(data): (one.begin, one.size)
        for name, one in found.items()
        if name.startswith(data)
    }
    return _Unpickler(table).run(io.BytesIO(content)), places


def _old(file: BufferedReader, table: Table) -> tuple[Any, Places]:
    unpickler = _Unpickler(table)
    begin = io.BytesIO(file.read(_MOST_PICKLE_BYTES))
    if (unpickler.run(begin), unpickler.run(begin)) != (_OLD_MAGIC, _OLD_VERSION):
        raise DamagedError(f"{_NO_CODE}, or is none of PyTorch's", _REMEDY)
    system, found, keys = unpickler.run(begin), unpickler.run(begin), unpickler.run(begin)
    if not system.get("little_endian", True):
        raise DamagedError("was written by a machine with another order of bytes", _REMEDY)
    places = {}
    size, at = size_of(file), begin.tell()
    for key in keys:
        (count,) = struct.unpack("<q", exactly(file, at, 8, "its values"))
        length = count * unpickler.kinds[key].itemsize
        if not 0 <= length <= size - at - 8:
            raise DamagedError("is truncated: it ends before the end of its values", _REMEDY)
        places[key] = (at + 8, length)
        at += 8 + length
    return found, places


def _located(path: Path, what: str, tensor: _Tensor, places: Places) -> Stored:
    """Raises `DamagedError` for a tensor that does not lie in its storage, or repeats its values."""
    (key, kind, before), first, shape, strides = tensor
    check_shape(what, shape)
    if len(strides) != len(shape) or min((*strides, first, before)) < 0:
        raise DamagedError(f"is damaged: {what} has the strides {strides[:9]}", _REMEDY)
    if not math.prod(shape):
        return stored(path, what, shape, ())
    begin, length = places[key]
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    first += before
    if (first + span) * kind.itemsize > length:
        raise DamagedError(
            f"declares more values for {what} than it holds ({shape_text(shape)})", _REMEDY
        )
    if span < math.prod(shape):
        raise DamagedError(
            f"holds {what} as {span:,} values that are repeated to {shape_text(shape)}",
            "save it as tensor.contiguous()",
        )
    place = Piece(begin + first * kind.itemsize, span, kind)
    plain = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    same = all(step == own for step, own, n in zip(strides, plain, shape, strict=True) if n > 1)
    return stored(path, what, shape, (place,), None if same else strides)


class _Unpickler:
    """Follows pickles; `kinds` are the types of the storages that they have named."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.kinds: dict[str, np.dtype[Any]] = {}

    def run(self, stream: Any) -> Any:
        """The value of the next pickle of the stream. Raises `DamagedError`, and what `pickletools` raises."""
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[Any, Any] = {}
        for opcode, argument, _ in pickletools.genops(stream):
            self._table.entry()
            name = opcode.name
            if name in ("PROTO", "FRAME"):
                continue
            if name == "STOP":
                return stack.pop()
            if name == "MARK":
                marks.append(len(stack))
            elif name in _VALUES:
                stack.append(argument)
            elif name in _MADE:
                stack.append(_MADE[name]())
            elif name in _MARKED:
                stack.append(_MARKED[name](_from_mark(stack, marks)))
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "GLOBAL":
                stack.append(_Name(str(argument)))
            elif name == "STACK_GLOBAL":
                own, module = stack.pop(), stack.pop()
                stack.append(_Name(f"{module} {own}"))
            elif name == "BINPERSID":
                stack.append(self._storage(stack.pop()))
            elif name == "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                stack.append(_made(called, arguments))
            elif name == "BUILD":
                stack.pop()  # what a table or parameter has beside its items
            elif name in ("SETITEM", "SETITEMS"):
                items = _from_mark(stack, marks) if name == "SETITEMS" else _pop(stack, 2)
                _set_items(stack[-1], items)
            elif name in ("APPEND", "APPENDS"):
                items = _from_mark(stack, marks) if name == "APPENDS" else _pop(stack, 1)
                list.extend(stack[-1], items)
            else:
                raise DamagedError(f"{_NO_CODE} (pickle's {name})", _REMEDY)
        raise DamagedError("is truncated", _REMEDY)

    def _storage(self, named: Any) -> _Storage:
        """What ("storage", type, key, device, count, None or (key, first, count)) names."""
        kind = _KINDS[named[1].name.rpartition(" ")[2]] if named[0] == "storage" else None
        key = str(named[2])
        if kind is None or self.kinds.setdefault(key, kind) != kind:
            raise DamagedError(f"{_NO_CODE}, or is damaged (storage {key:.40})", _REMEDY)
        view = named[5] if len(named) > 5 else None
        return _Storage(key, kind, 0 if view is None else operator.index(view[1]))


def _made(called: Any, arguments: Any) -> Any:
    name = called.name if isinstance(called, _Name) else "a value"
    if name == "collections OrderedDict" and not arguments:
        return {}
    if name == "torch Size":
        return tuple(arguments[0])
    if name == _PARAMETER:
        return arguments[0]
    if name in _TENSORS and isinstance(arguments[0], _Storage):
        storage, first, shape, strides = arguments[:4]
        extents, steps = (tuple(map(operator.index, one)) for one in (shape, strides))
        return _Tensor(storage, operator.index(first), extents, steps)
    raise DamagedError(f"{_NO_CODE}: it calls {name:.100}", _REMEDY)


def _from_mark(stack: list[Any], marks: list[int]) -> list[Any]:
    return _pop(stack, len(stack) - marks.pop())


def _pop(stack: list[Any], count: int) -> list[Any]:
    found = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return found


def _set_items(table: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Keys are texts and numbers: to hash others may take for ever."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int):
            raise DamagedError(f"{_NO_CODE}: it has a table by {type(key).__name__}", _REMEDY)
        dict.__setitem__(table, key, value)
    return table
