"""Values of a script's state as bytes, without pickle: a line of JSON, then the bytes of the arrays in it.

JSON has numbers, texts and None as they are. Everything else is an object with one entry, the name of its kind: an
array's entry has its length in bytes and what it is, a list's its items, a dictionary's its pairs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from speedo.errors import ConfigError

_PAIRS: Final = {"counter": Counter, "dict": dict}
_ITEMS: Final = {"list": list, "tuple": tuple}
_NUMBERS: Final = "biufc"  # kinds of NumPy's types


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """Arrays of one library: `describe` gives what JSON says of one, and its bytes; `make` the array again.

    `make` raises `ValueError`, `TypeError` or `RuntimeError` for a description that is none, or other bytes than that.
    """

    type: type
    describe: Callable[[Any], tuple[list[Any], bytes]]
    make: Callable[[list[Any], bytearray], Any]


def pack(
    value: Any, what: str = "the state", kinds: Mapping[str, ArrayKind] | None = None
) -> bytes:
    """What `unpack` reads with the same `kinds` of arrays, beside NumPy's.

    Raises `ConfigError` for a value of another type; it names its place in `what`.
    """
    bodies: list[bytes] = []
    known = {**(kinds or {}), "array": _NUMPY}
    head = json.dumps(_packed(value, what, known, bodies))
    return b"\n".join((head.encode(), b"".join(bodies)))


def unpack(data: bytes, kinds: Mapping[str, ArrayKind] | None = None) -> Any:
    """The value. Raises `ValueError` if the bytes are damaged, or none of `pack`."""
    head, _, body = data.partition(b"\n")
    memory = bytearray(body)  # PyTorch warns of memory that is read-only
    try:
        value, end = _unpacked(json.loads(head), {**(kinds or {}), "array": _NUMPY}, memory, 0)
    except (KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if end != len(memory):
        raise ValueError(f"{len(memory) - end} bytes too many")
    return value


def _packed(value: Any, place: str, kinds: Mapping[str, ArrayKind], bodies: list[bytes]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    for name, kind in kinds.items():
        if isinstance(value, kind.type):
            try:
                description, body = kind.describe(value)
            except TypeError as error:
                raise ConfigError(f"{place} cannot be saved: {error}") from None
            bodies.append(body)
            return {name: [len(body), description]}
    if isinstance(value, bytes):
        bodies.append(value)
        return {"bytes": len(value)}
    if isinstance(value, list | tuple):
        items = [_packed(one, f"{place}[{at}]", kinds, bodies) for at, one in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, dict):
        pairs = [
            (
                _packed(key, f"a key of {place}", kinds, bodies),
                _packed(one, f"{place}[{key!r:.60}]", kinds, bodies),
            )
            for key, one in value.items()
        ]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    raise ConfigError(
        f"{place} has the type {type(value).__name__}, which cannot be saved: only numbers, text, bytes, NumPy arrays, "
        "tensors, lists, tuples and dictionaries can"
    )


def _unpacked(
    packed: Any, kinds: Mapping[str, ArrayKind], data: bytearray, start: int
) -> tuple[Any, int]:
    """The value, and where its arrays end in `data`."""
    if not isinstance(packed, dict):
        if isinstance(packed, list):
            raise ValueError("a list without its kind")
        return packed, start
    ((kind, content),) = packed.items()
    if kind in kinds or kind == "bytes":
        size = content if kind == "bytes" else content[0]
        if type(size) is not int or not 0 <= size <= len(data) - start:
            raise ValueError(f"{kind} of {size} bytes, and {len(data) - start} are there")
        part = data[start : start + size]
        return bytes(part) if kind == "bytes" else kinds[kind].make(content[1], part), start + size
    if kind in _ITEMS:
        items = []
        for one in content:
            value, start = _unpacked(one, kinds, data, start)
            items.append(value)
        return _ITEMS[kind](items), start
    pairs = {}
    for key, one in content:
        known, start = _unpacked(key, kinds, data, start)
        pairs[known], start = _unpacked(one, kinds, data, start)
    return _PAIRS[kind](pairs), start


def _describe(array: np.ndarray[Any, Any]) -> tuple[list[Any], bytes]:
    if array.dtype.kind not in _NUMBERS:
        raise TypeError(f"an array of {array.dtype} has no numbers")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return [little.dtype.str, list(array.shape)], little.tobytes()


def _make(description: Sequence[Any], data: bytearray) -> np.ndarray[Any, Any]:
    name, shape = description
    dtype = np.dtype(name)
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"type {name}")
    return np.frombuffer(data, dtype).reshape(shape)


_NUMPY: Final = ArrayKind(np.ndarray, _describe, _make)
