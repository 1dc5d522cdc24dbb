"""Scripts that lease their records, in random runs with deaths, joins, losses and repetitions: each record once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import TrainingStopped
from speedo.exchange.lease import Lease, LeaseRequest, NoLease
from speedo.master.driver import Limits
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.master.observers import Observer, Observers
from speedo.master.plan import Plan
from speedo.messages import Action, Event, Merge, Train, Trained
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.share import RecordShare
from tests.support.every_mode import MODES, options_of
from tests.support.simulation import simulator
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import Faults, World

RECORDS, BATCH, WORKERS, ITERATIONS = 37, 4, 4, 90


class Books:
    """The leases of one run, and what its merges trained."""

    def __init__(self, seed: int) -> None:
        self.book = LeaseBook(seed)
        self.leases = Leases(self.book, lambda text: None)
        self.reported: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self.trained = Counter[tuple[int, int]]()

    def saw(self, event: Event, now: float) -> None:
        if isinstance(event, Trained):
            self.reported.setdefault(event.ticket, event.records)

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            for part in action.parts:
                for epoch, start, stop in self.reported[part.ticket]:
                    self.trained.update((epoch, position) for position in range(start, stop))


@dataclass
class Script(ScriptWorker):
    """A script's loop over epochs without end."""

    books: Books = field(default_factory=lambda: Books(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share = RecordShare(self._lease, lambda: None, 0)
        self._loop = iter(self._batches())

    @property
    def engine(self) -> QuadraticEngine:
        assert isinstance(self.weights, QuadraticEngine)
        return self.weights

    def _lease(self, request: LeaseRequest) -> Lease | NoLease:
        answer = self.books.leases.lease(self.worker, self.incarnation, request)
        return NoLease.OVER if answer is NoLease.WAIT else answer

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self._share.batches(np.arange(RECORDS), BATCH, epochs=10_000)

    def turn(self, command: Train) -> Trained:
        self.begin(command)
        self._share.steps = command.steps
        while True:
            records = len(next(self._loop))
            if self.stepped(records, self.engine.step(1)):
                taken, _ = self._share.taken()
                return self.end(tuple((one.epoch, one.start, one.stop) for one in taken))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_no_record_is_trained_twice_and_none_is_left_out(
    mode: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    books = Books(seed)
    monkeypatch.setattr(
        simulator,
        "EngineWorker",
        lambda *arguments, **options: Script(*arguments, **options, books=books),  # type: ignore[misc]
    )
    options = options_of(mode, ITERATIONS)
    if mode != "hybrid":
        options["local_steps"] = chance.choice([1, 2, 5])
    faults = Faults(
        **{
            name: 0.03 * chance.random()
            for name in ("die", "lose", "late", "leave", "fail", "poison", "repeat")
        },
        return_s=1.0,
    )

    def script(cluster: SimulatedCluster) -> None:
        for _ in range(6):
            worker, when = chance.randrange(WORKERS), 6 * chance.random()
            cluster.die(worker, when)
            cluster.join(worker, when + chance.random())

    def observers(trace: Observer) -> Observer:
        return Observers(books.leases, books, trace)

    try:
        simulate(
            make_strategy(make_config(options), BATCH),
            Plan(BATCH, ITERATIONS, workers=WORKERS),
            world=World(faults=faults, jitter=0.4),
            seed=seed,
            script=script,
            observer=observers,
            limits=Limits(start_s=20.0, join_s=15.0, turn_s=12.0),
        )
    except TrainingStopped as stopped:
        assert "set aside" in str(stopped)  # noqa: PT017
    assert set(books.trained.values()) == {1}
    assert len(books.trained) > RECORDS  # more than an epoch
    book = books.book
    for epoch in range(book.epoch + 1):
        whole = [position for at, position in books.trained if at == epoch]
        assert book.settled(epoch) == len(whole)
    assert len(books.trained) + book.unsettled == book.epoch * RECORDS + book.position
