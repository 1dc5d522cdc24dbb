"""Keeps the best tested weights of a run in `best.caffemodel`, and beside it what they scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caffenets.files import read_bytes
from speedo.engines.base import ModelEngine
from speedo.errors import EngineError
from speedo.exchange.vector import Vector
from speedo.master.center import RunCenter
from speedo.messages import KeepBest
from speedo.run_dir.directory import BEST, BEST_MODEL, write_whole
from speedo.sgd_modes.conditions import Watched
from speedo.system.disk_calls import on_disk


@dataclass
class BestFile:
    """Implements `speedo.master.stopping.BestModel`, with a copy of the center for each test under way.

    `kept` has `output`, `value`, `iteration` and `version` of the file; empty if there is none. A run that is resumed
    finds those of before, which may be of a later iteration than its checkpoint.
    """

    run_dir: Path
    engine: ModelEngine
    center: RunCenter
    fence: Callable[[], None]
    note: Callable[[str], None]
    kept: Mapping[str, Any] = field(default_factory=dict)
    _copies: dict[int, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept = _read(self.run_dir)

    @property
    def result(self) -> Mapping[str, Any] | None:
        """The line of `result.json`; None without a file."""
        return {**self.kept, "model": str(self.run_dir / BEST_MODEL)} if self.kept else None

    def begin(self, version: int) -> None:
        self._copies[version] = self.center.vector.copy()

    def keep(self, action: KeepBest) -> KeepBest:
        """See `BestModel.keep`; a file of the same output that is as good stays."""
        weights = self._copies.get(action.version)
        if weights is None or not self._is_better(action):
            return action
        self.fence()
        values = {
            name: getattr(action, name) for name in ("output", "value", "iteration", "version")
        }
        try:
            self.engine.load_weights(weights)
            with on_disk(self.run_dir / BEST_MODEL):
                self.engine.save(self.run_dir / BEST_MODEL)
                write_whole(self.run_dir / BEST, json.dumps(values) + "\n")
        except (EngineError, OSError) as error:
            problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self.note(
                f"warning: the best model, of iteration {action.iteration}, is not kept: {problem}"
            )
            return replace(action, problem=problem)
        self.kept = values
        return action

    def forget(self, version: int) -> None:
        self._copies.pop(version, None)

    def _is_better(self, action: KeepBest) -> bool:
        if self.kept.get("output") != action.output:
            return True
        return Watched(action.output, action.higher).is_better(action.value, self.kept["value"])


def _read(run_dir: Path) -> dict[str, Any]:
    """What is kept there; nothing if the file is missing or damaged."""
    if not (run_dir / BEST_MODEL).is_file():
        return {}
    try:
        values = json.loads(read_bytes(run_dir / BEST))
        return {
            "output": str(values["output"]),
            "value": float(values["value"]),
            "iteration": int(values["iteration"]),
            "version": int(values["version"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
