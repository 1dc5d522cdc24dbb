"""Conditions on tests, lengths of turns, phases: how they are written and what they mean."""

from __future__ import annotations

import pytest

from speedo.errors import ConfigError
from speedo.messages import Result
from speedo.run.config.formats import parse_phase
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.conditions import Condition, Watched, parse_condition, watched_of
from speedo.sgd_modes.hybrid import Hybrid
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.turn_length import (
    AdaptiveLength,
    TurnLength,
    as_turn_length,
    turn_length,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("accuracy>=0.9", Condition("accuracy", ">=", 0.9)),
        (" loss < 1e-3 ", Condition("loss", "<", 1e-3)),
        ("top-5/acc>1", Condition("top-5/acc", ">", 1.0)),
        ("x<=-2", Condition("x", "<=", -2.0)),
    ],
)
def test_a_condition_is_an_output_a_relation_and_a_number(text: str, meant: Condition) -> None:
    assert parse_condition(text) == meant


@pytest.mark.parametrize(
    "text", ["", "accuracy", "accuracy=0.9", ">=1", "a>=", "a>=nan", "a>inf", "a>=b"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"as in accuracy>=0\.9"):
        make_config({"target": text})


@pytest.mark.parametrize(
    ("outputs", "best_by", "target", "meant"),
    [
        (["loss", "accuracy"], "", "", Watched("accuracy", True)),
        (["loss"], "", "", Watched("loss", False)),
        (["accuracy", "loss"], "", "loss<=1", Watched("loss", False)),
        (["accuracy", "loss"], "loss", "accuracy>=1", Watched("loss", False)),
        (["distance"], "min:distance", "", Watched("distance", False)),
        (["error_rate"], "error_rate", "", Watched("error_rate", False)),
        (["distance"], "", "", None),
        (["detection_eval"], "", "", Watched("detection_eval", True)),
        (["accuracy", "mAP", "mAP/1"], "", "", Watched("mAP", True)),
    ],
)
def test_which_output_is_watched(
    outputs: list[str], best_by: str, target: str, meant: Watched | None
) -> None:
    assert watched_of(outputs, best_by, target) == meant


def test_a_schedule_has_its_steps_from_its_iterations_on() -> None:
    length = as_turn_length(turn_length("1,10@500,4@2000", None))
    assert [length.at(i) for i in (0, 499, 500, 1999, 2000, 9999)] == [1, 1, 10, 10, 4, 4]
    assert [length.next_change(i) for i in (0, 499, 500, 2000)] == [500, 500, 2000, None]
    assert turn_length(3, None) == 3
    assert turn_length(3, "norm > 0.5") == TurnLength(((0, 3),), 0.5)


def losses(length: AdaptiveLength, *means: float) -> list[int]:
    """The steps after each window of 10 iterations with these mean losses."""
    found, start = [length.at(0)], 0
    for mean in means:
        length.merged([(mean / 2, 32)], start, start + 5)
        assert length.at(start + 5) == found[-1]
        length.merged([(mean, 64), (mean * 2, 32)], start + 5, start + 10)
        start += 10
        found.append(length.at(start))
    return found


def test_turns_get_shorter_by_the_root_of_the_loss() -> None:
    """ceil(sqrt(F / F0) 10), where F0 is the mean of the first window."""
    length = turn_length("adaptive:10/10", None)
    assert isinstance(length, AdaptiveLength)
    assert losses(length, 2.0, 1.0, 0.5, 0.1, 0.02, 0.5) == [10, 10, 8, 5, 3, 1, 5]


@pytest.mark.parametrize(
    ("means", "steps"),
    [
        ((1.0, 4.0), [8, 8, 8]),  # never more than tau0
        ((1.0, 0.0, -1.0), [8, 8, 1, 1]),
        ((0.0, 1.0), [8, 8, 8]),  # there is no measure
    ],
)
def test_turns_have_one_step_at_least_and_the_first_number_at_most(
    means: tuple[float, ...], steps: list[int]
) -> None:
    assert losses(AdaptiveLength(8, 10), *means) == steps


def test_an_adaptive_length_is_decided_every_100_iterations_unless_said_otherwise() -> None:
    length = turn_length("adaptive:6", "norm>0.5")
    assert isinstance(length, AdaptiveLength)
    assert (length.longest, length.window, length.norm) == (6, 100, 0.5)
    assert [length.next_change(i) for i in (0, 99, 100)] == [100, 100, 200]


def test_an_adaptive_length_goes_on_where_it_was() -> None:
    first, second = AdaptiveLength(10, 10), AdaptiveLength(10, 10)
    first.merged([(2.0, 8)], 0, 10)
    first.merged([(0.3, 8)], 10, 15)
    second.state = first.state
    for length in (first, second):
        length.merged([(0.7, 8)], 15, 20)
    assert first.at(20) == second.at(20) == 5


@pytest.mark.parametrize(
    "text", ["adaptive", "adaptive:0", "adaptive:x", "adaptive:4/0", "adaptive:4@5", "adaptive:-1"]
)
def test_what_is_no_adaptive_length_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="local_steps"):
        make_config({"mode": "easgd", "local_steps": text})


@pytest.mark.parametrize("text", ["1,10", "1@5", "1,10@0", "1,5@9,6@9", "0,2@5", "1,x@5", "1,2@-3"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="local_steps"):
        make_config({"mode": "easgd", "local_steps": text})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "async", "sync_when": "norm>0", "local_steps": 5}, "above 0"),
        ({"mode": "async", "sync_when": "5", "local_steps": 5}, "norm>0.5"),
        ({"mode": "async", "sync_when": "norm>1"}, "each turn is one step already"),
        ({"mode": "sync", "sync_when": "norm>1", "local_steps": 5}, "sync_when"),
        (
            {"mode": "async", "sync_when": "norm>1", "local_steps": 5, "overlap": "all"},
            "together with sync_when",
        ),
        (
            {"mode": "async", "staleness_scaling": True, "overlap": "all"},
            "does not know its staleness",
        ),
        ({"mode": "easgd", "staleness_scaling": True}, "does not use it; use --mode async"),
        ({"mode": "sync", "staleness_scaling": True}, "does not use it"),
        ({"mode": "partial", "staleness_scaling": True, "moving_rate": 0.2}, "it scales deltas"),
        ({"mode": "async", "staleness_scaling": True, "server_gradient": True}, "it scales deltas"),
        ({"mode": "async", "catch_up": True}, "does not use it; use --mode partial"),
        (
            {"mode": "async", "server_gradient": True, "local_steps": "adaptive:4"},
            "a raw gradient",
        ),
        ({"best_by": "loss"}, "only patience and keep_best use it"),
        ({"target": "loss<1", "test_interval": 0}, "test_interval is 0"),
        ({"patience": 2, "test_interval": 0}, "test_interval is 0"),
        ({"patience": 0}, "patience"),
        ({"max_seconds": 0}, "max_seconds"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(options)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sync:500", {"mode": "sync", "iterations": 500}),
        ("sync:accuracy>=0.8", {"mode": "sync", "until": "accuracy>=0.8"}),
        ("async,lr=0.001", {"mode": "async", "lr": "0.001"}),
        ("my.modes:Mine:500,every=3", {"mode": "my.modes:Mine", "iterations": 500, "every": "3"}),
        ("mine:M:loss<=0.1", {"mode": "mine:M", "until": "loss<=0.1"}),
        (
            "easgd:9,local_steps=adaptive:10/50,lr=0.1",
            {"mode": "easgd", "iterations": 9, "local_steps": "adaptive:10/50", "lr": "0.1"},
        ),
        (
            "easgd:9,local_steps=1,10@500,lr=0.1",
            {"mode": "easgd", "iterations": 9, "local_steps": "1,10@500", "lr": "0.1"},
        ),
    ],
)
def test_a_phase_on_the_command_line(text: str, meant: dict[str, object]) -> None:
    assert parse_phase(text) == meant


@pytest.mark.parametrize("text", ["sync:soon", "sync:5,lr", "sync:5,lr=1,lr=2", "easgd:9,10@500"])
def test_what_is_no_phase_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="phase"):
        parse_phase(text)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ([{"mode": "sync"}], r"phase 1 \(sync\) has no end"),
        ([{"mode": "sync"}, {"mode": "async", "iterations": 3}], r"phase 1 \(sync\) has no end"),
        ([{"mode": "sync", "until": "soon"}], r"phase 1 \(sync\): until is"),
        ([{"mode": "sync", "iterations": 3, "lr": -1}], r"phase 1 \(sync\): lr"),
        ([{"mode": "sync", "iterations": 3, "batch": 0}], r"phase 1 \(sync\): batch"),
    ],
)
def test_phases_without_an_end_or_with_impossible_values_are_refused(
    phases: list[dict[str, object]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config({"mode": "hybrid", "phases": phases})


def hybrid(*phases: dict[str, object], **given: object) -> Hybrid:
    config = make_config({"mode": "hybrid", "phases": phases})
    found = make_strategy(config, 10, **given)  # type: ignore[arg-type]
    assert isinstance(found, Hybrid)
    return found


def test_a_phase_ends_by_a_test_of_its_own_work_and_the_last_one_without_an_end_goes_on() -> None:
    run = hybrid({"mode": "async", "until": "accuracy>=0.8"}, {"mode": "sync"})
    assert run.on_join((0, 1)).train == (0, 1)
    assert run.on_result(Result(0, 10, 0)).train == (0,)
    assert run.on_test({"accuracy": 0.9}, samples_since=10).train == ()  # of before this phase
    assert (run.index, run.reached) == (0, False)
    assert run.on_test({"accuracy": 0.7}, samples_since=0).train == ()
    assert not run.reached
    run.on_test({"accuracy": 0.8}, samples_since=0)
    assert run.on_result(Result(0, 10, 0)).train == ()  # it waits for worker 1
    assert run.on_result(Result(1, 10, 0)).train == (0, 1)
    assert (run.index, run.merged) == (1, 0)
    for _ in range(50):
        run.on_result(Result(0, 10, 0))
        run.on_result(Result(1, 10, 0))
    assert run.index == 1


@pytest.mark.parametrize(
    ("samples", "place", "expected"),
    [(70, None, (1, 30)), (110, None, (0, 10)), (999, (1, 20), (1, 20)), (0, (7, 3), (0, 0))],
)
def test_a_resumed_run_goes_on_in_its_phase(
    samples: int, place: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    phases = {"mode": "async", "iterations": 4}, {"mode": "sync", "iterations": 6}
    run = hybrid(*phases, samples=samples, place=place)
    assert (run.index, run.merged) == expected


def test_a_phase_has_its_own_solver_values() -> None:
    run = hybrid(
        {"mode": "async", "iterations": 4, "lr": 0.5, "batch": 30, "test_interval": 7},
        {"mode": "sync", "momentum": 0.5, "weight_decay": 0.0},
    )
    first, second = (phase.tuning for phase in run.phases)
    assert (first.lr, first.momentum, first.weight_decay, first.batches) == (0.5, None, None, 3)
    assert (second.lr, second.momentum, second.weight_decay, second.batches) == (None, 0.5, 0.0, 1)
    assert [phase.test_interval for phase in run.phases] == [7, None]
