"""A worker that joins, whenever it does, trains within one round and from the newest center."""

from __future__ import annotations

from itertools import count

import pytest

from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan
from speedo.messages import Joined, Left, Train, Trained
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.hybrid import Hybrid, Phase
from speedo.sgd_modes.partial import Partial
from speedo.sgd_modes.rules import AddDelta, AverageDeltas, Elastic
from speedo.sgd_modes.synchronous import Synchronous
from speedo.sgd_modes.weed_out import WeedOut
from tests.support.receiving import handle

BATCH = 10


class Crew:
    """Workers of a coordinator that answer when they are told to."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        self.coordinator = Coordinator(strategy, Plan(BATCH, 10_000, workers=workers))
        self.owes: dict[int, Train] = {}
        self.incarnations = count(1)

    def join(self, worker: int) -> None:
        self._handle(Joined(worker, next(self.incarnations), BATCH))

    def leave(self, worker: int) -> None:
        self.owes.pop(worker, None)
        self._handle(Left(worker, self.coordinator.members[worker].incarnation, "killed"))

    def finish(self, *workers: int) -> None:
        for worker in workers:
            turn = self.owes.pop(worker)
            samples = turn.steps * BATCH
            self._handle(Trained(worker, turn.incarnation, turn.ticket, 0.5, samples))

    def _handle(self, event: Joined | Left | Trained) -> None:
        for action in handle(self.coordinator, event):
            if isinstance(action, Train):
                # Issued from the newest center, or it would not be this version's turn.
                assert action.version == self.coordinator.version
                self.owes[action.worker] = action


def strategies() -> dict[str, Strategy]:
    return {
        "sync": Synchronous(AverageDeltas()),
        "async": Asynchronous(AddDelta()),
        "partial": Partial(AddDelta(), max_advance=2),
        "weed-out": WeedOut(AddDelta(), window=3),
        "easgd": Asynchronous(Elastic(0.3)),
        "hybrid": Hybrid(
            (
                Phase(lambda: Synchronous(AverageDeltas()), 40),
                Phase(lambda: Asynchronous(AddDelta()), 60),
            )
        ),
    }


@pytest.mark.parametrize("mode", strategies())
def test_who_joins_during_start_up_trains_when_all_are_there(mode: str) -> None:
    crew = Crew(strategies()[mode], workers=3)
    crew.join(0)
    crew.join(1)
    crew.leave(0)
    crew.join(2)
    assert crew.owes == {}
    crew.join(0)
    assert set(crew.owes) == {0, 1, 2}
    crew.join(3)  # one more than expected, while the first turns are under way
    crew.finish(0, 1, 2)
    assert 3 in crew.owes


@pytest.mark.parametrize("mode", strategies())
@pytest.mark.parametrize("finished", [0, 1, 2])
@pytest.mark.parametrize("slot", [1, 3])
def test_who_joins_in_a_round_trains_in_the_next(mode: str, finished: int, slot: int) -> None:
    """At every point of a round: a newcomer (slot 3), or one who returns after its death (slot 1)."""
    crew = Crew(strategies()[mode], workers=3)
    for worker in range(3):
        crew.join(worker)
    crew.finish(0, 1, 2)
    if slot == 1:
        crew.leave(1)
    others = [worker for worker in (0, 1, 2) if worker != slot]
    crew.finish(*others[:finished])
    crew.join(slot)
    newest = crew.coordinator.members[slot].incarnation
    crew.finish(*[worker for worker in others if worker in crew.owes])  # the round under way
    assert crew.owes[slot].incarnation == newest
    assert crew.owes[slot].moving_rate is None  # from the center, not from weights it does not have
    before = crew.coordinator.samples
    crew.finish(*sorted(crew.owes))
    assert crew.coordinator.samples > before


def test_who_joins_while_the_others_catch_up_trains_at_once() -> None:
    """partial: 0 is held, two turns ahead of 1; the newcomer counts as level with the fastest."""
    crew = Crew(Partial(AddDelta(), max_advance=2), workers=2)
    crew.join(0)
    crew.join(1)
    crew.finish(0)
    crew.finish(0)
    assert set(crew.owes) == {1}
    crew.join(2)
    assert crew.owes[2].version == 2
    crew.finish(1)
    assert set(crew.owes) == {0, 1, 2}


@pytest.mark.parametrize("returns", [False, True])
def test_who_joins_while_a_phase_ends_trains_from_the_first_turn_of_the_next(
    returns: bool,
) -> None:
    """hybrid: the asynchronous phase has merged its 60 samples, one of its turns is still under way."""
    crew = Crew(strategies()["hybrid"], workers=2)
    crew.join(0)
    crew.join(1)
    for _ in range(2):  # 40 samples: the synchronous phase
        crew.finish(0, 1)
    for _ in range(6):
        crew.finish(0)
    assert set(crew.owes) == {1}
    slot = 0 if returns else 2
    if returns:
        crew.leave(0)
    crew.join(slot)
    assert slot not in crew.owes
    crew.finish(1)
    assert {0, 1, slot} == set(crew.owes)
    assert {turn.version for turn in crew.owes.values()} == {crew.coordinator.version}


def test_a_worker_that_takes_a_new_shard_leaves_and_returns_with_its_new_batch() -> None:
    """As a reshard does it: three workers of a split batch become two."""
    crew = Crew(Synchronous(AverageDeltas()), workers=3)
    for worker in range(3):
        crew.join(worker)
    crew.finish(0)
    for worker in (1, 0, 2):
        crew.leave(worker)
    assert crew.coordinator.short_of_workers
    crew.join(0)
    crew.join(2)
    crew.finish(0)
    assert set(crew.owes) == {0, 2}
    version = crew.coordinator.version
    crew.finish(0, 2)
    assert crew.coordinator.version == version + 1
