"""A team's turn on the exact toy problem: its sum is that of synchronous SGD, to the bit, and all fail together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import Vector, as_bytes, header_for
from speedo.messages import Kind, Refused, Team, Train, Trained
from speedo.sgd_modes.rules import AverageDeltas, Contribution, mean_into
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.study.simulation.simulated_team import train_together
from speedo.worker.team_memory import stretch_of
from speedo.worker.turn import Worker

SIZE = 40


class Members:
    """Workers 0, 1, ... with batches of their own, and a store with center 3."""

    def __init__(self, *batches: int, size: int = SIZE) -> None:
        self.batches = batches
        self.store = MemoryStore(clock=lambda: 0.0)
        self.center = np.linspace(-1.0, 1.0, size, dtype=np.float32)
        self.workers = {
            worker: Worker("run", worker, 1, self.engine(worker), self.store, lambda: 0.0)
            for worker in range(len(batches))
        }
        layout = self.workers[0].engine.layout
        body = as_bytes(self.center)
        header = header_for(body, layout, Kind.CENTER, version=3)
        self.store.write(keys.center("run", 3), header.pack(), body)

    def engine(self, worker: int) -> QuadraticEngine:
        batch, count = self.batches[worker], len(self.batches)
        return QuadraticEngine(
            self.center.size, rank=worker, count=count, batch=batch, momentum=0.9, noise=0.1
        )

    def commands(self, rounds: int, kind: Kind, steps: int = 1) -> dict[int, Train]:
        members = tuple((worker, 1, batch) for worker, batch in enumerate(self.batches))
        team = Team(50, members, rounds)
        return {
            worker: Train(worker, 1, 50 + worker, 3, 10, steps, 1, kind, team=team)
            for worker in self.workers
        }

    def train(
        self,
        rounds: int,
        kind: Kind,
        steps: int = 1,
        stops: Mapping[int, int] = MappingProxyType({}),
        bad: tuple[int, ...] = (),
    ) -> dict[int, Trained | Refused]:
        commands = self.commands(rounds, kind, steps)
        team = commands[0].team
        assert team is not None
        return train_together(team, self.workers, commands, stops, bad)

    def published(self, kind: Kind) -> Vector:
        layout = self.workers[0].engine.layout
        out = layout.zeros()
        fetch_vector(self.store, keys.payload("run", 0, 50), layout, kind, out)
        return out

    def by_hand(self, rounds: int, steps: int = 1) -> Vector:
        """Synchronous SGD, round for round: one solver with the mean gradient, or the mean of the deltas."""
        engines = [self.engine(worker) for worker in self.workers]
        center, solver = self.center.copy(), self.engine(0)
        solver.load_weights(center)
        for number in range(rounds):
            payloads = []
            for engine, batch in zip(engines, self.batches, strict=True):
                engine.load_weights(center)
                engine.set_iteration(10 + number * steps)
                payload = engine.layout.zeros()
                if steps == 1:
                    engine.gradient(1, payload)
                else:
                    engine.step(steps)
                    engine.read_weights(payload)
                    payload -= center
                payloads.append(Contribution(payload, batch))
            if steps == 1:
                mean = np.empty_like(center)
                mean_into(mean, payloads)
                solver.apply_gradient(mean)
                solver.read_weights(center)
            else:
                AverageDeltas().merge(center, payloads, 1.0, 10)
        return center


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batches", [(4, 4), (5, 3), (2, 2, 2), (1, 2, 3, 4)])
def test_rounds_of_a_team_are_those_of_synchronous_sgd(
    batches: tuple[int, ...], steps: int
) -> None:
    members = Members(*batches)
    answers = members.train(5, Kind.WEIGHTS, steps)
    assert all(isinstance(answer, Trained) for answer in answers.values())
    assert members.published(Kind.WEIGHTS).tobytes() == members.by_hand(5, steps).tobytes()


def test_one_round_with_other_hosts_leaves_the_mean_for_the_master() -> None:
    members = Members(5, 3)
    members.train(1, Kind.DELTA)
    center = members.center.copy()
    center += members.published(Kind.DELTA)
    np.testing.assert_allclose(center, members.by_hand(1), rtol=0, atol=1e-7)


def test_gradients_are_averaged_by_samples() -> None:
    members = Members(6, 2)
    members.train(1, Kind.GRADIENT)
    expected = np.zeros(SIZE, np.float64)
    for worker, share in ((0, 0.75), (1, 0.25)):
        engine, gradient = members.engine(worker), np.empty(SIZE, np.float32)
        engine.load_weights(members.center)
        engine.gradient(1, gradient)
        expected += share * gradient.astype(np.float64)
    np.testing.assert_allclose(members.published(Kind.GRADIENT), expected, rtol=1e-5, atol=1e-7)


def test_each_member_says_what_it_trained_and_lost() -> None:
    members = Members(5, 3)
    answers = members.train(4, Kind.WEIGHTS)
    first, second = answers[0], answers[1]
    assert isinstance(first, Trained)
    assert isinstance(second, Trained)
    assert (first.samples, second.samples) == (20, 12)
    assert (members.workers[0].samples, members.workers[1].samples) == (20, 12)
    assert len(first.losses) == 4
    assert first.loss == pytest.approx(sum(first.losses) / 4)
    assert set(first.timings) == {"fetch", "compute", "team", "publish"}


def test_the_iteration_of_each_round_follows_the_stride() -> None:
    members = Members(4, 4)
    asked: list[int] = []
    engine = members.workers[0].engine
    take = engine.set_iteration

    def note(iteration: int) -> None:
        asked.append(iteration)
        take(iteration)

    engine.set_iteration = note  # type: ignore[method-assign]
    commands = members.commands(3, Kind.WEIGHTS, steps=2)
    strides = {worker: replace(one, stride=4) for worker, one in commands.items()}
    team = commands[0].team
    assert team is not None
    train_together(team, members.workers, strides, {})
    assert asked == [10, 14, 18, 22, 26, 30]


@pytest.mark.parametrize("meeting", range(7))
def test_who_dies_at_any_meeting_breaks_the_turn_of_all(meeting: int) -> None:
    members = Members(4, 4, 4)
    answers = members.train(3, Kind.WEIGHTS, stops={1: meeting})
    assert 1 not in answers
    for worker in (0, 2):
        answer = answers[worker]
        assert isinstance(answer, Refused)
        assert not answer.blame
        assert "worker 1" in answer.reason


def test_who_is_not_finite_is_to_blame_and_the_others_are_not() -> None:
    members = Members(4, 4)
    answers = members.train(3, Kind.WEIGHTS, bad=(1,))
    refused = [answers[worker] for worker in (0, 1)]
    assert [one.blame for one in refused if isinstance(one, Refused)] == [False, True]
    assert "worker 1" in getattr(refused[0], "reason", "")


@pytest.mark.parametrize("size", [1, 15, 16, 17, 431_080])
@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_the_shares_of_all_members_are_the_whole_vector_once(members: int, size: int) -> None:
    shares = [stretch_of(rank, members, size) for rank in range(members)]
    assert shares[0].start == 0
    assert [share.stop for share in shares[:-1]] == [share.start for share in shares[1:]]
    assert shares[-1].stop == size
