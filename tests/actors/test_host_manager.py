"""What the master orders its hosts to do."""

from __future__ import annotations

import time

import pytest

from speedo.actors.host_manager import MASTERS_OWN, EndOfWorker, HostManager
from speedo.actors.ray_cluster import RayCluster
from speedo.engines.solver.holding import Holding
from speedo.errors import ClusterError, ConfigError
from speedo.master.sharding import Sharding
from speedo.master.slots import Roster
from speedo.system.bounds import DataShare
from speedo.watch.status import StatusBoard


class Desk:
    """A supervisor with the real books around it, and no process."""

    def __init__(self, share: DataShare = "shard") -> None:
        self.roster = Roster((32, 32), share=share)
        self.board = StatusBoard("async", max_iter=100, batch=64, records=1000)
        self.cluster = RayCluster(self.roster.release)
        self.supervisor = HostManager(
            self.cluster,
            self.roster,
            self.board,
            lambda place, beside: place,
            lambda worker, incarnation: None,
            restarts=3,
            reshard_after_s=60.0,
            batch_size=64,
            split=False,
        )


def test_a_host_learns_who_must_end_and_whether_to_start_it_again() -> None:
    desk = Desk()
    assert desk.supervisor.enlist("a", 3, 4) == 3
    alive = tuple(
        (place.worker, place.incarnation) for place in (desk.roster.assign() for _ in "abc")
    )
    desk.cluster.evict(0, 1, "no result for 31 s")
    desk.cluster.evict(1, 1, "3 results in a row were refused", for_good=True)
    orders = desk.supervisor.attend("a", (*alive, (7, 1)))
    assert orders.count == 3
    assert orders.end == (
        EndOfWorker(0, 1, "no result for 31 s", False),
        EndOfWorker(1, 1, "3 results in a row were refused", True),
        EndOfWorker(7, 1, "the master does not know it", False),
    )


def test_a_host_learns_where_its_workers_were_moved() -> None:
    desk = Desk()
    desk.supervisor.enlist("a", 2, 4)
    desk.roster.assign()
    desk.roster.assign()
    desk.roster.reshard(Sharding((1,), (64,)), [(1, 1)])
    orders = desk.supervisor.attend("a", ((0, 1), (1, 1)))
    assert orders.end == ()
    assert [(place.worker, place.incarnation, place.count) for place in orders.moved] == [(1, 2, 1)]
    assert desk.supervisor.attend("a", ((0, 1), (1, 2))).moved == ()


def test_a_host_whose_workers_started_for_long_counts_as_soon_as_it_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    desk.supervisor.enlist("a", 2, 4)
    now = time.monotonic() + 40.0
    monkeypatch.setattr("speedo.actors.host_manager.time.monotonic", lambda: now)
    desk.supervisor.enlist("b", 2, 4)
    assert desk.board.wanted == 2
    desk.supervisor.attend("a", ())
    assert desk.board.wanted == 4


def test_a_host_that_is_not_heard_of_is_told_once_and_once_that_it_is_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, now = Desk(), [1000.0]
    monkeypatch.setattr("speedo.actors.host_manager.time.monotonic", lambda: now[0])
    for host in ("a", "b", "starting"):
        desk.supervisor.enlist(host, 1, 4)
    desk.supervisor.attend("b", ())
    for now[0] in (1004.0, 1007.0, 1008.0):
        desk.supervisor.attend("a", ())
    told = "warning: nothing was heard of host b for 7 s: its link is down, or the machine stands still"
    assert desk.board.status(0.0).notices == (told,)
    desk.supervisor.attend("b", ())
    assert desk.board.status(0.0).notices == (told, "host b is heard of again")


def test_the_only_host_that_is_not_heard_of_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, now = Desk(), [1000.0]
    monkeypatch.setattr("speedo.actors.host_manager.time.monotonic", lambda: now[0])
    for host in ("a", MASTERS_OWN):  # the latter is a part of the master's own command
        desk.supervisor.enlist(host, 1, 4)
        desk.supervisor.attend(host, ())
    now[0] = 1007.0
    desk.supervisor.tell_silent()
    desk.supervisor.tell_silent()
    (told,) = desk.board.status(0.0).notices
    assert told.startswith("warning: nothing was heard of host a for 7 s")


def test_what_the_user_wants_counts_where_somebody_else_places_the_workers() -> None:
    desk = Desk()
    desk.supervisor.enlist("a", 2, 4)
    desk.supervisor.want(5)
    desk.supervisor.enlist("b", 1, 4)
    assert desk.board.wanted == 5


def test_workers_are_spread_over_the_hosts_that_are_there() -> None:
    desk = Desk()
    with pytest.raises(ClusterError, match="no host has joined"):
        desk.supervisor.scale(2)
    desk.supervisor.enlist("large", 1, 8)
    desk.supervisor.enlist("small", 1, 2)
    assert desk.board.wanted == 2
    assert desk.supervisor.scale(5) == "5 workers wanted: large 4, small 1"
    assert [desk.supervisor.attend(host, ()).count for host in ("large", "small")] == [4, 1]
    assert desk.supervisor.attend("large", ()).round == 1
    desk.supervisor.discharge("large")
    assert desk.board.wanted == 1
    with pytest.raises(ClusterError, match="must register"):
        desk.supervisor.attend("large", ())


@pytest.mark.parametrize("workers", [0, -1, 10_001])
def test_a_number_of_workers_that_cannot_be_is_refused(workers: int) -> None:
    desk = Desk()
    desk.supervisor.enlist("a", 1, 1)
    with pytest.raises(ConfigError, match="speedo stop"):
        desk.supervisor.scale(workers)


def test_a_new_reader_goes_on_in_the_present_pass_over_the_records() -> None:
    desk = Desk()
    desk.board.samples = 2_300
    assert desk.supervisor.samples() == 2_300  # resumed, and not begun yet: exactly there
    desk.board._first = 0.0
    assert desk.supervisor.samples() == 300


def test_hosts_that_leave_when_the_run_is_over_do_not_change_what_was_wanted() -> None:
    desk = Desk()
    desk.supervisor.enlist("a", 1, 4)
    desk.supervisor.enlist("b", 1, 4)
    desk.board.over = True
    desk.supervisor.discharge("a")
    assert desk.board.wanted == 2


@pytest.mark.parametrize("share", ["shard", "offset", "same"])
def test_a_host_with_another_number_of_records_is_refused(share: DataShare) -> None:
    desk = Desk(share)
    assert desk.supervisor.enlist("a", 1, 4, Holding(1000, "x", "a")) == 3
    assert desk.supervisor.enlist("b", 1, 4, Holding(None, "", "b")) == 3  # its workers will say it
    with pytest.raises(ClusterError, match=rf"500 .* the master 1,000, .* {share} .* own"):
        desk.supervisor.enlist("c", 1, 4, Holding(500, "y", "c"))
    assert desk.board.wanted == 2


def test_an_epoch_in_own_is_the_sum_over_the_hosts() -> None:
    desk = Desk("own")
    desk.board.records = None
    desk.supervisor.enlist("a", 1, 4, Holding(300, "x", "a"))
    desk.supervisor.enlist("b", 1, 4, Holding(500, "y", "b"))
    desk.board.samples = 400
    assert desk.board.status(0.0).epoch == 0.5
    desk.supervisor.discharge("b")
    assert desk.board.records == 300
    desk.board.over = True
    desk.supervisor.discharge("a")
    assert desk.board.records == 300


def test_two_commands_on_one_machine_in_own_are_told_when_they_divide_their_records() -> None:
    desk = Desk("own")
    same, other = Holding(8, "digest", "machine"), Holding(8, "digest", "another machine")
    for host, holding in (("a:1", same), ("b:1", other), ("a:2", same), ("a:2", same)):
        desk.supervisor.enlist(host, 1, 4, holding)
    (said,) = desk.board.status(0.0).notices
    assert said == (
        "a:2 has the records of a:1 on the same machine, and the workers of each command read all of them: they divide "
        "them 60 s after the last worker has joined (--data-share reshard_after); one command with --workers N "
        "divides them from the start"
    )
