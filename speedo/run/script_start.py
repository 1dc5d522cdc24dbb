"""The start of a run that trains a script: its worker 0 brings the model, and the training is built from that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from speedo.config.run_config import RunConfig
from speedo.errors import ClusterError, MissingKeyError, PayloadError, TrainingStopped
from speedo.master.driver import Cluster
from speedo.master.leases import Leases
from speedo.master.reasons import too_few_joined
from speedo.master.script_tests import ScriptTests
from speedo.run.build import build_training
from speedo.run.run_parts import RunParts
from speedo.run.script_job import FirstModel, ScriptJob
from speedo.run.trained_model import ScriptModel
from speedo.run.training import Training
from speedo.vectors.transfer import take_history
from speedo.vectors.vector import Vector


class ScriptStart:
    """Builds the training once; workers that come before the model wait. May be called from several threads."""

    def __init__(
        self,
        config: RunConfig,
        parts: RunParts,
        cluster: Cluster,
        leases: Leases,
        tests: ScriptTests,
    ) -> None:
        self._config, self._parts, self._cluster, self._leases = config, parts, cluster, leases
        self._tests = tests
        self._training: Training | None = None
        self._waiting: dict[int, Callable[[], None]] = {}
        self._stopped = ""
        self._changed = threading.Condition()

    def take(
        self, worker: int, model: FirstModel | None, later: Callable[[], None]
    ) -> Training | None:
        """The training, for a worker that joins. While there is none: None, and `later` is called once there is.

        Raises `ClusterError` if the weights of worker 0 are not in the store, `StoreError`.
        """
        with self._changed:
            if self._training is None:
                if worker != 0 or model is None or self._stopped:
                    self._waiting[worker] = later
                    return None
                self._training = self._build(model)
                self._changed.notify_all()
            waiting, self._waiting = self._waiting, {}
        for join in waiting.values():
            join()
        return self._training

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
        """The training, once the model is there; raises `TrainingStopped` if none comes within the timeout."""
        limit_s, workers = self._config.timeout, self._config.workers
        with self._changed:
            self._changed.wait_for(lambda: self._training or self._stopped, limit_s)
            if self._training is not None:
                return self._training
            self._stopped = self._stopped or too_few_joined(len(self._waiting), workers, limit_s)
        self._parts.end()
        raise TrainingStopped(f"nothing was trained: {self._stopped}")

    def _build(self, model: FirstModel) -> Training:
        job = self._parts.settings.spec
        assert isinstance(job, ScriptJob)
        settings = replace(self._parts.settings, spec=replace(job, batch=model.batch))
        parts = replace(self._parts, settings=settings)
        trained = ScriptModel(model.layout, self._first_weights(model))
        return build_training(
            self._config, parts, trained, self._cluster, leases=self._leases, tests=self._tests
        )

    def _first_weights(self, model: FirstModel) -> Vector:
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
