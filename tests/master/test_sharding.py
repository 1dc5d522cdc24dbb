"""Who reads which records, and when they are shared out anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.engines.solver.holding import Holding
from speedo.master.sharding import Resharding, Shard, Sharding, sharding_for
from speedo.master.slots import Roster
from speedo.messages import Divided
from speedo.run_dir.checkpoint_file import WorkerState

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


def test_a_worker_with_less_than_half_the_largest_share_has_no_shard_of_its_own() -> None:
    sharding = Sharding((0, 1, 2, 5), (33, 32, 17, 3))
    assert sharding.own() == {
        0: Shard(0, 3, 33),
        1: Shard(1, 3, 32),
        2: Shard(2, 3, 17),
        5: Shard(0, 1, 3),
    }
    fast = [shard for worker, shard in sharding.own().items() if worker != 5]
    assert readers(60, fast) == [1] * 60


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


# ---------------------------------------------------------------- other ways of sharing


def on(machine: str, records: int | None = 100) -> Holding:
    return Holding(records, f"data of {machine}", machine)


def test_in_own_the_workers_of_each_host_divide_its_records_among_themselves() -> None:
    roster = Roster((22, 21, 21), share="own")
    roster.enlist("a:1", 2, on("a"))
    roster.enlist("b:1", 1, on("b"))
    places = [roster.assign(0, host) for host in ("a:1", "b:1", "a:1")]
    assert [place.shard for place in places] == [
        Shard(0, 2, 22, "own"),
        Shard(0, 1, 21, "own"),
        Shard(1, 2, 21, "own"),
    ]
    assert [place.shard.reads for place in places] == [(0, 2), (0, 1), (1, 2)]
    assert roster.records() == 200
    roster.release(0, 1)
    assert roster.assign(0, "a:1").shard == Shard(0, 2, 22, "own")


def test_two_commands_on_one_machine_with_the_same_data_are_one_host_in_own() -> None:
    roster = Roster((8, 8), share="own")
    for host in ("a:1", "a:2"):
        roster.enlist(host, 1, on("a"))
        roster.assign(0, host)
    assert roster.records() == 100
    assert roster.present(frozenset({0, 1})).workers == ()  # both read all: to be redistributed
    roster.reshard(Sharding((0, 1), (8, 8), "own"), [(0, 1), (1, 1)])
    assert [roster._held[slot].shard for slot in (0, 1)] == [
        Shard(0, 2, 8, "own"),
        Shard(1, 2, 8, "own"),
    ]
    assert roster.present(frozenset({0, 1})).workers == (0, 1)


def test_a_slot_that_comes_to_another_host_in_own_is_redistributed() -> None:
    roster = Roster((8, 8), share="own")
    for host in ("a", "b"):
        roster.enlist(host, 1, on(host))
        roster.assign(0, host)
    assert roster.present(frozenset({0, 1})).workers == (0, 1)
    roster.release(0, 1)
    roster.assign(0, "b")
    assert roster.present(frozenset({0, 1})).workers == ()
    moved = roster.reshard(Sharding((0, 1), (8, 8), "own"), [(0, 2), (1, 1)])
    assert [new.shard for _, new in moved] == [Shard(0, 2, 8, "own"), Shard(1, 2, 8, "own")]


def test_after_a_resume_in_own_a_host_gets_the_slot_that_has_read_its_records() -> None:
    states = {
        slot: WorkerState(0, 1, 8, 5 + slot, "own", f"data of {host}")
        for slot, host in enumerate("ab")
    }
    roster = Roster((8, 8), resumed=states, version=3, share="own")
    for host in ("b", "a"):
        roster.enlist(host, 1, on(host))
    places = [roster.assign(80, host) for host in ("b", "a")]
    assert [(place.worker, place.skip, place.history) for place in places] == [(1, 6, 3), (0, 5, 3)]


def test_a_host_with_other_records_than_before_the_resume_begins_its_own_anew() -> None:
    states = {0: WorkerState(0, 1, 8, 5, "own", "data of a")}
    roster = Roster((8,), resumed=states, version=3, share="own")
    roster.enlist("c", 1, on("c"))
    assert roster.assign(0, "c").history is None


def test_with_offset_worker_k_of_n_begins_at_k_nths_in_whole_batches() -> None:
    roster = Roster((8, 8, 8), share="offset", records=100)
    places = [roster.assign() for _ in range(3)]
    assert [place.shard.reads for place in places] == [(0, 1)] * 3
    assert [place.skip * 8 for place in places] == [0, 32, 64]  # of 0, 33 and 66


@pytest.mark.parametrize(("passed", "skip"), [(0, 6), (5, 11), (6, 12), (7, 0), (20, 0)])
def test_a_new_reader_goes_to_its_place_in_the_present_pass(passed: int, skip: int) -> None:
    assert Shard(1, 2, 8, "offset").batches_to_skip(passed, 104) == skip


def test_what_a_resume_with_another_way_of_sharing_had_read_does_not_count() -> None:
    states = {slot: WorkerState(slot, 2, 8, 5) for slot in (0, 1)}
    roster = Roster((8, 8), resumed=states, version=3, share="offset", records=1000)
    assert [(place.skip, place.history) for place in (roster.assign(), roster.assign())] == [
        (0, None),
        (62, None),
    ]


def test_the_history_of_a_snapshot_of_caffe_is_restored_whatever_the_way_of_sharing() -> None:
    states = {slot: WorkerState(slot, 2, 8, 0, "") for slot in (0, 1)}
    roster = Roster((8, 8), resumed=states, version=0, share="offset", records=160)
    assert [(place.skip, place.history) for place in (roster.assign(80), roster.assign(80))] == [
        (0, 0),
        (10, 0),
    ]


def test_the_same_request_gets_the_same_place_while_that_is_held() -> None:
    """A host whose answer came late asked again, and the first slot stayed taken by nobody for ever."""
    roster = Roster((2, 2))
    first = roster.assign(0, "a", 1)
    assert roster.assign(0, "a", 1) == first
    assert [roster.assign(0, *who).worker for who in (("a", 2), ("b", 1))] == [1, 2]
    roster.release(first.worker, first.incarnation)
    again = roster.assign(0, "a", 1)
    assert (again.worker, again.incarnation) == (0, 2)
    assert roster.assign(0, "a", 1) == again


# ---------------------------------------------------------------- shares by speed


def test_shares_by_speed_change_the_places_and_not_the_incarnations() -> None:
    roster = Roster((8, 8, 8), records=1000)
    for _ in range(3):
        roster.assign()
    roster.divide(Divided((0, 1, 2), (11, 11, 2), 24 * 50, "by speed"))
    places = [roster.now_at(worker, 1) for worker in range(3)]
    # 1,200 samples are 200 in the second pass: 8 whole batches.
    assert [(place.shard, place.skip) for place in places if place is not None] == [
        (Shard(0, 2, 11), 8),
        (Shard(1, 2, 11), 8),
        (Shard(0, 1, 2), 8),
    ]
    roster.release(2, 1)
    assert (back := roster.assign()).shard == Shard(0, 1, 2)
    assert back.incarnation == 2


def test_of_the_records_of_a_host_the_slow_worker_reads_all_of_that_host() -> None:
    roster = Roster((8, 8, 8, 8), share="own")
    for host, digest in (("a", "1"), ("b", "2")):
        roster.enlist(host, 2, Holding(100, digest, host))
        roster.assign(host=host)
        roster.assign(host=host)
    roster.divide(Divided((0, 1, 2, 3), (10, 10, 10, 2), 32, "by speed"))
    shards = [place.shard for worker in range(4) if (place := roster.now_at(worker, 1))]
    assert shards == [
        Shard(0, 2, 10, "own"),
        Shard(1, 2, 10, "own"),
        Shard(0, 1, 10, "own"),
        Shard(0, 1, 2, "own"),
    ]
    live = frozenset(range(4))
    assert roster.present(live).workers == (0, 1, 2, 3)


def test_a_resumed_run_begins_with_the_shares_that_it_had() -> None:
    states = {0: WorkerState(0, 1, 21, 7), 1: WorkerState(0, 1, 3, 7)}
    roster = Roster((12, 12), resumed=states, version=5)
    places = [roster.assign(), roster.assign()]
    assert [(one.shard, one.skip, one.history) for one in places] == [
        (Shard(0, 1, 21), 7, 5),
        (Shard(0, 1, 3), 7, 5),
    ]


def test_shares_of_another_batch_or_of_other_slots_are_not_taken_over() -> None:
    states = {0: WorkerState(0, 1, 21, 7), 1: WorkerState(0, 1, 3, 7)}
    assert Roster((16, 16), resumed=states).sharding.batch_sizes == (16, 16)
    assert Roster((8, 8, 8), resumed=states).sharding.batch_sizes == (8, 8, 8)
