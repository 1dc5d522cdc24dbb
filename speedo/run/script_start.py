"""The start of a run that trains a script: its worker 0 brings the model, and the training is built from that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from speedo.errors import ClusterError, MissingKeyError, PayloadError, SpeedoError, TrainingStopped
from speedo.exchange.transfer import take_history
from speedo.exchange.vector import Layout, Vector
from speedo.master.cluster import Cluster
from speedo.master.leases import Leases
from speedo.master.reasons import too_few_joined
from speedo.master.script_tests import ScriptTests
from speedo.master.servers.server_requests import Servers
from speedo.run.build import build_training
from speedo.run.config.run_config import RunConfig
from speedo.run.host_memory import too_little_memory
from speedo.run.run_parts import RunParts
from speedo.run.script_job import FirstModel, ScriptJob
from speedo.run.script_resume import FormerRun, give_states_back, state_of
from speedo.run.script_weights import first_arrays, weights_of
from speedo.run.takeover import Takeover
from speedo.run.trained_model import ScriptModel
from speedo.run.training import Training
from speedo.run_dir.checkpoint_file import Checkpoint
from speedo.storage.base import Store
from speedo.storage.shared_memory.folder import room_for


class ScriptStart:
    """Builds the training once; workers that come before the model wait. May be called from several threads."""

    def __init__(
        self,
        config: RunConfig,
        parts: RunParts,
        cluster: Cluster,
        leases: Leases,
        tests: ScriptTests,
        former: FormerRun | None = None,
        open_store: Callable[[], Store] | None = None,
        servers: Servers | None = None,
        built: Callable[[Training], None] = lambda _: None,
        taken_over: Takeover | None = None,
    ) -> None:
        """`former` is the run to continue, `open_store` as of `build_training`; `built` is notified of the training.

        With `servers`, which it then has start, workers wait for them, too.

        Raises `ConfigError` for `--weights` that cannot be read, `StoreError`.
        """
        self._config, self._parts, self._cluster, self._leases = config, parts, cluster, leases
        self._former, self._open_store = former, open_store
        self._servers, self._built, self._served = servers, built, servers is None
        self._resume: Checkpoint | None = None
        self._taken_over = taken_over
        if former is not None:
            self._resume = former.for_workers(config.workers)
            give_states_back(self._resume, parts.store, parts.settings.keyspace)
        self._arrays = first_arrays(config.weights)
        self._tests = tests
        self._training: Training | None = None
        self._builds = False
        self._waiting: dict[int, Callable[[], None]] = {}
        self._stopped = ""
        self._exchange: tuple[int, str] | None = None  # of the first that was checked
        self._changed = threading.Condition()

    def go_on(self) -> Training | None:
        """The training of a run that was taken over; None if it has to begin anew, with the model of its worker 0."""
        if self._taken_over is not None and self._former is not None:
            self._training = self._build(self._former.model)
        return self._training

    def take(
        self, worker: int, model: FirstModel | None, later: Callable[[], None]
    ) -> Training | None:
        """The training, for a worker that joins. While there is none: None, and `later` is called once there is.

        Raises `ClusterError` if the weights of worker 0 are not in the store, or its model is not the one that the run
        is to continue with, `ConfigError` for other weights than the model's, `StoreError`.
        """
        with self._changed:
            idle = self._training is None and not self._builds and not self._stopped
            builds = idle and worker == 0 and model is not None
            self._builds = self._builds or builds
        if builds:
            assert model is not None
            try:  # it may wait for the store: others that join meanwhile do not
                training = self._build(model)
                with self._changed:
                    self._training = training
            finally:
                with self._changed:
                    self._builds = False
                    self._changed.notify_all()
        with self._changed:
            if self._training is None or not self._served:
                self._waiting[worker] = later
                return None
        self._let_join()
        return self._training

    def _let_join(self) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, {}
        for join in waiting.values():
            join()

    def check(self, worker: int, model: FirstModel, layout: Layout, *, gradients: bool) -> None:
        """Whether it can train with the others: raises `ClusterError` if its model or its exchange is another."""
        if differences := model.differences(layout):
            raise ClusterError(
                f"worker {worker}: the model's parameters differ in names or shapes from worker 0's: "
                f"{'; '.join(differences)}; let the script build the same model in every worker"
            )
        exchange = "gradients" if gradients else "deltas"
        with self._changed:
            self._exchange = self._exchange or (worker, exchange)
        first, others = self._exchange
        if exchange != others:
            raise ClusterError(
                f"worker {worker} exchanges {exchange}, worker {first} {others}: give speedo.join the same exchange= "
                "in every worker"
            )

    def forget(self, worker: int) -> None:
        """A worker is gone; if it waits for the model, no more."""
        with self._changed:
            self._waiting.pop(worker, None)

    def stop(self, reason: str) -> None:
        """End the wait for the model."""
        with self._changed:
            self._stopped = self._stopped or reason
            self._changed.notify_all()

    def wait(self) -> Training:
        """The training, once the model is there, and the servers of its center.

        Raises `TrainingStopped` if no model comes within the timeout, `ClusterError` if not all servers do.
        """
        limit_s, workers = self._config.timeout, self._config.workers
        with self._changed:
            self._changed.wait_for(lambda: self._training or self._stopped, limit_s)
            # It is bounded by the store's patience
            self._changed.wait_for(lambda: not self._builds)
            if self._training is None:
                few = too_few_joined(len(self._waiting), workers, limit_s)
                self._stopped = self._stopped or few
        try:
            if self._training is None:
                raise TrainingStopped(f"nothing was trained: {self._stopped}")
            if self._servers is not None:
                self._servers.ready()
        except SpeedoError:
            self._parts.end()
            raise
        self._served = True
        self._let_join()
        return self._training

    def _build(self, model: FirstModel) -> Training:
        job = self._parts.settings.spec
        assert isinstance(job, ScriptJob)
        resume = self._resume
        if self._former is not None:
            self._former.check(model)
            model = self._former.model  # also its batch: it is what iterations are counted by
        first = self._first_weights(model) if resume is None else resume.center
        settings = replace(self._parts.settings, spec=replace(job, batch=model.batch))
        trained = ScriptModel(
            model.layout, first, None if resume is None else replace(resume, histories={})
        )
        self._require_room(room_for(settings.workers, model.layout.nbytes))
        training = build_training(
            self._config,
            replace(self._parts, settings=settings),
            trained,
            self._cluster,
            open_store=self._open_store,
            servers=self._servers,
            leases=self._leases,
            tests=self._tests,
            script_state=state_of(model, self._leases.state),
            taken_over=self._taken_over,
        )
        self._built(training)
        return training

    def _require_room(self, needed: int) -> None:
        problem = too_little_memory(self._parts.settings, needed)
        if problem and not self._parts.settings.redis_url:
            raise ClusterError(f"{problem}: make room there, or install redis-server")
        if problem:
            self._parts.board.notice(f"{problem}: vectors that find no room go through Redis")

    def _first_weights(self, model: FirstModel) -> Vector:
        if self._arrays is not None:
            return weights_of(self._arrays, model.layout, self._config.weights)
        try:
            values = take_history(self._parts.store, self._parts.settings.keyspace, 0, 0)
        except (MissingKeyError, PayloadError) as error:
            raise ClusterError(f"the first weights of worker 0 did not arrive: {error}") from None
        if len(values) != model.layout.nbytes:
            raise ClusterError(
                f"the first weights of worker 0 have {len(values)} bytes, but its parameters {model.layout.nbytes}: "
                "run the same SpeeDO on every node"
            )
        return np.frombuffer(values, np.float32).copy()
