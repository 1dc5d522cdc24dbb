"""What a run trains and exports: a net with its solver in an engine, or the parameters of a script."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

import numpy as np

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.base import ModelEngine
from speedo.engines.chance import loss_of_guessing
from speedo.engines.make import make_engine, prepare_process
from speedo.engines.solver import solver_for_server
from speedo.engines.solver_update import Recipe, SolverHistory, SolverUpdate, multipliers
from speedo.engines.update_rules import SolverFields
from speedo.errors import CheckpointError, PayloadError
from speedo.exchange.npz import write_arrays
from speedo.exchange.vector import Layout, Vector, as_bytes
from speedo.master.center import RunCenter
from speedo.master.divergence import check_update
from speedo.messages import NO_TUNING, Tuning
from speedo.run.best_model import BestFile
from speedo.run.caffe_snapshot import CaffeSnapshot
from speedo.run.config.run_config import RunConfig
from speedo.run.remote_inputs import located_weights
from speedo.run.settings import RunSettings
from speedo.run.snapshot_files import SnapshotFiles
from speedo.run.takeover import Takeover
from speedo.run_dir.checkpoint_file import Checkpoint
from speedo.run_dir.directory import MODEL, SCRIPT_MODEL
from speedo.sgd_modes.registry import Update

_UPDATES: Final = Struct("<Q")  # made, before the vectors of the history


class TrainedModel(ABC):
    """The model of a run: its first weights, its file at the end, and what the master can do with its solver.

    `resume` is the checkpoint that the run continues from. Without a solver in the master there is no `update` of the
    center by a gradient.
    """

    file: ClassVar[str]  # its name in the run directory
    layout: Layout
    first: Vector
    resume: Checkpoint | None = None
    update: Update | None = None

    @abstractmethod
    def export(self, center: Vector, path: Path) -> None:
        """Write this center, whole or not at all."""

    def recipe(self) -> Recipe | None:
        """What servers make the solver's update of their ranges from."""
        return None

    def history(self) -> bytes:
        """The history of the solver whose update makes the center."""
        return b""

    def history_parts(self) -> tuple[bytes | memoryview, ...]:
        """The same in its own form, without a copy: good until the next update."""
        return ()

    def chance(self) -> float | None:
        """The loss of guessing, if it is known."""
        return None

    def snapshots(
        self,
        run_dir: Path,
        center: RunCenter,
        fence: Callable[[], None],
        server_history: Callable[[], bytes],
    ) -> SnapshotFiles | None:
        """What writes snapshots of the center; None if the model has none."""
        return None

    def best(
        self,
        run_dir: Path,
        center: RunCenter,
        fence: Callable[[], None],
        note: Callable[[str], None],
    ) -> BestFile | None:
        """What keeps the best of the tested versions; None if no version is tested."""
        return None

    def second_name(self, iteration: int) -> str:
        """The name of the last snapshot, if it has the form of the model; empty for none."""
        return ""

    def close(self) -> None:  # noqa: B027
        """Let go of the engine."""


@dataclass
class ScriptModel(TrainedModel):
    """The parameters of a user's script; they are exported as arrays by their names."""

    layout: Layout
    first: Vector
    resume: Checkpoint | None = None
    file = SCRIPT_MODEL

    def export(self, center: Vector, path: Path) -> None:
        """Write numpy's `.npz`."""
        write_arrays(path, self.layout, center)


class CaffeModel(TrainedModel):
    """A net with its solver; the engine writes it as `.caffemodel`."""

    file = MODEL

    def __init__(
        self,
        config: RunConfig,
        settings: RunSettings,
        resume: Checkpoint | CaffeSnapshot | Takeover | None = None,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is the folder for the engine's small files; without it the temporary folder.

        Raises `CheckpointError` if `resume` is not of this net.
        """
        self._spec = spec = settings.solver
        prepare_process(settings.engine)
        self._engine = engine = make_engine(
            settings.engine.on_cpu(),
            solver_for_server(spec, seed=settings.seed, scratch=scratch),
            lr_policy=spec.lr_policy,
            folder=spec.folder,
            python_layers=spec.python_layers,
            scratch=scratch,
        )
        if isinstance(resume, CaffeSnapshot):
            resume = resume.as_checkpoint(engine, settings, config.mode)
        elif isinstance(resume, Takeover):
            resume = resume.as_checkpoint(engine, settings, self._history_of)
        self.layout, self.resume = engine.layout, resume
        self.update, self._tuning = self._update, NO_TUNING
        self.first = self._first_center(config) if resume is None else self._resumed(resume)

    def _first_center(self, config: RunConfig) -> Vector:
        """The initial weights: the solver's own, or those of `--weights`."""
        return first_weights(self._engine, located_weights(config.weights))

    def _resumed(self, checkpoint: Checkpoint) -> Vector:
        wrong_shape = checkpoint.center.shape != (self.layout.size,)
        if checkpoint.counters.layout != self.layout.digest or wrong_shape:
            raise CheckpointError(
                "the checkpoint is of another net: its parameter blobs differ from those of "
                f"{self._spec.path}; resume with the net that the run was begun with"
            )
        if checkpoint.master_history:  # checked here, also where servers continue with it
            history = self._recipe.read_history(checkpoint.master_history)
            self._solver.restore(list(history.flat.reshape(-1, self.layout.size)), history.updates)
        return checkpoint.center

    def export(self, center: Vector, path: Path) -> None:
        """Write the `.caffemodel`."""
        self._engine.load_weights(center)
        self._engine.save(path)

    def _update(
        self, gradient: Vector, center: Vector, iteration: int, own: Tuning = NO_TUNING
    ) -> None:
        """The solver's own update of the center by a raw gradient: in the arithmetic of servers."""
        if own != self._tuning:
            self._tuning = own
            self._solver.adjust(own.lr, own.momentum, own.weight_decay)
        updated = center.copy()
        self._solver.update(updated, gradient, iteration)
        check_update(updated, iteration)
        np.copyto(center, updated)

    @cached_property
    def _solver(self) -> SolverUpdate:
        return self._recipe.update_of()

    @cached_property
    def _recipe(self) -> Recipe:
        parameter = parse_text(self._spec.text, caffe_schema().SolverParameter())
        layout = self._engine.layout
        own = multipliers(parameter.train_net_param, layout)
        return Recipe(SolverFields.from_solver(parameter), layout, own, self._spec.lr_policy)

    def recipe(self) -> Recipe:
        return self._recipe

    def history(self) -> bytes:
        return self._recipe.write_history(SolverHistory(self._solver.flat, self._solver.updates))

    def history_parts(self) -> tuple[bytes | memoryview, ...]:
        return _UPDATES.pack(self._solver.updates), as_bytes(self._solver.flat)

    def _history_of(self, parts: bytes) -> bytes:
        """What `history` would be where `history_parts`, end to end, are these. Raises `PayloadError`."""
        if len(parts) != _UPDATES.size + self._recipe.vectors * self._engine.layout.nbytes:
            raise PayloadError("the solver's history in the store is not of this net")
        (updates,) = _UPDATES.unpack_from(parts)
        flat = np.frombuffer(parts, np.float32, offset=_UPDATES.size)
        return self._recipe.write_history(SolverHistory(flat, updates))

    def chance(self) -> float | None:
        parameter = parse_text(self._spec.text, caffe_schema().SolverParameter())
        return loss_of_guessing(parameter.train_net_param, self._engine.shapes())

    def snapshots(
        self,
        run_dir: Path,
        center: RunCenter,
        fence: Callable[[], None],
        server_history: Callable[[], bytes],
    ) -> SnapshotFiles:
        return SnapshotFiles(run_dir, self._spec, self._engine, center, fence, server_history)

    def best(
        self,
        run_dir: Path,
        center: RunCenter,
        fence: Callable[[], None],
        note: Callable[[str], None],
    ) -> BestFile | None:
        if not self._spec.has_test:
            return None
        return BestFile(run_dir, self._engine, center, fence, note)

    def second_name(self, iteration: int) -> str:
        named = self._spec.last_snapshot(iteration)
        whole = named is None or self._spec.snapshot_hdf5
        return "" if named is None or whole else self._spec.snapshot_name(named)

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.close()


def first_weights(engine: ModelEngine, files: Sequence[Path]) -> Vector:
    """The engine's weights once these files have brought the layers that they have, the last one's counting."""
    for file in files:
        engine.copy_from(file)
    vector = engine.layout.zeros()
    engine.read_weights(vector)
    return vector
