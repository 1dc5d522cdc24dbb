"""What marks the test of a row of the fault matrix, and what is written down of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
MODES: Final = ("sync", "async", "partial", "weed-out", "easgd")
EVERY: Final = "SPEEDO_FAULTS"  # `all`: every mode of every row, as `make faults` wants it
REPORT: Final = "SPEEDO_FAULTS_REPORT"  # the file that takes a JSON line for each test
LONGEST_S: Final = 540
# With one mode whose workers wait for each other, and one whose do not; the other modes ask of an engine the same,
# but for easgd, which changes the weights in place.
WITH_TORCH: Final = ("sync", "async")


def row(
    number: int,
    fault: str,
    modes: tuple[str, ...] = MODES,
    usual: str | None = None,
    *,
    torch: tuple[str, ...] = (),
    usual_torch: str | None = None,
) -> Callable[[Test], Test]:
    """Row `number` of the matrix, tried in `modes`; `make test` tries it in the mode `usual` alone, if any.

    `torch` and `usual_torch` are the same for the engine on PyTorch, in lines of their own in the report.
    """
    assert usual is None or usual in modes
    assert usual_torch is None or usual_torch in torch
    tried = [
        *(pytest.param(mode, "caffe", id=mode) for mode in modes),
        *(pytest.param(mode, "torch", id=f"{mode}-torch", marks=pytest.mark.torch) for mode in torch),
    ]  # fmt: skip

    def mark(test: Test) -> Test:
        for one in (
            pytest.mark.parametrize(("mode", "engine"), tried)
            if torch
            else pytest.mark.parametrize("mode", modes),
            pytest.mark.faults(number, fault, usual={"caffe": usual, "torch": usual_torch}),
            pytest.mark.timeout(LONGEST_S),
        ):
            test = one(test)
        return test

    return mark


def is_wanted(item: pytest.Item) -> bool:
    """Whether this test is run: outside of `make faults` a row has one representative."""
    mark = item.get_closest_marker("faults")
    if mark is None or os.environ.get(EVERY) == "all":
        return True
    return bool(mode_of(item) == mark.kwargs["usual"][engine_of(item)])


def mode_of(item: pytest.Item) -> str:
    return str(item.callspec.params["mode"])  # type: ignore[attr-defined]


def engine_of(item: pytest.Item) -> str:
    return str(item.callspec.params.get("engine", "caffe"))  # type: ignore[attr-defined]


def fault_of(item: pytest.Item) -> tuple[int, str]:
    """The number and the text of a test's row."""
    (mark,) = item.iter_markers("faults")
    number, fault = mark.args
    return number, f"{fault}, PyTorch engine" if engine_of(item) == "torch" else fault


@dataclass
class Finding:
    """What a test found: seconds from the fault to the next merged version, and a note."""

    seconds: float | None = None
    note: str = ""

    def recovered(self, seconds: float) -> None:
        """One more recovery; the longest counts."""
        self.seconds = round(max(seconds, self.seconds or 0.0), 2)


@dataclass(frozen=True)
class Tried:
    """A line of the report."""

    row: int
    fault: str
    mode: str
    outcome: str
    seconds: float | None
    note: str


def write_down(tried: Tried) -> None:
    """Append it to the report, if one is wanted; several processes may."""
    report = os.environ.get(REPORT)
    if report:
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(tried)) + "\n")
