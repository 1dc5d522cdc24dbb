"""The rules that end a run, fed with tests and seconds."""

from __future__ import annotations

import pytest

from speedo.master.stopping import Stopping, StopRules, TimeLimit
from speedo.messages import Elapsed


def reasons(rules: StopRules, output: str, values: list[float]) -> list[str]:
    """The answers to tests at iterations 10, 20, ..."""
    stopping = Stopping(rules)
    return [
        stopping.tested({output: value}, 10 * number).reason
        for number, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("target", "values", "ends_at"),
    [
        ("accuracy>=0.9", [0.5, 0.89, 0.9], 3),
        ("accuracy>0.9", [0.9, 0.91], 2),
        ("loss<=0.3", [0.5, 0.3], 2),
        ("loss<0.3", [0.3, 0.3, 0.2], 3),
        ("other>=0", [], 0),
    ],
)
def test_a_target_ends_the_run_at_the_first_test_that_reaches_it(
    target: str, values: list[float], ends_at: int
) -> None:
    output = target.partition("<")[0].partition(">")[0]
    found = reasons(StopRules(target=target), output, values)
    assert [number for number, reason in enumerate(found, 1) if reason] == [ends_at][: len(values)]
    if values:
        assert f"at iteration {10 * ends_at}" in found[-1]


def test_another_output_than_the_targets_does_not_reach_it() -> None:
    assert reasons(StopRules(target="top5>=0.1"), "accuracy", [0.9]) == [""]


def test_patience_counts_tests_since_the_best_and_an_equal_one_is_not_better() -> None:
    found = reasons(StopRules(patience=3), "accuracy", [0.5, 0.6, 0.6, 0.4, 0.61, 0.6, 0.6, 0.61])
    assert found[:-1] == [""] * 7
    assert found[-1] == "no better accuracy in 3 tests; the best is 0.61 at iteration 50"


def test_patience_takes_a_lower_loss_for_better() -> None:
    found = reasons(StopRules(patience=1), "loss", [2.0, 1.0, 1.5])
    assert found == ["", "", "no better loss in 1 test; the best is 1 at iteration 20"]


def test_patience_and_best_go_on_where_a_resumed_run_left_them() -> None:
    stopping = Stopping(StopRules(patience=3), best=0.7, since_best=2, best_iteration=40)
    verdict = stopping.tested({"accuracy": 0.7}, 70)
    assert verdict.reason == "no better accuracy in 3 tests; the best is 0.7 at iteration 40"
    assert verdict.better is None


def test_only_a_better_test_is_to_be_kept() -> None:
    stopping = Stopping(StopRules(keep_best=True, best_by="min:distance"))
    kept = [
        stopping.tested({"distance": value, "accuracy": 1.0}, at).better is not None
        for at, value in enumerate([3.0, 4.0, 2.0, 2.0])
    ]
    assert kept == [True, False, True, False]
    assert (stopping.best, stopping.best_iteration, stopping.since_best) == (2.0, 2, 1)


def test_nan_is_never_the_best_of_tests() -> None:
    stopping = Stopping(StopRules(keep_best=True))
    found = [stopping.tested({"loss": value}, 1).better for value in (float("nan"), 2.0)]
    assert [one is not None for one in found] == [False, True]


def test_a_test_without_a_number_is_neither_better_nor_one_without_progress() -> None:
    stopping = Stopping(StopRules(patience=1))
    verdicts = [
        stopping.tested({"loss": value}, at) for at, value in enumerate([float("nan"), 2.0])
    ]
    assert [one.reason for one in verdicts] == ["", ""]
    assert (stopping.best, stopping.since_best) == (2.0, 0)


def test_the_time_of_earlier_parts_counts() -> None:
    limit = TimeLimit(10.0, seconds_before=7.0)
    assert limit.passed(100.0) is None  # nobody trains yet
    limit.begin(100.0)
    assert limit.passed(102.9) is None
    assert limit.passed(103.0) == Elapsed(10.0)
    assert limit.deadline == 103.0
    assert Stopping(StopRules(10.0)).trained(9.99) == ""
    assert Stopping(StopRules(10.0)).trained(10.0) == "trained for 10 s, the max_seconds"


def test_without_a_limit_no_time_ends_a_run() -> None:
    limit = TimeLimit(None)
    limit.begin(0.0)
    assert limit.passed(1e9) is None
    assert Stopping().trained(1e9) == ""
