"""The tester actor: scores the version it is told, beside the training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from speedo.engines.native_failures import capture_stderr
from speedo.failpoints import reached
from speedo.run.settings import RunSettings


class TesterActor:
    """Holds the test nets of a run."""

    def __init__(self, settings: RunSettings, log: Path, scratch: Path) -> None:
        capture_stderr(log)
        self._settings, self._scratch = settings, scratch

    def start(self) -> int:
        """Build the nets; returns the process id."""
        reached("tester-starting")
        from speedo.engines.pycaffe import PycaffeEngine
        from speedo.solver import Draws, solver_for_tester

        spec = self._settings.spec
        text = solver_for_tester(
            spec, seed=self._settings.seed, scratch=self._scratch, draws=Draws.NONE
        )
        self._engine = PycaffeEngine(
            text,
            lr_policy=spec.lr_policy,
            folder=spec.folder,
            python_layers=spec.python_layers,
            scratch=self._scratch,
        )
        self._vector = self._engine.layout.zeros()
        return os.getpid()

    def connect(self, redis_url: str) -> None:
        """Centers are read from there; before the first `evaluate`."""
        from speedo.run.open_store import run_store

        self._store = run_store(redis_url, self._settings)

    def evaluate(self, version: int) -> Mapping[str, float]:
        """The metrics of one version of the center."""
        from speedo.storage import keys
        from speedo.vectors.transfer import fetch_vector
        from speedo.vectors.vector import Kind

        key = keys.center(self._settings.keyspace, version)
        fetch_vector(self._store, key, self._engine.layout, Kind.CENTER, self._vector)
        self._engine.load_weights(self._vector)
        return dict(self._engine.evaluate())
