"""Lines of JSON, the format of the run log and of the channels to workers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson

_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE


def line_of(values: dict[str, Any]) -> bytes:
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
    """The value with null for NaN and infinity, so that `json` accepts it."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
