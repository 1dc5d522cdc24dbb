"""Reads lines of metrics and the result of a run; checks everything, since the files may have been edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from caffenets.files import open_to_read, read_bytes
from speedo.system.foreign_text import MOST_NAME, clean_text
from speedo.system.json_lines import values_of

MOST_NUMBER: Final = 1e15  # nothing that a run counts or measures is larger
MOST_LINE_BYTES: Final = 1 << 20
MOST_RESULT_BYTES: Final = 1 << 20
MOST_OUTPUTS: Final = 1000  # of all test nets


def json_lines(path: Path) -> Iterator[tuple[int, bool, dict[str, Any] | None]]:
    """Each line's number from 1, whether it is complete, and its object, or None for what is no JSON object.

    The last line of a run that was killed may be incomplete. Raises `OSError`.
    """
    with open_to_read(path) as file:
        number = 0
        while text := file.readline(MOST_LINE_BYTES):
            number += 1
            cut = not text.endswith(b"\n") and len(text) < MOST_LINE_BYTES
            yield number, not cut, object_in(text)


def number_of(line: Mapping[str, Any], name: str, least: float = -MOST_NUMBER) -> float:
    """This field as a finite number of `least` or more; raises `ValueError`."""
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no number")
    if not least <= value <= MOST_NUMBER:  # nor is NaN
        raise ValueError(f"{name} is beyond what a run can count")
    return float(value)


def count_of(line: Mapping[str, Any], name: str) -> int:
    """This field as a whole number of 0 or more; raises `ValueError`."""
    value = number_of(line, name)
    if value < 0 or value != int(value):
        raise ValueError(f"{name} is no count")
    return int(value)


def optional_number_of(line: Mapping[str, Any], name: str) -> float:
    """As `number_of`, and NaN for null, which is written for numbers that are not finite; raises `ValueError`."""
    return float("nan") if line.get(name) is None else number_of(line, name)


def mapping_of(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    """This field as an object; raises `ValueError`."""
    value = line.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")
    return value


def list_of(line: Mapping[str, Any], name: str) -> list[Any]:
    """This field as a list, empty where there is none; raises `ValueError`."""
    value = line.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value or []


def metrics_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The outputs of a test by name; raises `ValueError`."""
    metrics = mapping_of(line, "metrics")
    if len(metrics) > MOST_OUTPUTS:
        raise ValueError(f"metrics has more than {MOST_OUTPUTS} outputs")
    return {clean_text(name, MOST_NAME): optional_number_of(metrics, name) for name in metrics}


def text_of(line: Mapping[str, Any], name: str) -> str:
    """This field as text of one line; empty where there is none."""
    value = line.get(name)
    return "" if value is None else clean_text(value)


def counted_for(model: object) -> str:
    """What the run counts that has led to this file: the samples of a script, or else images."""
    return "samples" if str(model).endswith(".npz") else "images"


def read_result(path: Path) -> dict[str, Any] | None:
    """The content of `result.json`; None if it is missing, or if a run would not write it so."""
    try:
        result = object_in(read_bytes(path, MOST_RESULT_BYTES))
        if result is None:
            return None
        count_of(result, "iteration")
        optional_number_of(result, "accuracy")
    except (OSError, ValueError):
        return None
    texts = all(isinstance(result.get(name), str) for name in ("reason", "model"))
    return result if texts else None


def object_in(text: bytes) -> dict[str, Any] | None:
    """The JSON object that this line is; None for anything else."""
    try:
        found = values_of(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
