"""Each mode decides as docs/modes.md says; the worked sequences are written out, workers by number."""

from __future__ import annotations

import numpy as np
import pytest

from speedo.messages import NOTHING, Decision, Result
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.catch_up import CatchUp
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.hybrid import Hybrid, Phase
from speedo.sgd_modes.partial import Partial
from speedo.sgd_modes.registry import is_elastic, make_strategy, with_whole_gradient
from speedo.sgd_modes.rules import AddDelta, AverageDeltas, Elastic, ServerGradient
from speedo.sgd_modes.synchronous import Synchronous
from speedo.sgd_modes.weed_out import WeedOut


def result(worker: int, staleness: int = 0, samples: int = 10) -> Result:
    return Result(worker, samples, staleness)


def test_async_merges_at_once_and_trains_on() -> None:
    mode = Asynchronous(AddDelta())
    assert mode.on_join((0, 1)) == Decision(train=(0, 1))
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))
    assert mode.on_leave(0) == NOTHING


def test_sync_merges_once_when_the_last_has_reported() -> None:
    mode = Synchronous(AverageDeltas())
    assert mode.on_join((0, 1, 2)) == Decision(train=(0, 1, 2))
    assert mode.on_result(result(2)) == NOTHING
    assert mode.on_result(result(0)) == NOTHING
    assert mode.on_result(result(1)) == Decision(merge=(0, 1, 2), train=(0, 1, 2))


def test_sync_closes_the_round_when_the_last_one_waited_for_dies() -> None:
    mode = Synchronous(AverageDeltas())
    mode.on_join((0, 1, 2))
    mode.on_result(result(0))
    mode.on_result(result(1))
    assert mode.on_leave(2) == Decision(merge=(0, 1), train=(0, 1))


def test_sync_counts_the_delta_of_a_worker_that_died_after_delivering() -> None:
    mode = Synchronous(AverageDeltas())
    mode.on_join((0, 1))
    mode.on_result(result(0))
    assert mode.on_leave(0) == NOTHING
    assert mode.on_result(result(1)) == Decision(merge=(0, 1), train=(1,))


def test_sync_lets_a_newcomer_in_with_the_next_round() -> None:
    mode = Synchronous(AverageDeltas())
    mode.on_join((0,))
    assert mode.on_join((1,)) == NOTHING
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0, 1))


def test_sync_goes_on_after_all_died_and_one_came_back() -> None:
    mode = Synchronous(AverageDeltas())
    mode.on_join((0, 1))
    assert mode.on_leave(0) == NOTHING
    assert mode.on_leave(1) == Decision()
    assert mode.on_join((1,)) == Decision(train=(1,))
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))


def test_sync_with_a_backup_closes_with_the_first_three_of_four_and_discards_the_straggler() -> (
    None
):
    """One backup, four workers, 3 is slow: it comes in the second round, whose fourth is then 2."""
    mode = Synchronous(AverageDeltas(), backup_workers=1)
    assert mode.on_join((0, 1, 2, 3)) == Decision(train=(0, 1, 2, 3))
    assert mode.on_result(result(1)) == NOTHING
    assert mode.on_result(result(0)) == NOTHING
    assert mode.on_result(result(2)) == Decision(merge=(0, 1, 2), train=(0, 1, 2))
    assert mode.on_result(result(0)) == NOTHING
    assert mode.on_result(result(3)) == Decision(discard=(3,), train=(3,))
    assert mode.on_result(result(3)) == NOTHING
    assert mode.on_result(result(1)) == Decision(merge=(0, 1, 3), train=(0, 1, 3))
    assert mode.on_result(result(2)) == Decision(discard=(2,), train=(2,))


def test_sync_with_a_backup_never_waits_for_a_straggler_that_stays_away() -> None:
    mode = Synchronous(AverageDeltas(), backup_workers=1)
    mode.on_join((0, 1, 2))
    for _ in range(5):
        assert mode.on_result(result(0)) == NOTHING
        assert mode.on_result(result(2)) == Decision(merge=(0, 2), train=(0, 2))


def test_sync_with_a_backup_closes_when_a_death_leaves_no_more_than_the_backup_missing() -> None:
    mode = Synchronous(AverageDeltas(), backup_workers=1)
    mode.on_join((0, 1, 2, 3))
    mode.on_result(result(0))
    mode.on_result(result(1))
    assert mode.on_leave(2) == Decision(merge=(0, 1), train=(0, 1))
    assert mode.on_leave(3) == NOTHING


def test_sync_with_backups_waits_for_one_result_at_least() -> None:
    mode = Synchronous(AverageDeltas(), backup_workers=2)
    mode.on_join((0, 1, 2))
    assert mode.on_leave(0) == NOTHING
    assert mode.on_leave(1) == NOTHING
    assert mode.on_result(result(2)) == Decision(merge=(2,), train=(2,))


def test_sync_with_a_backup_begins_anew_when_only_a_straggler_of_a_closed_round_is_left() -> None:
    """2 came while 0 trained; when 0 dies nobody trains for the round, so 2 need not wait for the straggler."""
    mode = Synchronous(AverageDeltas(), backup_workers=1)
    mode.on_join((0, 1))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0,))
    assert mode.on_join((2,)) == NOTHING
    assert mode.on_leave(0) == Decision(train=(2,))
    assert mode.on_result(result(1)) == Decision(discard=(1,), train=(1,))
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))


def test_hybrid_settles_the_stragglers_of_a_sync_phase_before_the_next_begins() -> None:
    mode = Hybrid(
        [
            Phase(lambda: Synchronous(AverageDeltas(), backup_workers=1), samples=20),
            Phase(lambda: Asynchronous(AddDelta(1.0)), samples=20),
        ]
    )
    mode.on_join((0, 1, 2))
    mode.on_result(result(0))
    assert mode.on_result(result(1)) == Decision(merge=(0, 1), train=())
    assert mode.on_result(result(2)) == Decision(discard=(2,), train=(0, 1, 2))
    assert isinstance(mode.inner, Asynchronous)


def test_partial_holds_a_worker_two_ahead_until_the_slowest_has_caught_up() -> None:
    mode = Partial(AddDelta(), max_advance=2)
    assert mode.on_join((0, 1, 2)) == Decision(train=(0, 1, 2))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0,))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=())
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))
    assert mode.on_result(result(2)) == Decision(merge=(2,), train=(2, 0))


def test_partial_counts_a_newcomer_as_level_with_the_fastest() -> None:
    mode = Partial(AddDelta(), max_advance=1)
    mode.on_join((0, 1))
    assert mode.on_result(result(0)).train == ()
    assert mode.on_join((2,)) == Decision(train=(2,))
    assert mode.on_result(result(2)).train == ()
    assert mode.on_result(result(1)).train == (1, 0)


def test_partial_releases_whoever_was_held_back_by_one_that_left() -> None:
    mode = Partial(AddDelta(), max_advance=1)
    mode.on_join((0, 1))
    mode.on_result(result(0))
    assert mode.on_leave(1) == Decision(train=(0,))


def test_a_catch_up_stops_all_until_each_of_the_others_has_delivered_once_more() -> None:
    """`max_advance` 2, three workers, results 0, 1, 0, 2, 1: as the table in docs/modes.md."""
    mode = CatchUp(AddDelta(), max_advance=2)
    assert mode.on_join((0, 1, 2)) == Decision(train=(0, 1, 2))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0,))
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=())  # 2 ahead of worker 2
    assert mode.on_result(result(2)) == Decision(merge=(2,), train=())
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(0, 1, 2))
    assert mode.counts.turns == {0: 1, 1: 1, 2: 1}
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))


def catching_up() -> CatchUp:
    """Worker 0 is ahead, and 1 and 2 still train."""
    mode = CatchUp(AddDelta(), max_advance=1)
    mode.on_join((0, 1, 2))
    assert mode.on_result(result(0)).train == ()
    return mode


def test_a_catch_up_does_not_wait_for_the_dead() -> None:
    mode = catching_up()
    assert mode.on_leave(1) == Decision()
    assert mode.on_leave(2) == Decision(train=(0,))


def test_a_catch_up_goes_on_when_the_fastest_dies() -> None:
    mode = catching_up()
    assert mode.on_leave(0) == NOTHING
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=())
    assert mode.on_result(result(2)) == Decision(merge=(2,), train=(1, 2))


def test_who_joins_during_a_catch_up_starts_with_all() -> None:
    mode = catching_up()
    assert mode.on_join((3,)) == NOTHING
    assert mode.on_result(result(2)).train == ()
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(0, 1, 2, 3))


def test_after_a_catch_up_that_all_have_left_who_joins_trains_at_once() -> None:
    mode = catching_up()
    for worker in (0, 1):
        mode.on_leave(worker)
    assert mode.on_leave(2) == Decision(train=())
    assert mode.on_join((1,)) == Decision(train=(1,))
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=(1,))  # ahead of nobody


def test_who_joins_between_catch_ups_is_level_with_the_fastest() -> None:
    mode = CatchUp(AddDelta(), max_advance=2)
    mode.on_join((0, 1))
    mode.on_result(result(0))
    assert mode.on_join((2,)) == Decision(train=(2,))
    assert mode.on_result(result(2)) == Decision(merge=(2,), train=())


def test_weed_out_discards_a_worker_absent_from_the_window() -> None:
    """Window 3, three workers, results 0, 1, 1, 0, 2: the coordinator's staleness is 0, 1, 0, 2, 4."""
    mode = WeedOut(AddDelta(), window=3)
    mode.on_join((0, 1, 2))
    merged = [mode.on_result(result(w, s)).merge for w, s in ((0, 0), (1, 1), (1, 0), (0, 2))]
    assert merged == [(0,), (1,), (1,), (0,)]
    assert mode.on_result(result(2, 4)) == Decision(discard=(2,), train=(2,))


def test_weed_out_discards_by_default_what_is_two_rounds_old_and_partial_has_an_advance_of_two() -> (
    None
):
    mode = WeedOut(AddDelta())
    mode.on_join((0, 1, 2, 3))
    assert mode.on_result(result(0, 7)).merge == (0,)
    assert mode.on_result(result(0, 8)).discard == (0,)
    mode.on_leave(3)
    assert mode.on_result(result(0, 6)).discard == (0,)
    assert Partial(AddDelta()).max_advance == 2


def test_weed_out_never_bounds_below_the_number_of_workers() -> None:
    mode = WeedOut(AddDelta(), window=2)
    mode.on_join((0, 1, 2, 3))
    assert mode.on_result(result(0, 3)).merge == (0,)
    assert mode.on_result(result(0, 4)).discard == (0,)
    mode.on_leave(3)
    mode.on_leave(2)
    assert mode.on_result(result(0, 2)).discard == (0,)


def test_easgd_is_the_asynchronous_schedule_with_the_elastic_rule() -> None:
    mode = easgd(0.3, 10)
    assert (mode.name, mode.local_steps, mode.rule) == ("easgd", 10, Elastic(0.3))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0,))


def two_phases() -> Hybrid:
    return Hybrid(
        [
            Phase(lambda: Asynchronous(AddDelta(1.0)), samples=20),
            Phase(lambda: Synchronous(AverageDeltas()), samples=20),
        ]
    )


def test_hybrid_settles_every_turn_of_a_phase_before_the_next_begins() -> None:
    mode = two_phases()
    assert mode.on_join((0, 1, 2)) == Decision(train=(0, 1, 2))
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0,))
    assert mode.on_result(result(1)) == Decision(merge=(1,), train=())  # 20 samples: the phase ends
    assert mode.rule == AddDelta(1.0)
    assert mode.on_result(result(2)) == Decision(merge=(2,), train=())
    assert mode.on_result(result(0)) == Decision(merge=(0,), train=(0, 1, 2))
    assert mode.rule == AverageDeltas()


def test_hybrid_repeats_its_phases_afresh() -> None:
    mode = two_phases()
    mode.on_join((0,))
    trained = [mode.on_result(result(0)) for _ in range(5)]
    assert all(decision == Decision(merge=(0,), train=(0,)) for decision in trained)
    assert (mode.index, mode.merged) == (0, 10)


def test_hybrid_does_not_wait_for_a_dead_worker_at_the_switch() -> None:
    mode = two_phases()
    mode.on_join((0, 1))
    mode.on_result(result(0))
    assert mode.on_result(result(0)).train == ()
    assert mode.on_leave(1) == Decision(train=(0,))
    assert isinstance(mode.inner, Synchronous)


def test_hybrid_lets_a_worker_that_joins_at_the_switch_in_with_the_new_phase() -> None:
    mode = two_phases()
    mode.on_join((0, 1))
    mode.on_result(result(0))
    mode.on_result(result(0))
    assert mode.on_join((2,)) == NOTHING
    assert mode.on_result(result(1)).train == (0, 1, 2)


@pytest.mark.parametrize(
    ("options", "kind", "rule"),
    [
        ({"mode": "sync"}, Synchronous, AverageDeltas()),
        ({"mode": "async", "delta_scale": 0.25}, Asynchronous, AddDelta(0.25)),
        ({"mode": "partial", "max_advance": 5}, Partial, AddDelta()),
        ({"mode": "partial", "catch_up": True, "moving_rate": 0.2}, CatchUp, Elastic(0.2)),
        (
            {"mode": "weed-out", "staleness_scaling": True},
            WeedOut,
            AddDelta(staleness_scaling=True),
        ),
        ({"mode": "partial", "moving_rate": 0.2}, Partial, Elastic(0.2)),
        ({"mode": "weed-out", "moving_rate": 0.2}, WeedOut, Elastic(0.2)),
        ({"mode": "easgd"}, Asynchronous, Elastic()),
        ({"mode": "sync", "backup_workers": 1}, Synchronous, AverageDeltas()),
    ],
)
def test_options_choose_schedule_and_rule(
    options: dict[str, object], kind: type, rule: object
) -> None:
    strategy = make_strategy(make_config(options), batch=10)
    assert isinstance(strategy, kind)
    assert strategy.rule == rule


def test_hybrid_phases_count_iterations_of_the_solver() -> None:
    phases = [
        {"mode": "sync", "iterations": 5},
        {"mode": "easgd", "iterations": 7, "local_steps": 3},
    ]
    strategy = make_strategy(make_config({"mode": "hybrid", "phases": phases}), batch=64)
    assert isinstance(strategy, Hybrid)
    assert [phase.samples for phase in strategy.phases] == [320, 448]
    assert strategy.phases[1].start().local_steps == 3


def test_backup_workers_reach_the_rounds_of_a_run_and_of_a_phase() -> None:
    phase = {"mode": "sync", "iterations": 5, "backup_workers": 2}
    run = make_strategy(make_config({"backup_workers": 1}), batch=10)
    inner = make_strategy(
        make_config({"mode": "hybrid", "workers": 3, "phases": [phase]}), batch=10
    )
    assert isinstance(run, Synchronous)
    assert isinstance(inner, Hybrid)
    assert (run.backup_workers, inner.inner.backup_workers) == (1, 2)  # type: ignore[attr-defined]


def test_server_gradient_gives_the_update_the_weighted_mean() -> None:
    from speedo.sgd_modes.rules import Contribution

    seen: list[np.ndarray] = []
    strategy = make_strategy(
        make_config({"mode": "sync", "server_gradient": True}),
        10,
        lambda g, c, i: seen.append(g.copy()),
    )
    assert isinstance(strategy.rule, ServerGradient)
    vectors = [np.float32([1, 2]), np.float32([4, 8])]
    strategy.rule.merge(
        np.zeros(2, np.float32), [Contribution(vectors[0], 1), Contribution(vectors[1], 2)], 1.0, 0
    )
    np.testing.assert_allclose(seen[0], [3, 6])


def test_workers_send_weights_where_the_rule_is_elastic() -> None:
    phases = [{"mode": "easgd", "iterations": 4}, {"mode": "sync", "iterations": 6}]
    found = [
        is_elastic(make_config(options))
        for options in (
            {"mode": "easgd"},
            {"mode": "partial", "moving_rate": 0.2},
            {"mode": "partial"},
            {"mode": "sync"},
            {"mode": "hybrid", "phases": phases},
        )
    ]
    assert found == [True, True, False, False, False]


def test_where_the_update_is_not_linear_rounds_of_single_steps_send_gradients() -> None:
    def whole(**options: object) -> object:
        return with_whole_gradient(make_config(options)).server_gradient

    assert whole(mode="sync") is True
    assert whole(mode="sync", local_steps=2) is None
    assert whole(mode="sync", delta_scale=0.5) is None
    assert whole(mode="sync", server_gradient=False) is False
    assert whole(mode="async") is None
    phases = [{"mode": "async", "iterations": 4}, {"mode": "sync", "iterations": 6}]
    hybrid = with_whole_gradient(make_config({"mode": "hybrid", "phases": phases}))
    assert hybrid.server_gradient is None
    assert [phase.server_gradient for phase in hybrid.phases] == [None, True]


@pytest.mark.parametrize("mode", ["async", "partial", "weed-out"])
@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({}, 0.5),
        ({"local_steps": 10}, 0.25),
        ({"local_steps": 10, "delta_scale": 0.7}, 0.7),
        ({"local_steps": 10, "staleness_scaling": True}, 1.0),
    ],
)
def test_deltas_of_a_scripts_several_steps_are_averaged(
    mode: str, options: dict[str, object], rate: float
) -> None:
    """Its optimizer has a momentum that is not corrected: four workers' deltas would go too far."""
    config = make_config({"mode": mode, **options})
    assert make_strategy(config, 10, own_optimizers=True).rule.rate(4) == rate
    phases = [{"mode": mode, "iterations": 5, **options}]
    hybrid = make_config({"mode": "hybrid", "phases": phases})
    assert make_strategy(hybrid, 10, own_optimizers=True).rule.rate(4) == rate
