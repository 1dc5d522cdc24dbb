"""Lines of JSON, the format of the run log and of the channels to workers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson

_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE


def line_of(values: dict[str, Any] | list[Any]) -> bytes:
    """These values as a line of JSON. JSON has neither NaN nor infinity: they become null."""
    try:
        return orjson.dumps(values, option=_OPTIONS)
    except TypeError:  # the name of a file that is not UTF-8, say
        return json.dumps(plain(values)).encode() + b"\n"


def values_of(line: bytes) -> Any:
    """The values in such a line; raises `ValueError` for what is not JSON."""
    try:
        return orjson.loads(line)
    except ValueError:  # what is not UTF-8 is not JSON for orjson, either
        return json.loads(line)


def plain(value: Any) -> Any:
    """Records, tuples and paths as JSON values; a number that is not finite becomes null."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
