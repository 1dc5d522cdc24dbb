"""Machines that are cut off, stopped or die, each of which may have the run: never two whose merges are both published.

The lease, the fence, the journal and what a master takes over are the product's; Redis, network and time are simulated.
What is checked is what was stored in Redis, in its order.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import FencedError, StoreError
from speedo.exchange.channel import refusal
from speedo.exchange.vector import Layout, Vector
from speedo.master import center as center_module
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver, Limits
from speedo.master.journal import Journal, JournalEntry, JournalInStore, entry_of
from speedo.master.observers import Observers
from speedo.master.plan import Plan
from speedo.master.turn_records import TurnRecords
from speedo.messages import Event, Merge, Records, Refused, Train, Trained
from speedo.run.build import TICKETS_OF_AN_EPOCH
from speedo.run.config.run_config import make_config
from speedo.run.settings import RunSettings
from speedo.run.takeover import Takeover
from speedo.run_dir.checkpoint_file import Counters
from speedo.sgd_modes.registry import make_strategy
from speedo.storage.conditional import Guard
from speedo.storage.lease import CALL_S, LEASE_S, RENEW_S, MasterFence, MasterLease
from speedo.storage.retrying_store import RetryingStore
from speedo.worker.turn import EngineWorker
from tests.support.conditional_memory import ConditionalMemory
from tests.support.machines import Blobs, Clockwork, KilledError, Link, Machine, Process
from tests.support.quick import tried
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

RUN: Final = "line"
SIZE, BATCH, RECORDS = 6, 4, 37
RUNS = int(os.environ.get("SPEEDO_PARTITIONS", tried(30)))  # `make faults` has 2,000
MANY = 1000
MODES = ("sync", "async", "easgd", "partial", "weed-out")
HEALS_S, LIMIT_S = 120.0, 900.0
PATIENCE_S, TIMEOUT_S = 15.0, 3.0


class Hosts(SimulatedCluster):
    """The workers of one master, which has this epoch."""

    def __init__(self, epoch: int, records: dict[int, Records], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.epoch, self.records = epoch, records

    def _join(self, worker: int) -> Event | None:
        joined = super()._join(worker)
        self._workers[worker].epoch = self.epoch
        return joined

    def outcome(self, worker: EngineWorker, command: Train) -> Trained | Refused:
        try:
            result = super().outcome(worker, command)
        except StoreError as error:
            return refusal(command, error)
        if isinstance(result, Trained):
            self.records[command.ticket] = result.records
        return result


class Published:
    """What can be seen of the run in Redis: each version that was stored, with the journal's entry for it."""

    def __init__(self, first: Vector, adds: bool) -> None:
        self.first, self.adds = first.copy(), adds
        self.epoch, self.version, self.center = -1, 0, first.copy()
        self.merges: list[Merge] = []
        self.takeovers = 0
        self.payloads: dict[tuple[int, int], Vector] = {}  # by epoch and version, with the rate

    def stored(self, entry: bytes, blobs: Blobs) -> None:
        """A master has published a version."""
        said = entry_of(entry)
        assert said is not None
        ((_, body, _),) = blobs.values()
        center = np.frombuffer(body, np.float32)
        epoch, version = said.counters.epoch, said.counters.version
        assert epoch >= self.epoch, "one that was replaced has published"
        self.takeovers += epoch != self.epoch >= 0
        new = [merge for merge in said.merges if merge.version > self.version]
        assert [merge.version for merge in new] == list(range(self.version + 1, version + 1))
        if epoch != self.epoch:
            assert not new, "it has not begun with the newest version"
        if not new:
            assert version == self.version
            np.testing.assert_array_equal(center, self.center)
        elif self.adds:
            expected = self.center + sum(self.payloads[epoch, merge.version] for merge in new)
            np.testing.assert_allclose(center, expected, rtol=1e-5, atol=1e-6)
        assert np.isfinite(center).all()
        self._require_counted(said, new)
        self.epoch, self.version, self.center = epoch, version, center.copy()

    def _require_counted(self, said: JournalEntry, new: list[Merge]) -> None:
        self.merges += new
        samples = sum(part.samples for merge in self.merges for part in merge.parts)
        assert said.counters.samples == samples
        if new:
            assert (new[-1].samples_seen, new[-1].iteration) == (samples, samples // BATCH)

    def check(self, records: dict[int, Records] | None) -> None:
        parts = [part for merge in self.merges for part in merge.parts]
        assert len({part.ticket for part in parts}) == len(parts), "merged twice"
        if records is None:
            return
        trained = [
            RECORDS * epoch + at
            for part in parts
            for epoch, start, stop in records[part.ticket]
            for at in range(start, stop)
        ]
        assert sorted(trained) == list(range(len(trained))), "not each record once an epoch"


class Run:
    """A run of this mode, drawn from a seed; `counts` says what has happened in it."""

    def __init__(self, mode: str, seed: int, folder: Path) -> None:
        self.chance = chance = random.Random(f"partition {mode} {seed}")
        self.mode, self.seed, self.folder = mode, seed, folder
        self.works = Clockwork(chance, HEALS_S, LIMIT_S)
        self.server = ConditionalMemory(clock=lambda: self.works.time)
        self.workers = chance.randint(1, 3)
        self.once = chance.random() < 0.5
        options = {"mode": mode, "workers": self.workers, "local_steps": chance.choice((1, 1, 3))}
        self.config = make_config(options)
        self.plan = Plan(BATCH, chance.randint(40, 120), self.workers, once=self.once)
        self.world = World(
            step_s=chance.choice((0.3, 1.0)),
            latency_s=chance.choice((0.0, 0.05)),
            jitter=chance.choice((0.0, 0.5)),
            slowness=lambda worker: (1.0, 3.0, 0.5)[worker % 3],
        )
        engine = self.engine(0)
        self.layout: Layout = engine.layout
        first = self.layout.zeros()
        engine.read_weights(first)
        self.published = Published(first, adds=mode == "async")
        self.records: dict[int, Records] = {}
        self.machines = [self._machine(name) for name in "ABC"[: chance.randint(2, 3)]]
        self.is_over = False  # as somebody has read it
        self.patience_s, self.limits = PATIENCE_S, Limits()
        self.fence_s = CALL_S

    def link(
        self, process: Process, timeout_s: float, guard: Guard | None = None, **options: Any
    ) -> Link:
        """A connection of this process to Redis."""
        return Link(self.server, process, timeout_s, guard, **options)

    def store_of_workers(self, master: MasterProcess) -> Any:
        """Of all workers of this master."""
        return self.server

    @property
    def counts(self) -> Counter[str]:
        return self.works.counts

    def engine(self, rank: int) -> QuadraticEngine:
        return QuadraticEngine(SIZE, seed=self.seed, rank=rank, batch=BATCH, lr=0.05, noise=0.01)

    def _machine(self, name: str) -> Machine:
        chance = self.chance
        machine = Machine(
            name,
            slow_often=chance.choice((0.0, 0.01, 0.05)),
            stops_often=chance.choice((0.0, 0.005, 0.02)),
            dies_often=chance.choice((0.0, 0.002, 0.01)),
        )
        time, gap_s = 0.0, chance.choice((10.0, 30.0, 1e9))
        while (time := time + chance.expovariate(1 / gap_s)) < HEALS_S:
            end = min(HEALS_S, time + chance.choice((0.5, 3.0, 7.0, 20.0, 60.0)))
            machine.outages.append(
                (time, end, *chance.choice(((True, False), (False, True), (True, True))))
            )
            self.counts["partitions"] += 1
            time = end
        return machine

    def __call__(self) -> None:
        for machine in self.machines:
            process = Process(self.works, machine, 0.0)
            self.works.start(process, partial(self._command, process))
        self.works.run()
        assert self.is_over
        samples = sum(part.samples for merge in self.published.merges for part in merge.parts)
        assert samples >= self.plan.samples
        self.published.check(self.records if self.once else None)
        self.counts["takeovers"] += self.published.takeovers

    # ------------------------------------------------------------ a command

    def _command(self, process: Process) -> None:
        """A machine's command: a standby that becomes the master's, and again a standby when it has lost the run."""
        while not self.is_over:
            token = f"{process.number}.{self.works.count()}"
            link = self.link(process, CALL_S)
            lease = MasterLease(link, RUN, process.machine.name, clock=process.clock, token=token)
            lease.has_standby = True
            try:
                if self._has_claimed(process, lease):
                    self._keep(process, lease)
            except (StoreError, FencedError):
                process.sleep(RENEW_S)
            except KilledError:  # the command, and for a while it is not started again
                process.sleep(self.chance.choice((0.5, 4.0, 30.0)))

    def _has_claimed(self, process: Process, lease: MasterLease) -> bool:
        """Follow the run until it can be taken over, or is over; the first machine begins it."""
        while True:
            holder = lease.holder()
            if holder.is_over:
                self.is_over = True
                return False
            if holder.epoch < 0 and process.machine is self.machines[0]:
                lease.claim()
                return True
            if holder.epoch >= 0 and holder.is_expired:
                lease.claim(holder.epoch)
                self.counts["claims"] += 1
                return True
            process.sleep(RENEW_S)

    def _keep(self, process: Process, lease: MasterLease) -> None:
        """Until the run is over, or another one's. Its master may go on for a while that nobody has told it."""
        master = self._start(process, lease)
        try:
            while True:
                process.sleep(RENEW_S)
                process.hazard()
                if master.has_ended and master.outcome == "complete":
                    lease.end()
                    self.is_over = True
                    return
                if master.has_ended:
                    assert lease.epoch is not None
                    lease.claim(lease.epoch, ours=True)
                    master = self._start(process, lease)
                    continue
                try:
                    lease.renew()
                except StoreError:
                    continue
        finally:
            if self.chance.random() < 0.5:
                master.is_killed = True

    def _start(self, process: Process, lease: MasterLease) -> MasterProcess:
        assert lease.epoch is not None
        master = MasterProcess(self, process, lease.epoch)
        master.fence.expect_standby(True)
        self.works.start(master, master.work)
        return master


class MasterProcess(Process):
    """A master; `outcome` says how it ended."""

    def __init__(self, run: Run, command: Process, epoch: int) -> None:
        super().__init__(run.works, command.machine, command.now)
        self.run, self.epoch = run, epoch
        self.outcome = "killed"
        link = run.link(self, run.fence_s)
        self.fence = MasterFence(
            link, RUN, epoch, patience_s=run.patience_s, clock=self.clock, sleep=self.sleep
        )

    def work(self) -> None:
        try:
            self.outcome = self._train()
        except FencedError:
            self.outcome = "fenced"
            self.run.counts["fenced masters"] += 1
        except StoreError:
            self.outcome = "cut off"

    def _train(self) -> str:
        run, epoch, fence = self.run, self.epoch, self.fence
        link = run.link(self, TIMEOUT_S, fence.guard, saw=run.published.stored)
        store = RetryingStore(
            link,
            patience_s=run.patience_s,
            clock=self.clock,
            sleep=self.sleep,
            has_worked=True,
        )
        spec: Any = None  # what is trained is made here
        settings = RunSettings(RUN, "1", spec, run.workers, (), run.seed, TIMEOUT_S)
        former = Takeover(store, run.folder, fence)
        begun = former.as_checkpoint(run.engine(0), settings)
        counters = None if begun is None else begun.counters
        vector = run.published.first.copy() if begun is None else begun.center
        self.cluster = cluster = Hosts(
            *(epoch, run.records, run.world, run.store_of_workers(self)),
            *(f"{RUN}:{epoch}", run.engine, run.seed),
        )
        cluster.now = self._now
        for worker in range(run.workers):
            cluster.join(worker, self._now)
        coordinator = self._coordinator(counters)
        cluster.version = lambda: coordinator.version
        center = Center(f"{RUN}:{epoch}", vector, run.layout, store, coordinator.version, epoch)
        book = TurnRecords.of_run(
            RECORDS,
            run.plan.samples,
            coordinator.samples,
            b"" if begun is None else begun.records,
            lambda text: None,
        )

        def counted() -> Counters:
            places = coordinator.version, coordinator.iteration, coordinator.samples
            said = coordinator.received, 0.0, run.layout.digest
            return Counters(RUN, epoch, run.mode, *places, *said)

        journal = Journal(
            JournalInStore(fence.guard),
            counted,
            records=book.state,
            merged=former.merged,
            incarnations=former.incarnations,
        )
        center.publishing = journal.publishing
        self._note_payloads(center)
        driver = Driver(
            *(coordinator, center, cluster),
            Observers(book) if run.once else Observers(),
            self.clock,
            run.limits,
            journal=journal,
            with_records=book.with_records if run.once else lambda action: action,
        )
        outcome = driver.run()
        fence.require()
        return "complete" if outcome.complete else "incomplete"

    def _coordinator(self, counters: Counters | None) -> Coordinator:
        run = self.run
        version, samples, received = (
            (0, 0, 0)
            if counters is None
            else (counters.version, counters.samples, counters.received)
        )
        return Coordinator(
            make_strategy(run.config, BATCH, samples=samples),
            run.plan,
            version=version,
            samples=samples,
            first_ticket=self.epoch * TICKETS_OF_AN_EPOCH + 1,
            received=received,
            started=counters is not None,
        )

    def _note_payloads(self, center: Center) -> None:
        """What each merge adds, for the one who checks it."""
        merge = center.merge

        def noted(action: Merge, before: int, *, more: bool = False) -> Merge:
            payloads = [center._payloads[part.worker, part.ticket].vector for part in action.parts]
            added: Any = np.float32(action.rate) * sum(payloads)
            self.run.published.payloads[self.epoch, action.version] = added
            return merge(action, before, more=more)

        center.merge = noted  # type: ignore[method-assign]


def test_of_machines_that_lose_each_other_one_has_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    totals: Counter[str] = Counter()
    for seed in range(RUNS):
        mode = MODES[seed % len(MODES)]
        run = Run(mode, seed, tmp_path)
        monkeypatch.setattr(center_module, "reached", lambda point: None)
        try:
            run()
        except Exception as error:
            error.add_note(f"mode {mode}, seed {seed}")
            raise
        totals += run.counts
    if RUNS >= MANY:
        with capsys.disabled():
            print(f"\n{RUNS} runs: {dict(sorted(totals.items()))}", file=sys.stderr)
    assert totals["takeovers"] > RUNS
    assert totals["fenced masters"] > RUNS // 4
    assert totals["partitions"] > RUNS
    assert totals["conflicts"] > 0


def test_the_lease_is_long_enough_for_its_tries() -> None:
    assert LEASE_S >= 3 * RENEW_S + 2 * CALL_S
