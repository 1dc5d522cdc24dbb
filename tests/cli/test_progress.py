"""What a run says where nobody looks at a live view."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from speedo.watch import console as progress
from speedo.watch.status import Status, WorkerStatus

WORKER = WorkerStatus(1, "here", "training", 3, 0, 0.5, 100.0)
STATUS = Status(
    "training", "sync", 10, 100, 1.0, 10, 0.5, 100.0, 2.0, 0, {}, (WORKER,), False
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def lines(clock: Clock, *states: tuple[float, Status]) -> list[str]:
    """What is printed for states shown at these seconds."""
    out = StringIO()
    watch = progress.ConsoleProgress(Console(file=out))
    start = clock.now
    for second, status in states:
        clock.now = start + second
        watch.show(status)
    return out.getvalue().splitlines()


def test_an_unchanged_line_is_not_said_again_for_thirty_seconds(clock: Clock) -> None:
    said = lines(clock, *((float(second), STATUS) for second in range(65)))
    assert len(said) == 3


def test_a_changed_line_is_said_after_five_seconds(clock: Clock) -> None:
    states = ((second / 2, replace(STATUS, iteration=second)) for second in range(21))
    assert [line.split(",")[0] for line in lines(clock, *states)] == [
        "iteration 0/100", "iteration 10/100", "iteration 20/100",
    ]  # fmt: skip


def test_a_test_and_the_end_are_said_at_once(clock: Clock) -> None:
    tested = replace(STATUS, tested_iteration=20, metrics={"accuracy": 0.5})
    said = lines(
        clock, (0, STATUS), (1, tested), (1.5, replace(tested, over=True, state="finished"))
    )
    assert len(said) == 3
    assert said[1].endswith("test at 20: accuracy 0.5000")
    assert said[2].endswith("finished")


def test_a_worker_that_dies_is_told_once_with_its_cause(clock: Clock) -> None:
    gone = replace(STATUS, workers=(replace(WORKER, state="gone: Caffe stopped at x.cpp:1: no"),))
    said = lines(clock, (0, STATUS), (1, gone), (2, gone), (3, gone))
    assert said[1:] == ["worker 1 on here is gone: Caffe stopped at x.cpp:1: no"]


def test_what_happened_just_before_the_end_is_told_too(clock: Clock) -> None:
    gone = replace(STATUS, over=True, workers=(replace(WORKER, state="gone: set aside"),))
    said = lines(clock, (0, STATUS), (1, gone))
    assert [line for line in said if "is gone" in line] == ["worker 1 on here is gone: set aside"]


@pytest.mark.parametrize(
    ("there", "wanted", "words"),
    [
        (2, 0, "2 workers"),
        (2, 2, "2 workers"),
        (1, 2, "1 of 2 workers"),
        (2, 1, "2 workers, 1 wanted"),
    ],
)
def test_workers_beyond_those_wanted_are_no_part_of_them(
    there: int, wanted: int, words: str
) -> None:
    status = replace(STATUS, workers=(WORKER,) * there, wanted=wanted)
    assert f", {words}" in progress.plain_line(status)
    assert "2 of 1" not in progress.plain_line(status)
