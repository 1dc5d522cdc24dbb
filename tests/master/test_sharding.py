"""Who reads which records, and when they are shared out anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.master.sharding import Resharding, Shard, Sharding, sharding_for
from speedo.master.slots import Roster

SLOTS = st.frozensets(st.integers(0, 40), min_size=1, max_size=20)
# What may happen to a cluster: seconds pass, a worker of this slot comes or goes.
HAPPENINGS = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.integers(0, 7), st.booleans()), min_size=1, max_size=40
)


def readers(records: int, shards: list[Shard]) -> list[int]:
    """How many of the shards hold each record (Caffe: layers/data_layer.cpp, Skip)."""
    return [
        sum(record % shard.count == shard.rank for shard in shards) for record in range(records)
    ]


@given(SLOTS, st.integers(1, 200), st.integers(40, 400), st.booleans())
def test_every_record_belongs_to_exactly_one_live_worker(
    live: frozenset[int], batch: int, records: int, split: bool
) -> None:
    sharding = sharding_for(live, batch, split=split, records=records)
    if sharding is None:
        assert split
        assert len(live) > batch
        return
    own = sharding.own()
    assert set(own) == live
    assert readers(records, list(own.values())) == [1] * records
    if split:
        assert sum(sharding.batch_sizes) == batch
    else:
        assert set(sharding.batch_sizes) == {batch}


def test_a_split_batch_is_whole_again_over_those_who_are_left() -> None:
    sharding = sharding_for({0, 2}, 64, split=True, records=60_000)
    assert sharding is not None
    assert sharding.own() == {0: Shard(0, 2, 32), 2: Shard(1, 2, 32)}


@pytest.mark.parametrize(("workers", "records"), [(5, 100), (3, 2), (0, 100)])
def test_nothing_is_shared_out_where_somebody_would_read_nothing(
    workers: int, records: int
) -> None:
    assert sharding_for(range(workers), 4, split=True, records=records) is None


# ---------------------------------------------------------------- when

FIRST = Sharding((0, 1, 2), (8, 8, 8))


def test_shards_change_once_others_have_been_there_for_long_enough() -> None:
    policy = Resharding(60.0)
    two = frozenset({0, 2})
    assert [policy.due(two, FIRST, now) for now in (100.0, 159.9, 160.0)] == [False, False, True]


def test_a_worker_that_returns_to_its_slot_changes_nothing() -> None:
    policy = Resharding(60.0)
    for now in range(0, 1000, 10):
        live = frozenset({0, 1, 2} if now % 50 else {0, 1})
        assert not policy.due(live, FIRST, float(now))


def test_seconds_count_anew_whenever_somebody_comes_or_goes() -> None:
    policy = Resharding(60.0)
    assert not policy.due(frozenset({0, 1}), FIRST, 0.0)
    assert not policy.due(frozenset({0}), FIRST, 59.0)
    assert not policy.due(frozenset({0, 1}), FIRST, 118.0)
    assert policy.due(frozenset({0, 1}), FIRST, 178.0)


def test_never_means_never_and_nobody_means_nothing() -> None:
    assert not Resharding(0.0).due(frozenset({0}), FIRST, 1e9)
    policy = Resharding(1.0)
    assert not policy.due(frozenset(), FIRST, 0.0)
    assert not policy.due(frozenset(), FIRST, 100.0)


@given(HAPPENINGS, st.floats(1.0, 100.0))
def test_no_reshard_while_membership_flaps_and_always_one_after_it(
    happenings: list[tuple[float, int, bool]], after_s: float
) -> None:
    policy, now, live, changed = Resharding(after_s), 0.0, frozenset({0, 1, 2}), 0.0
    for passed, slot, comes in happenings:
        now += passed
        before = live
        due = policy.due(live, FIRST, now)
        assert due == (now - changed >= after_s and bool(live) and live != frozenset({0, 1, 2}))
        live = live | {slot} if comes else live - {slot}
        if live != before:
            policy.due(live, FIRST, now)
            changed = now


# ---------------------------------------------------------------- the roster


def test_newcomers_take_the_lowest_free_slot_in_its_next_incarnation() -> None:
    roster = Roster((32, 32))
    first, second = roster.assign(), roster.assign()
    assert (first.worker, first.incarnation, first.shard) == (0, 1, Shard(0, 2, 32))
    assert (second.worker, second.incarnation, second.shard) == (1, 1, Shard(1, 2, 32))
    roster.release(0, 1)
    back = roster.assign()
    assert (back.worker, back.incarnation, back.shard) == (0, 2, Shard(0, 2, 32))
    roster.release(0, 1)
    assert roster.holds(0, 2)


def test_workers_beyond_the_expected_share_the_shards_with_the_fewest_readers() -> None:
    roster = Roster((22, 21, 21))
    ranks = [roster.assign().rank for _ in range(5)]
    assert ranks == [0, 1, 2, 0, 1]
    roster.release(4, 1)
    roster.release(2, 1)
    assert roster.assign().rank == 2
    assert roster.assign().rank == 1


def test_a_reshard_moves_those_whose_shard_is_another() -> None:
    roster = Roster((8, 8, 8))
    for _ in range(3):
        roster.assign()
    roster.release(1, 1)
    sharding = Sharding((0, 2), (8, 8))
    moves = roster.reshard(sharding, [(0, 1), (2, 1)], samples=160)
    assert [(new.worker, new.incarnation, new.shard, new.skip) for _, new in moves] == [
        (0, 2, Shard(0, 2, 8), 10),
        (2, 2, Shard(1, 2, 8), 10),
    ]
    assert roster.reshard(sharding, [(0, 2), (2, 2)]) == []
    assert roster.now_at(0, 1) == moves[0][1]
    roster.release(0, 1)
    assert roster.holds(0, 2)
    roster.release(0, 2)
    assert roster.now_at(0, 1) is None


def test_one_who_takes_a_slot_is_not_the_one_who_was_moved_away_from_it() -> None:
    roster = Roster((8, 8, 8))
    for _ in range(3):
        roster.assign()
    roster.reshard(Sharding((0, 1), (8, 8)), [(0, 1), (1, 1)])
    roster.release(0, 2)
    assert roster.assign().incarnation == 3
    assert roster.now_at(0, 1) is None


def test_a_new_reader_goes_on_where_the_run_is() -> None:
    roster = Roster((22, 21, 21), iter_size=2)
    assert roster.assign().skip == 0
    assert roster.assign(samples=10 * 128 + 100).skip == 20


@given(HAPPENINGS)
def test_a_place_is_held_by_one_at_a_time(happenings: list[tuple[float, int, bool]]) -> None:
    roster, present = Roster((8, 8, 8)), {}
    for _, slot, comes in happenings:
        if comes:
            place = roster.assign()
            assert place.worker not in present
            present[place.worker] = place.incarnation
        elif slot in present:
            roster.release(slot, present.pop(slot))
        else:
            sharding = sharding_for(present, 8, split=False, records=None)
            if sharding is not None:
                for former, new in roster.reshard(sharding, list(present.items())):
                    assert new.incarnation == present[new.worker] + 1 == former.incarnation + 1
                    present[new.worker] = new.incarnation
        assert all(roster.holds(*one) for one in present.items())
