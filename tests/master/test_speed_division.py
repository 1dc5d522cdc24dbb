"""When the batch is divided anew, and how. Made-up speeds; the simulator has whole runs of unequal workers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.master.speed_division import LOOK_S, LOOKS, NewDivision, Speed, SpeedDivision, divided

EQUAL = dict.fromkeys(range(4), 25)


def members(sizes: Mapping[int, int], incarnation: int = 1) -> dict[int, tuple[int, int]]:
    return {worker: (incarnation, size) for worker, size in sizes.items()}


def turn(
    division: SpeedDivision,
    sizes: Mapping[int, int],
    speeds: Mapping[int, float],
    *,
    fixed_s: float = 0.0,
    incarnation: int = 1,
) -> NewDivision | None:
    """One turn of all workers at these speeds, in records/s, with so many seconds of a step beside its records."""
    seconds = {one: size / speeds[one] + fixed_s for one, size in sizes.items()}
    last = max(seconds.values())
    for worker, own in seconds.items():
        division.measured(worker, 1, {"compute": own, "team": last - own, "publish": 0.1})
    return division.due(members(sizes, incarnation))


def after(
    division: SpeedDivision,
    sizes: Mapping[int, int],
    speeds: Mapping[int, float],
    turns: int,
    *,
    fixed_s: float = 0.0,
) -> tuple[dict[int, int], list[NewDivision]]:
    """The sizes after so many turns, and each change."""
    now, changes = dict(sizes), []
    for _ in range(turns):
        if (new := turn(division, now, speeds, fixed_s=fixed_s)) is not None:
            now = dict(new.records)
            changes.append(new)
    return now, changes


def test_a_worker_at_a_tenth_gets_a_tenth_of_the_others_records_after_three_looks() -> None:
    division = SpeedDivision(100)
    speeds = {0: 100.0, 1: 100.0, 2: 100.0, 3: 10.0}
    # A step takes 2.5 s: looks of two steps, after two in which the workers and their shares are learnt.
    sizes, changes = after(division, EQUAL, speeds, 2 * LOOKS + 1)
    assert changes == []
    sizes, (change,) = after(division, sizes, speeds, 1)
    assert sizes == {0: 33, 1: 32, 2: 32, 3: 3}
    assert change.reason == (
        "the batch is divided anew by the workers' speeds: 33+32+32+3 records; worker 3 computes at 0.1 of the "
        "fastest one's speed"
    )
    _, changes = after(division, sizes, speeds, 1000)
    assert changes == []


def test_a_gain_below_a_tenth_changes_nothing() -> None:
    _, changes = after(SpeedDivision(100), EQUAL, {0: 100, 1: 100, 2: 100, 3: 91}, 1000)
    assert changes == []


def test_what_lasts_for_a_look_changes_nothing() -> None:
    division, slow = SpeedDivision(100), {0: 100.0, 1: 100.0, 2: 100.0, 3: 10.0}
    equal = dict.fromkeys(range(4), 100.0)
    for speeds, turns in [(equal, 20), (slow, 2), (equal, 40)]:
        _, changes = after(division, EQUAL, speeds, turns)
        assert changes == []


def test_what_a_step_takes_beside_its_records_is_found_by_a_second_division() -> None:
    division, speeds = SpeedDivision(120), {0: 200.0, 1: 20.0}
    sizes, changes = after(division, {0: 60, 1: 60}, speeds, 400, fixed_s=0.1)
    assert len(changes) == 2
    times = [size / speeds[one] + 0.1 for one, size in sizes.items()]
    assert max(times) < 1.02 * (120 / 220 + 0.1)


def test_a_division_after_which_rounds_are_longer_is_taken_back_for_good() -> None:
    """As where the hosts cannot send factors any more."""
    division, speeds = SpeedDivision(100), {0: 100.0, 1: 100.0, 2: 100.0, 3: 60.0}
    sizes, _ = after(division, EQUAL, speeds, 20)
    assert sizes != EQUAL
    for _ in range(400):
        seconds = {one: size / speeds[one] for one, size in sizes.items()}
        wait = 1.0 if sizes != EQUAL else 0.0
        for worker, own in seconds.items():
            division.measured(worker, 1, {"compute": own, "team": 0.5 - own + wait})
        if (new := division.due(members(sizes))) is not None:
            assert sizes != EQUAL, "it would be tried again and again"
            sizes = dict(new.records)
            assert new.reason == (
                "rounds became longer, so the batch is divided as before: 25+25+25+25 records"
            )
    assert sizes == EQUAL
    # Another speed is another reason.
    sizes, changes = after(division, EQUAL, {**speeds, 3: 20.0}, 200)
    assert len(changes) == 1


def test_a_worker_that_one_record_holds_up_is_told() -> None:
    division = SpeedDivision(8)
    sizes, (change,) = after(division, {0: 4, 1: 4}, {0: 100.0, 1: 1.0}, 20)
    assert sizes == {0: 7, 1: 1}
    assert "even its single record takes 1 s, and the others need 0.079 s" in change.reason


def test_scripts_batches_have_bounds_and_become_equal_where_they_may_not_be_divided() -> None:
    allowed = [False]
    division = SpeedDivision(128, least=4, most=64, gain=0.2, may=lambda: allowed[0])
    speeds = {0: 100.0, 1: 10.0, 2: 100.0, 3: 1.0}
    equal = dict.fromkeys(range(4), 32)
    assert after(division, equal, speeds, 50) == (equal, [])
    allowed[0] = True
    sizes, (change,) = after(division, equal, speeds, 20)
    assert sizes == {0: 59, 1: 6, 2: 59, 3: 4} == dict(change.records)
    assert after(SpeedDivision(64, most=40), {0: 32, 1: 32}, {0: 90.0, 1: 1.0}, 20)[0] == {
        0: 40,
        1: 24,
    }
    allowed[0] = False
    sizes, (change,) = after(division, sizes, speeds, 20)
    assert (sizes, change.reason) == (equal, "the batch is divided equally: 32+32+32+32 records")


def test_workers_that_each_hold_up_the_others_rest_together_and_are_tried_again() -> None:
    division = SpeedDivision(60, workers=6)
    speeds = {0: 100.0, 1: 100.0, 2: 1.0, 3: 100.0, 4: 1.1, 5: 100.0}
    sizes, told = dict.fromkeys(range(6), 10), list[str]()
    for _ in range(2000):
        took = {one: size / speeds[one] for one, size in sizes.items() if size}
        for worker, own in took.items():
            whole = max(took.values())
            timings = {"compute": own / 2, "team": whole - own / 2, "wait": whole - own}
            division.measured(worker, 1, timings)
        if (new := division.due(members(sizes), may_rest=True)) is not None:
            sizes = dict(new.records)
            told.append(new.reason)
    assert sizes == {0: 15, 1: 15, 2: 0, 3: 15, 4: 0, 5: 15}
    assert (
        "worker 2 computes at 0.01 of the fastest one's speed; it trains nothing for now" in told[0]
    )
    assert (
        told[1]
        == "what worker 2 and worker 4 could train is measured again: 14+14+1+15+1+15 records"
    )
    assert (
        told[2]
        == "rounds became longer, so the batch is divided as before: 15+15+0+15+0+15 records"
    )


def test_nothing_is_divided_while_a_worker_is_missing_or_after_another_came() -> None:
    division, speeds = SpeedDivision(100), {0: 100.0, 1: 100.0, 2: 100.0, 3: 10.0}
    without = {0: 25, 1: 25, 2: 25}
    _, changes = after(division, without, {**speeds, 2: 10.0}, 100)
    assert changes == []
    for incarnation in range(5):  # one turn more would be enough
        for _ in range(2 * LOOKS + 1):
            assert turn(division, EQUAL, speeds, incarnation=incarnation) is None


@given(
    st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.0, 10.0)), min_size=1, max_size=5),
    st.integers(5, 9),
)
def test_the_shares_are_the_best_that_there_are(
    drawn: list[tuple[float, float]], records: int
) -> None:
    speeds = {one: Speed(*drawn[one]) for one in range(len(drawn))}
    shares = divided(records, speeds)
    assert sum(shares.values()) == records
    assert min(shares.values()) >= 1
    slowest = max(speeds[one].takes(size) for one, size in shares.items())
    for other in product(range(1, records + 1), repeat=len(speeds) - 1):
        last = records - sum(other)
        if last >= 1:
            longest = max(speeds[one].takes(size) for one, size in enumerate((*other, last)))
            assert slowest <= longest * (1 + 1e-9)


@pytest.mark.parametrize("timings", [{}, {"compute": 0.0}, {"compute": float("nan")}])
def test_turns_without_a_time_say_nothing(timings: dict[str, float]) -> None:
    division = SpeedDivision(100)
    division.due(members(EQUAL))
    for _ in range(100):
        for worker in EQUAL:
            division.measured(worker, 1, timings)
        assert division.due(members(EQUAL)) is None


def test_looks_become_longer_with_each_change() -> None:
    division = SpeedDivision(100)
    first = {0: 100.0, 1: 100.0, 2: 100.0, 3: 10.0}
    second = {0: 10.0, 1: 100.0, 2: 100.0, 3: 100.0}
    sizes: dict[int, int] = dict(EQUAL)
    needed = []
    for number in range(4):
        speeds, turns = (first, second)[number % 2], 0
        changes: list[NewDivision] = []
        while not changes:
            slowest = max(size / speeds[one] for one, size in sizes.items())
            sizes, changes = after(division, sizes, speeds, 1)
            turns += 1
        needed.append(turns * slowest)
        sizes, changes = after(division, sizes, speeds, 200)  # it is no loss, and the best
        assert changes == []
    assert needed[0] >= LOOKS * LOOK_S
    assert needed[1] <= needed[2] < needed[3]
    assert needed[3] >= (LOOKS - 1) * 8 * LOOK_S


def test_a_machine_that_becomes_slower_as_a_whole_takes_no_division_back() -> None:
    """As by other programs, while the batch was divided anew."""
    division, speeds = SpeedDivision(100), {0: 100.0, 1: 100.0, 2: 100.0, 3: 10.0}
    sizes, (_,) = after(division, EQUAL, speeds, 2 * LOOKS + 2)
    _, changes = after(division, sizes, {one: speed / 20 for one, speed in speeds.items()}, 100)
    assert changes == []
