"""What marks the test of a row of the fault matrix, and what is written down of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    return scenario({fault: number}, modes, usual, torch=torch, usual_torch=usual_torch)


def scenario(
    faults: dict[str, int],
    modes: tuple[str, ...] = MODES,
    usual: str | None = None,
    *,
    torch: tuple[str, ...] = (),
    usual_torch: str | None = None,
) -> Callable[[Test], Test]:
    """Several faults in a row in one run, each with the number of its row and a line of its own in the report.

    The test tells which it tries, with `tries` of the fixture `findings`. The rest is as for `row`.
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
            pytest.mark.faults(faults, usual={"caffe": usual, "torch": usual_torch}),
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


def faults_of(item: pytest.Item) -> dict[str, int]:
    """The faults that a test tries, each with the number of its row."""
    (mark,) = item.iter_markers("faults")
    return dict(mark.args[0])


@dataclass
class Finding:
    """What a test found: seconds from the fault to the next merged version, and a note."""

    seconds: float | None = None
    note: str = ""

    def recovered(self, seconds: float) -> None:
        """One more recovery; the longest counts."""
        self.seconds = round(max(seconds, self.seconds or 0.0), 2)


class Findings:
    """What a test found of each of its faults."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.found = {fault: Finding() for fault in faults}
        self.ended: set[str] = set()
        self._failed = False

    @contextmanager
    def tries(self, fault: str) -> Iterator[Finding]:
        """The run meets this fault; if an assertion fails meanwhile, pytest shows which it was."""
        try:
            yield self.found[fault]
        except Exception as error:
            self._failed = True
            error.add_note(f"while this fault was tried: {fault}")
            raise
        self.ended.add(fault)

    def outcome(self, fault: str) -> str:
        """Of a test that failed: what held before another fault failed stands; what fails outside of all fails all."""
        return "passed" if self._failed and fault in self.ended else "failed"


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
