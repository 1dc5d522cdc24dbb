"""A run with everything real but Ray: the workers' turns happen in this process, one after the other."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caffenets.host_program import caffe_schema
from speedo.engines.base import ModelEngine
from speedo.engines.make import make_engine, prepare_to_read
from speedo.engines.solver import SolverOverrides, read_solver, solver_for_tester, solver_for_worker
from speedo.engines.solver.data_layers import count_records
from speedo.exchange.ranges import ranges_of
from speedo.exchange.served_vectors import Exchange, Stores
from speedo.exchange.transfer import put_history
from speedo.exchange.vector import Vector
from speedo.master.center import RunCenter
from speedo.master.cluster import Cluster
from speedo.master.servers.local_servers import LocalServers
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.served_center import ServedCenter
from speedo.messages import (
    Command,
    Evaluate,
    Event,
    Joined,
    SaveState,
    StateSaved,
    Tested,
    Train,
)
from speedo.run.build import build_training
from speedo.run.caffe_snapshot import read_snapshot
from speedo.run.config.run_config import RunConfig, make_config
from speedo.run.prepare import run_settings
from speedo.run.result import RunResult
from speedo.run.run_parts import run_parts
from speedo.run.settings import RunSettings
from speedo.run.trained_model import CaffeModel
from speedo.run_dir.checkpoint_file import Checkpoint
from speedo.run_dir.directory import create_run_dir
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.study.simulation.simulated_team import Memories, train_together
from speedo.worker.turn import EngineWorker

NO_OVERRIDES = SolverOverrides()


class ServersHere(LocalServers):
    """Servers of this process, made once the net is known; each has a store of its own."""

    def __init__(self, count: int) -> None:
        super().__init__(())
        self.count = count
        self.places: list[Stores] = []

    def use(self, center: RunCenter) -> None:
        assert isinstance(center, ServedCenter)
        for one in ranges_of(center.layout, self.count):
            store, solver = MemoryStore(), center.solver
            update = None if solver is None else partial(solver.update_of, one.place)
            self.servers.append(
                RangeServer(center.run, one.layout, store, clock=time.monotonic, solver=update)
            )
            self.places.append(Stores(store))


class LocalCluster(Cluster):
    """Carries commands out at once and in order; events wait until they are asked for."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.workers: dict[int, EngineWorker] = {}
        self.commands: dict[int, Train] = {}  # of a team, until all are there
        self.memories: Memories = {}
        self.evicted: list[tuple[int, str]] = []
        self.shares: dict[int, tuple[int, int, int]] = {}  # rank, count, records of a batch
        self.tester: tuple[ModelEngine, Exchange] | None = None

    def send(self, command: Command) -> None:
        if isinstance(command, SaveState):
            self.events.append(self.saved(command))
        elif isinstance(command, Train) and command.team is not None:
            self.commands[command.worker] = command
            if len(self.commands) == len(command.team.members):
                answers = train_together(
                    command.team, self.workers, self.commands, {}, memories=self.memories
                )
                self.events.extend(answers.values())
                self.commands = {}
        elif isinstance(command, Train):
            self.events.append(self.workers[command.worker].turn(command))
        else:
            self.events.append(Tested(command.version, self.evaluate(command)))

    def saved(self, command: SaveState) -> StateSaved:
        """Its history, as `WorkerActor.save_state` lays it into the store."""
        one, version = self.workers[command.worker], command.version
        put_history(one.store, one.run, one.worker, version, one.engine.history())
        rank, count, size = self.shares[command.worker]
        batches = one.samples // size
        return StateSaved(one.worker, one.incarnation, version, batches, rank, count, size)

    def evaluate(self, command: Evaluate) -> Mapping[str, float]:
        assert self.tester is not None
        engine, exchange = self.tester
        vector = engine.layout.zeros()
        exchange.fetch_center(command.version, vector)
        engine.load_weights(vector)
        return engine.evaluate()

    def next_event(self, timeout_s: float) -> Event | None:
        return self.events.popleft() if self.events else None

    def waiting(self, most: int) -> list[Event]:
        return []

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        self.evicted.append((worker, reason))


def train_here(
    solver: Path,
    store: Store,
    run_dir: Path,
    *,
    data_root: Path | None = None,
    notices: list[str] | None = None,
    overrides: SolverOverrides = NO_OVERRIDES,
    **options: Any,
) -> tuple[RunResult, Vector, Vector]:
    """The result, and the center before and after training. Checkpoints are written if the run is `checkpointed`.

    `checkpoint` is one to go on from; `notices` takes the run's lines for people.
    """
    former, checkpointed = options.pop("checkpoint", None), options.pop("checkpointed", False)
    config = make_config(options)
    spec = read_solver(solver, overrides=overrides, data_root=data_root)
    settings = run_settings(config, spec, "here")
    return train_as(
        config, settings, store, run_dir, notices=notices, former=former, checkpointed=checkpointed,
        records=count_records(spec),
    )  # fmt: skip


def train_as(
    config: RunConfig,
    settings: RunSettings,
    store: Store,
    run_dir: Path,
    *,
    notices: list[str] | None = None,
    former: Checkpoint | None = None,
    checkpointed: bool = False,
    records: int | None = None,
) -> tuple[RunResult, Vector, Vector]:
    """The same of a run that is prepared, on the engine of its settings."""
    spec = settings.solver
    cluster = LocalCluster()
    servers = ServersHere(int(config.servers)) if config.serves else None
    resume = read_snapshot(config.resume) if config.resume is not None else former
    model = CaffeModel(config, settings, resume)
    parts = run_parts(config, settings, create_run_dir(run_dir), store, records, model.resume)
    training = build_training(
        config,
        parts,
        model,
        cluster,
        open_store=(lambda: store) if checkpointed else None,
        servers=servers,
    )
    if servers is not None:
        servers.use(training.center)
    for _ in range(config.workers):
        place = parts.roster.assign()
        text = solver_for_worker(
            spec, rank=place.rank, count=config.workers, batch_size=place.batch_size
        )
        rank, count = place.shard.reads
        engine = make_engine(
            settings.engine,
            text,
            lr_policy=spec.lr_policy,
            rank=rank,
            count=count,
            folder=spec.folder,
            python_layers=spec.python_layers,
        )
        engine.advance(place.skip)
        if place.history is not None:
            engine.load_history(training.histories[place.worker])
        cluster.workers[place.worker] = EngineWorker(
            settings.keyspace, place.worker, place.incarnation, engine, store, time.monotonic,
            compression=settings.compression, servers=servers.places if servers else (),
        )  # fmt: skip
        cluster.shares[place.worker] = (place.rank, config.workers, place.batch_size)
        meets = "here" if settings.teams else ""
        joined = Joined(place.worker, place.incarnation, engine.samples_per_step, meets=meets)
        cluster.events.append(joined)
    if spec.has_test:
        tester = make_engine(
            settings.engine, solver_for_tester(spec), lr_policy=spec.lr_policy, folder=spec.folder
        )
        places = servers.places if servers else [Stores(store)]
        exchange = Exchange(settings.keyspace, tester.layout, places, threads=False)
        cluster.tester = (tester, exchange)
    before = training.center.vector.copy()
    result = training.run()
    after = training.center.vector.copy()
    if notices is not None:
        notices.extend(training.status().notices)
    for worker in cluster.workers.values():
        worker.engine.close()
    training.close()
    prepare_to_read("caffe")  # as it was before a run with the other engine
    return result, before, after


def model_made_here(
    solver: Path, folder: Path, *, max_iter: int, seed: int, **options: Any
) -> bytes:
    """The `.caffemodel` of a run in this process, for comparison with that of a run on Ray."""
    # Of a former problem: a layer must come from this solver's folder
    sys.modules.pop("saboteur", None)
    overrides = SolverOverrides(max_iter=max_iter, seed=seed, test_interval=None)
    result, _, _ = train_here(solver, MemoryStore(), folder, overrides=overrides, **options)
    assert result.complete, result.reason
    return Path(result.model).read_bytes()


def weights_in(model: bytes) -> np.ndarray:
    """All numbers of a `.caffemodel`."""
    net = caffe_schema().NetParameter.FromString(model)
    return np.concatenate([blob.data for layer in net.layer for blob in layer.blobs]).astype(float)
