"""Masters that are killed anywhere, one after another: the next goes on from the newest center, and no promise breaks.

The store, the workers and the journal outlive each master, as they do on a machine. What is checked knows nothing of
coordinator or journal: it follows what was received, merged and published.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.vector import Vector
from speedo.master import center as center_module
from speedo.master import journal as journal_module
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver, Limits
from speedo.master.journal import Journal, JournalFile
from speedo.master.kept_state import KeptState
from speedo.master.observers import Observers
from speedo.master.plan import Plan
from speedo.master.turn_records import TurnRecords
from speedo.messages import (
    Action,
    Checkpointed,
    Command,
    Drop,
    Event,
    Finish,
    Joined,
    Merge,
    Records,
    Refused,
    Train,
    Trained,
)
from speedo.messages import Tested as Answer
from speedo.run.build import TICKETS_OF_AN_EPOCH
from speedo.run.config.run_config import RunConfig, make_config
from speedo.run.settings import Near, RunSettings
from speedo.run.takeover import Takeover
from speedo.run_dir.checkpoint_file import Counters
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.rules import State
from speedo.storage.memory_store import MemoryStore
from speedo.worker.turn import EngineWorker
from tests.support.disks import has_room
from tests.support.quick import tried
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

SIZE, BATCH, RECORDS = 6, 4, 37
RUNS = int(os.environ.get("SPEEDO_TAKEOVERS", tried(30)))  # of each mode; `make faults` has 1,000
MANY = 1000
TEAMS = "sync in teams"
MODES = ("sync", "async", "easgd", "partial", "weed-out", TEAMS)
# What keeps a state beside the center.
STATES: dict[str, dict[str, Any]] = {
    "outer-momentum": {"mode": "sync", "rule": "outer-momentum"},
    "delay-compensated": {"mode": "async", "rule": "delay-compensated"},
    "server-gradient": {"mode": "sync", "server_gradient": True},
}


class KilledError(Exception):
    """The master is no more."""


class Line(SimulatedCluster):
    """A cluster whose workers follow one master after another, as `WorkerActor.follow` has them do."""

    epoch = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.last: dict[int, tuple[Train, Trained]] = {}
        self.doing: dict[int, Train] = {}
        self.records: dict[int, Records] = {}  # by ticket
        self.dies = lambda: None

    def follow(self, epoch: int) -> None:
        """Whoever has no turn joins at once, the others when theirs has ended."""
        self.epoch, self.run = epoch, f"line:{epoch}"
        for commands in self._teams.values():  # not all members have theirs: they wait, and give up
            for worker in commands:
                self.doing.pop(worker, None)
        self._teams.clear()
        for worker in list(self._workers):
            if worker not in self.doing:
                self.at(self.now, partial(self._rejoin, worker, self._workers[worker].incarnation))

    def _join(self, worker: int) -> Event | None:
        joined = super()._join(worker)
        self._workers[worker].epoch = self.epoch
        return joined

    def send(self, command: Command) -> None:
        self.dies()
        if isinstance(command, Train):
            self.doing[command.worker] = command
        super().send(command)

    def _turn(
        self, worker: EngineWorker, command: Train, poisoned: bool = False, again: bool = False
    ) -> Event | None:
        if not self._present(worker):
            return None
        result = self.outcome(worker, command)
        self.doing.pop(command.worker, None)
        if isinstance(result, Trained):
            self.records[command.ticket] = result.records
            self.last[command.worker] = command, result
        else:  # a master that had come to the end of the run has removed its center
            assert command.ticket // TICKETS_OF_AN_EPOCH != self.epoch, result
        if command.ticket // TICKETS_OF_AN_EPOCH != self.epoch:
            return self._rejoin(command.worker, command.incarnation)
        return result

    def _answer(self, worker: EngineWorker | None, answer: Trained | Refused) -> Event | None:
        """A stretch of a former master's is void."""
        if worker is None or not self._present(worker):
            return None
        self.doing.pop(worker.worker, None)
        if answer.ticket // TICKETS_OF_AN_EPOCH != self.epoch:
            return self._rejoin(worker.worker, worker.incarnation)
        if isinstance(answer, Trained):
            self.records[answer.ticket] = answer.records
        return answer

    def _rejoin(self, worker: int, incarnation: int) -> Event | None:
        former = self._workers.get(worker)
        if former is None or former.incarnation != incarnation or former.epoch == self.epoch:
            return None
        if worker in self.doing:  # it was called by a master that had died before it could answer
            return None
        own = EngineWorker(
            self.run, worker, incarnation, former.engine, self.store, self.clock, self.epoch
        )
        own.samples, self._workers[worker] = former.samples, own
        command, handed = self.last.pop(worker, (None, None))
        begun = 0
        if handed is not None:
            assert command is not None
            begun = command.version
            counts = self.counts(worker, handed.ticket)
            if counts:
                self.at(self.now, partial(lambda one: one, handed))
            if counts and self.take_up(handed):
                self.handed[handed.ticket] = handed.ticket // TICKETS_OF_AN_EPOCH
            else:
                handed = None
        return Joined(
            worker,
            incarnation,
            own.engine.samples_per_step,
            meets=self.places(worker),
            handed=handed,
            begun=begun,
        )

    counts: Callable[[int, int], bool]
    take_up: Callable[[Trained], bool]
    handed: dict[int, int]


class Witness:
    """An observer that follows the line of versions that were published, whoever made them."""

    def __init__(self, first: np.ndarray[Any, Any], adds: bool) -> None:
        # With the center after it, and what was kept beside that.
        self.line: list[tuple[Merge, np.ndarray[Any, Any], tuple[bytes, bytes]]] = []
        self.brought: set[int] = set()  # tickets that a former master had given out
        self.first, self.adds = first, adds
        self.finish: Finish | None = None
        # Tickets of results that this master has heard of and has not decided on
        self.owed: set[int] = set()
        self.ends: Callable[[], None] = lambda: None  # a step of the end of the run
        self.center: Center
        self.history: Callable[[], bytes]

    def saw(self, event: Event, now: float) -> None:
        if isinstance(event, Trained):
            self.owed.add(event.ticket)
        if isinstance(event, (Answer, Checkpointed)) and self.finish is not None:
            self.ends()

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            self.owed.difference_update(part.ticket for part in action.parts)
        elif isinstance(action, Drop):
            self.owed.discard(action.ticket)
        elif isinstance(action, Finish):
            self.finish = action
            self.ends()

    def merged(self, merge: Merge, payloads: list[np.ndarray[Any, Any]]) -> None:
        """A merge has been carried out in memory; it is in the line until a successor begins before it."""
        assert merge.version == len(self.line) + 1
        before = self.line[-1][1] if self.line else self.first
        after = self.center.vector.copy()
        if self.adds:
            expected = before + np.float32(merge.rate) * sum(payloads)
            np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)
        assert np.isfinite(after).all()
        tickets = [part.ticket for part in merge.parts]
        self.brought.update(
            one for one in tickets if one // TICKETS_OF_AN_EPOCH < self.center.epoch
        )
        self.line.append((merge, after, (self.center.state.pack(), self.history())))

    def taken_over(
        self,
        version: int,
        center: np.ndarray[Any, Any],
        published: int,
        kept: tuple[bytes, bytes] | None = None,
    ) -> None:
        assert published <= version <= len(self.line), "a published version is undone"
        self.owed.clear()
        self.finish = None
        del self.line[version:]
        np.testing.assert_array_equal(center, self.line[-1][1] if self.line else self.first)
        if self.line and kept is not None:
            assert kept == self.line[-1][2]

    def check_numbers(self, config: RunConfig, samples: int) -> None:
        """Each worker was there all the time: each merge is that of all, whichever master has made it."""
        workers, steps = config.workers, config.local_steps
        assert isinstance(steps, int)
        for merge, *_ in self.line:
            if config.mode == "easgd":
                assert merge.rate == pytest.approx(0.9 / workers)
            if config.mode == "sync" and merge.samples_seen + workers * steps * BATCH < samples:
                assert len(merge.parts) == workers

    def check(self) -> None:
        assert not self.owed, "results are in no count"
        parts = [part for merge, *_ in self.line for part in merge.parts]
        keys = [(part.worker, part.incarnation, part.ticket) for part in parts]
        assert len(set(keys)) == len(keys), "merged twice"
        assert all(part.staleness >= 0 for part in parts)
        samples = 0
        for merge, *_ in self.line:
            samples += sum(part.samples for part in merge.parts)
            assert (merge.samples_seen, merge.iteration) == (samples, samples // BATCH)

    def check_records(self, records: dict[int, Records]) -> None:
        """Each record exactly once an epoch (`--data-share once`)."""
        ranges = [
            one for merge, *_ in self.line for part in merge.parts for one in records[part.ticket]
        ]
        trained = [
            RECORDS * epoch + at for epoch, start, stop in ranges for at in range(start, stop)
        ]
        assert sorted(trained) == list(range(len(trained)))


def run(mode: str, seed: int, folder: Path) -> tuple[int, int]:
    """How many masters there were, and how many results were brought from one to the next and merged."""
    # It keeps what it replaces, and so each dead master
    with pytest.MonkeyPatch.context() as patch:
        return _run(mode, seed, folder, patch)


def _run(mode: str, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    chance = random.Random(f"takeover {mode} {seed}")
    workers = chance.randint(1, 4)
    teams = mode == TEAMS
    named = {"mode": "sync" if teams else mode}
    options: dict[str, Any] = {**STATES.get(mode, named), "workers": workers}
    options["local_steps"] = 1 if "server_gradient" in options else chance.choice((1, 1, 3))
    once = chance.random() < 0.5
    iterations, hosts = chance.randint(20, 60), chance.randint(1, 2)
    plan = Plan(
        BATCH,
        iterations,
        workers,
        once=once,
        teams=teams,
        over_hosts=teams and chance.random() < 0.5,
        stretch_s=chance.choice((0.0, 1.0)),
    )
    config = make_config(options)
    world = World(
        latency_s=chance.choice((0.0, 0.001, 0.05)),
        jitter=chance.choice((0.0, 0.5)),
        slowness=lambda worker: (1.0, 1.0, 3.0, 0.5)[worker % 4],
    )
    store = MemoryStore(clock=lambda: cluster.now)

    # What this rule adds grows with the square of a gradient: with a larger rate some of these problems diverge.
    lr = 0.02 if mode == "delay-compensated" else 0.05

    def engine(rank: int) -> QuadraticEngine:
        return QuadraticEngine(SIZE, seed=seed, rank=rank, batch=BATCH, lr=lr, noise=0.01)

    cluster = Line(world, store, "line:0", engine, seed)
    if teams:
        cluster.places = lambda worker: f"host {worker % hosts}"
    for worker in range(workers):
        cluster.join(worker)
    layout = engine(0).layout
    first = layout.zeros()
    engine(0).read_weights(first)
    adds = mode == "async"
    witness = Witness(first.copy(), adds)
    spec: Any = None  # what is trained is made here
    near = Near(folder=str(folder))
    settings = RunSettings("line", "1", spec, workers, (), seed, 1.0, near=near)
    epoch, often = 0, chance.choice((0.004, 0.02, 0.08))
    return_s = chance.choice((5.0, 5.0, 5.0, 0.02))  # a turn takes up to 0.5 s
    witness.ends = lambda: end_of_master()
    former: Takeover | None = None
    counters: Counters | None = None
    kept = b""
    state, history = State(), engine(0).history()
    while True:
        own = QuadraticEngine(SIZE, seed=seed, batch=BATCH, lr=0.05, momentum=0.5)
        own.load_history(history)
        coordinator = Coordinator(
            make_strategy(
                config,
                BATCH,
                partial(_update, own),
                samples=0 if counters is None else counters.samples,
            ),
            plan,
            version=0 if counters is None else counters.version,
            samples=0 if counters is None else counters.samples,
            first_ticket=epoch * TICKETS_OF_AN_EPOCH + 1,
            received=0 if counters is None else counters.received,
            started=former is not None,
            awaited=set() if former is None else set(former.members),
        )
        vector = first.copy()
        center = Center(f"line:{epoch}", vector, layout, store, coordinator.version, epoch)
        center.state = state
        witness.center, witness.history = center, own.history if config.server_gradient else bytes
        beside = KeptState(center, lambda: [witness.history()] if config.server_gradient else [])
        published = coordinator.version if former is not None else 0

        def dies(epoch: int = epoch) -> None:
            if epoch < 40 and chance.random() < often:
                raise KilledError

        def end_of_master(epoch: int = epoch) -> None:
            if epoch < 40 and chance.random() < 0.3:
                raise KilledError

        def reached(point: str, center: Center = center) -> None:
            nonlocal published
            if point == "master-published":
                published = center.version
            dies()

        def counted(coordinator: Coordinator = coordinator, epoch: int = epoch) -> Counters:
            places = coordinator.version, coordinator.iteration, coordinator.samples
            return Counters("line", epoch, mode, *places, coordinator.received, 0.0, layout.digest)

        book = TurnRecords.of_run(
            RECORDS, plan.samples, coordinator.samples, kept, lambda text: None
        )
        cluster.take_up = book.take_up if once else lambda handed: True
        journal = Journal(
            JournalFile(folder, epoch, has_room),
            counted,
            whole=lambda beside=beside: not beside,  # type: ignore[misc]
            records=book.state,
            members=lambda one=coordinator: one.expected,  # type: ignore[misc]
            merged={} if former is None else former.merged,
            incarnations={} if former is None else former.incarnations,
        )

        def publishing(journal: Journal = journal, beside: KeptState = beside) -> None:
            beside.publishing()
            dies()
            journal.publishing()
            dies()

        def merge(
            action: Merge, before: int, *, more: bool = False, center: Center = center
        ) -> Merge:
            payloads = [
                center._payloads[part.worker, part.ticket].vector.copy()
                for part in action.parts
                if part.summed_by is None
            ]
            publish, center.publishing = center.publishing, lambda: None
            center.publishing = lambda: (witness.merged(action, payloads), publish())[1]
            try:
                return Center.merge(center, action, before, more=more)
            finally:
                center.publishing = publish

        center.publishing = publishing
        center.merge = merge  # type: ignore[method-assign]
        monkeypatch.setattr(center_module, "reached", reached)
        cluster.dies, cluster.version = dies, lambda one=coordinator: one.version
        cluster.counts = (lambda *_: False) if former is None else former.counts
        cluster.handed = center.handed
        driver = Driver(
            *(coordinator, center, cluster),
            Observers(book, witness) if once else witness,
            cluster.clock,
            Limits(return_s=return_s),
            has_tester=True,
            taken_over=former is not None and former.newest,
            journal=journal,
            with_records=book.with_records if once else lambda action: action,
        )
        try:
            outcome = driver.run()
            end_of_master()  # before its command knows the result
            break
        except KilledError:
            epoch += 1
        former = Takeover(store, folder)
        begun = former.as_checkpoint(engine(0), settings)
        if begun is None:  # killed before it had published anything
            assert published == 0
            former = Takeover(store, folder, members=former.members)
            counters, kept = None, b""
            state, history = State(), engine(0).history()
            witness.taken_over(0, first, 0)
        else:
            counters, kept = begun.counters, begun.records
            first = begun.center
            both = begun.rule_state, begun.master_history
            witness.taken_over(counters.version, first, published, both)
            state = State.unpack(begun.rule_state, SIZE)
            history = begun.master_history or engine(0).history()
        cluster.follow(epoch)
    assert witness.finish is not None
    assert witness.finish.complete, witness.finish
    assert outcome.metrics == {"version": float(len(witness.line))}, "the last test is missing"
    assert (outcome.version, outcome.samples) == (len(witness.line), coordinator.samples)
    witness.check()
    if return_s > 1.0 and not teams:
        witness.check_numbers(config, plan.samples)
    if once:
        witness.check_records(cluster.records)
    return epoch, len(witness.brought)


def _update(own: QuadraticEngine, gradient: Vector, center: Vector, *_: object) -> None:
    own.load_weights(center)
    own.apply_gradient(gradient)
    own.read_weights(center)


@pytest.mark.parametrize("mode", [*MODES, *STATES])
def test_promises_hold_however_often_the_master_is_killed(
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(journal_module, "FIRST_BYTES", 1 << 14)  # a quarter of the time
    kills = brought = 0
    for seed in range(RUNS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            masters, results = run(mode, seed, folder)
        except Exception as error:
            error.add_note(f"mode {mode}, seed {seed}")
            raise
        gc.collect()  # closes the journals of masters that were killed
        kills += masters
        brought += results
    with capsys.disabled():
        if RUNS >= MANY:
            told = f"{kills} kills of masters in {RUNS} runs, {brought} results brought"
            print(f"\n{mode}: {told}", file=sys.stderr)
    assert kills > 2 * RUNS  # 10,000 over all modes of `make faults`
    assert brought > (0 if mode == TEAMS else RUNS // 8)
