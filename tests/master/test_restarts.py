"""When a worker is started again, and how workers are spread over hosts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speedo.master.restarts import AT_WORK_S, HEALTHY_S, Restarts, spread

HOSTS = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.integers(1, 64)), min_size=1
)


def test_pauses_double_up_to_thirty_seconds_and_end_with_giving_up() -> None:
    restarts = Restarts(8)
    pauses = [restarts.pause_after(3.0) for _ in range(9)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, None]
    assert restarts.used == 8


def test_a_worker_that_was_healthy_begins_anew() -> None:
    restarts = Restarts(2)
    assert [restarts.pause_after(1.0), restarts.pause_after(1.0)] == [1.0, 2.0]
    assert restarts.pause_after(HEALTHY_S) == 0.0
    assert [restarts.pause_after(1.0), restarts.pause_after(1.0)] == [1.0, None]


def test_a_worker_that_had_started_well_is_started_at_once_but_its_deaths_still_count() -> None:
    restarts = Restarts(3)
    pauses = [restarts.pause_after(up) for up in (1.0, 1.0, AT_WORK_S, HEALTHY_S - 1)]
    assert pauses == [1.0, 2.0, 0.0, None]


def test_without_restarts_the_first_death_is_the_last() -> None:
    assert Restarts(0).pause_after(1e6) is None


def test_one_more_goes_where_it_leaves_the_fewest_workers_per_core() -> None:
    cores = {"large": 16, "small": 2}
    assert spread(4, {"large": 1, "small": 1}, cores) == {"large": 3, "small": 1}
    assert spread(2, {"large": 3, "small": 2}, cores) == {"large": 2, "small": 0}


def test_where_none_is_wanted_none_is_left() -> None:
    for wanted in (0, -1):
        assert spread(wanted, {"a": 2, "b": 1}, {"a": 4, "b": 4}) == {"a": 0, "b": 0}
    assert spread(3, {}, {}) == {}


@given(HOSTS, st.integers(0, 60))
def test_all_that_are_wanted_are_spread_and_none_moves_needlessly(
    hosts: dict[str, tuple[int, int]], wanted: int
) -> None:
    present = {name: count for name, (count, _) in hosts.items()}
    cores = {name: number for name, (_, number) in hosts.items()}
    counts = spread(wanted, present, cores)
    assert sum(counts.values()) == wanted
    assert all(count >= 0 for count in counts.values())
    more = wanted >= sum(present.values())
    assert all(
        counts[name] >= present[name] if more else counts[name] <= present[name] for name in counts
    )
