"""What a team's stretches say of how long the next ones should be, and what counts of one that a death has ended."""

from __future__ import annotations

import pytest

from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan, rounds_of
from speedo.master.teams import Stretch, TeamUnit
from speedo.master.turn_book import Receive
from speedo.messages import Drop, Event, Joined, Left, Merge, Part, Refused, Train, Trained
from speedo.sgd_modes.rules import AddDelta, AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous


def complete(team: TeamUnit, fetch_s: float) -> None:
    """A stretch of ten rounds of 0.1 s, in which the leader waits so long until the slowest member is there."""
    timings = {"fetch": fetch_s, "compute": 0.8, "team": 0.2, "publish": 0.001}
    stretch = Stretch(-1, AddDelta(), (0,), 10)
    part = Part(0, 1, 7, 40, 0, 0.5, (0.5,) * 10, None, 10)
    assert stretch.take(part, Trained(0, 1, 7, 0.5, 40, timings))
    team.complete(stretch)


def test_what_it_takes_to_begin_each_time_makes_stretches_longer() -> None:
    """A member at a tenth of the speed comes late; a stretch of 0.5 s would lose 8 % of the time to that."""
    team, plan = TeamUnit("host"), Plan(4, 10_000, 2, stretch_s=0.5)
    found = []
    for fetch_s in (0.04, 0.04, 9.0, 9.0, 0.0):
        complete(team, fetch_s)
        assert team.round_s == pytest.approx(0.1)
        found.append(rounds_of(plan, 0, 80_000, 4, *team.times(1, far=False)))
    # The first begins with connections; what happens once is not counted, and no more than 0.1 s is.
    assert found == [5, 20, 20, 50, 5]


def test_where_members_die_often_a_stretch_is_no_longer_than_pays() -> None:
    """Reports of 0.1 s: 5 s where nobody dies, and sqrt(2 x 0.1 x 10) s with a death every 10 s."""
    team, plan = TeamUnit("host"), Plan(4, 10_000, 2, stretch_s=0.5)

    def rounds() -> int:
        return rounds_of(plan, 0, 80_000, 4, *team.times(1, far=False))

    def trains(seconds: int) -> None:
        for _ in range(seconds):  # a stretch each
            complete(team, 9.0)

    trains(10)
    assert rounds() == 50
    for _ in range(8):
        team.broke()
        trains(10)
    assert rounds() == 14
    trains(990)
    assert rounds() == 50, "nobody has died for long"


class Run:
    """Workers with batches of 2, in a stretch of 10 rounds of 0.1 s."""

    def __init__(self, workers: int = 3) -> None:
        plan = Plan(2 * workers, 1000, workers, teams=True, stretch_s=1.0)
        self.coordinator = Coordinator(Synchronous(AverageDeltas()), plan)
        self.actions: list[object] = []
        for worker in range(workers):
            self.says(Joined(worker, 1, 2, meets="here"))
        self.answer(*range(workers), rounds=1)
        assert {one.team.rounds for one in self.turns.values() if one.team} == {10}

    def says(self, event: Event) -> Receive | None:
        """An event; what is to be received first is."""
        answer = due = self.coordinator.handle(event)
        if isinstance(answer, Receive):
            answer = self.coordinator.handle(answer)
        assert isinstance(answer, list)
        self.actions += answer
        return due if isinstance(due, Receive) else None

    @property
    def turns(self) -> dict[int, Train]:
        """The latest of each worker."""
        return {one.worker: one for one in self.actions if isinstance(one, Train)}

    @property
    def merged(self) -> list[Merge]:
        return [one for one in self.actions if isinstance(one, Merge)]

    def answer(self, *workers: int, rounds: int, broken: str = "") -> Receive | None:
        received = None
        for worker in workers:
            ticket, losses = self.turns[worker].ticket, (float(worker),) * rounds
            timings = {"compute": 0.1 * rounds}
            has_payload = worker < (2 if broken else 1)
            trained = Trained(
                worker, 1, ticket, float(worker), 2 * rounds, timings, losses,
                has_payload=has_payload, broken=broken,
            )  # fmt: skip
            received = self.says(trained) or received
        return received


GONE = "worker {} has left the team"


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("notice", ["first", "between", "last"])
def test_the_rounds_before_a_death_are_merged_for_all_members_once(
    victim: int, notice: str
) -> None:
    """Also those that the dead one has made. It is noticed before the others answer, or after that."""
    run = Run()
    tickets = {worker: one.ticket for worker, one in run.turns.items()}
    first, last = sorted({0, 1, 2} - {victim})
    steps: dict[str, list[int]] = {
        "first": [victim, first, last],
        "between": [first, victim, last],
        "last": [first, last, victim],
    }
    for number, worker in enumerate(steps[notice]):
        if worker == victim:
            received = run.says(Left(victim, 1, "killed"))
        else:
            received = run.answer(worker, rounds=7, broken=GONE.format(victim))
        assert (received is not None) == (number == 2)
    assert received is not None
    assert received.result.worker == first, "the leader, or the one after it"
    merge = run.merged[-1]
    assert (merge.samples_seen, merge.version) == (6 + 3 * 7 * 2, 2)
    assert {part.worker: part.ticket for part in merge.parts} == tickets
    assert {(part.samples, part.steps) for part in merge.parts} == {(14, 7)}
    assert [part.worker for part in merge.parts if part.summed_by is None] == [first]
    assert {part.summed_by for part in merge.parts} == {None, first}
    assert not [one for one in run.actions if isinstance(one, Drop)]
    teams = [one.team for one in run.turns.values() if one.worker != victim]
    assert {one.workers for one in teams if one} == {(first, last)}
    assert {one.formed for one in teams if one} == {run.turns[first].ticket}, "they meet again"
    assert run.coordinator.broken_off == set()


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_round_that_one_has_made_counts_for_all_if_its_weights_are_published(ahead: int) -> None:
    """One that died in the last meeting of a round has said to some that it is there, and to others not."""
    run = Run(4)
    for worker in (0, 1, 2):
        run.answer(worker, rounds=7 + (worker == ahead), broken=GONE.format(3))
    before = len(run.merged)
    assert run.coordinator.broken_off == {3}, "its turn is hurried"
    received = run.says(Left(3, 1, "killed"))
    if ahead == 2:  # who publishes nothing
        assert received is None
        assert len(run.merged) == before
        dropped = [one for one in run.actions if isinstance(one, Drop)]
        assert [(one.worker, one.decision) for one in dropped] == [
            (one, "discarded") for one in range(3)
        ]
    else:
        assert received is not None
        assert received.result.worker == ahead
        assert {(part.samples, part.steps) for part in run.merged[-1].parts} == {(16, 8)}
        assert len(run.merged[-1].parts) == 4
    teams = [one.team for one in run.turns.values() if one.worker != 3]
    assert all(one and one.workers == (0, 1, 2) for one in teams)


@pytest.mark.parametrize("refuses", [0, 2])
def test_a_stretch_is_void_if_a_member_has_made_no_round_or_is_to_blame(refuses: int) -> None:
    run = Run()
    other, before = 2 - refuses, len(run.merged)
    run.answer(other, rounds=1, broken=GONE.format(1))
    run.says(Refused(refuses, 1, run.turns[refuses].ticket, GONE.format(1), blame=False))
    run.says(Left(1, 1, "killed"))
    assert len(run.merged) == before
    assert {one.worker for one in run.actions if isinstance(one, Drop)} == {0, 2}


def test_a_stretch_that_a_broken_connection_has_ended_is_merged_and_all_meet_again() -> None:
    run = Run()
    formed = [one.team.formed for one in run.turns.values() if one.team]
    assert run.answer(0, 1, 2, rounds=4, broken="came damaged") is not None
    assert run.merged[-1].samples_seen == 6 + 24
    again = [one.team for one in run.turns.values() if one.team]
    assert {one.workers for one in again} == {(0, 1, 2)}
    assert not {one.formed for one in again} & set(formed)


def test_what_nobody_alive_has_published_is_void() -> None:
    """The leader has died, and the one after it once it had answered."""
    run = Run()
    before = len(run.merged)
    run.says(Left(0, 1, "killed"))
    run.answer(1, rounds=4, broken=GONE.format(0))
    run.says(Left(1, 1, "killed"))
    assert run.answer(2, rounds=4, broken=GONE.format(0)) is None
    assert len(run.merged) == before
