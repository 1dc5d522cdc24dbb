"""Starts from a Caffe snapshot: a `.solverstate` and the `.caffemodel` that it names.

As with Caffe's `--snapshot`, iteration, weights and solver history are restored, and the data starts at the first
record (Caffe: solver.cpp, Restore; solvers/sgd_solver.cpp, RestoreSolverStateFromBinaryProto).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from caffenets.files import problem_with_name
from caffenets.weight_files.solverstate import read_state
from caffenets.weight_files.stored import StoredState
from speedo.engines.base import ModelEngine
from speedo.engines.solverstate import state_of
from speedo.errors import CheckpointError, ConfigError, EngineError
from speedo.exchange.vector import Layout
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Checkpoint, Counters, WorkerState

SUFFIX: Final = ".solverstate"


def is_snapshot(path: Path) -> bool:
    """Whether a file has the name of a `.solverstate`, in either form."""
    return path.name.removesuffix(".h5").endswith(SUFFIX)


@dataclass(frozen=True, slots=True)
class CaffeSnapshot:
    """`model` are the weights that belong to it."""

    path: Path
    iteration: int
    model: Path
    state: StoredState

    def notes(self, workers: int) -> list[str]:
        """What is restored, as lines for the user."""
        return [
            f"resumed from Caffe's snapshot at iteration {self.iteration}: weights of {self.model.name}",
            f"each of {workers} workers has its solver history; the data starts at the first record, as in Caffe",
        ]

    def as_checkpoint(self, engine: ModelEngine, settings: RunSettings, mode: str) -> Checkpoint:
        """A checkpoint in which every worker has this history. Loads the snapshot's weights into `engine`."""
        engine.copy_from(self.model)
        center = engine.layout.zeros()
        engine.read_weights(center)
        history = engine.history_from(self._content(engine.layout))
        counters = Counters(
            run=settings.run,
            epoch=settings.epoch,
            mode=mode,
            version=0,
            iteration=self.iteration,
            samples=self.iteration * settings.spec.batch,
            received=0,
            seconds=0.0,
            layout=engine.layout.digest,
        )
        sizes = settings.batch_sizes
        share = "shard" if settings.data_share == "shard" else ""  # a history alone: see `Roster`
        return Checkpoint(
            counters,
            center,
            history,
            {
                slot: WorkerState(slot, len(sizes), size, 0, share)
                for slot, size in enumerate(sizes)
            },
            dict.fromkeys(range(len(sizes)), history),
        )

    def _content(self, layout: Layout) -> bytes:
        """The `.solverstate` again, with the shapes of this net; raises `CheckpointError` where it has others."""
        state = self.state
        sizes = [one.size for one in state.history]
        own = [blob.size for blob in layout.blobs]
        vectors = len(sizes) // max(1, len(own))
        if sizes != own * vectors:
            raise CheckpointError(
                f"the solver history in {self.path} has {len(sizes)} blobs, which are not those of this net: resume "
                "with the net of the snapshot"
            )
        shapes = [blob.shape for blob in layout.blobs] * vectors
        blobs = [
            one.read().reshape(shape) for one, shape in zip(state.history, shapes, strict=True)
        ]
        return state_of(state.iteration, state.learned_net, state.current_step, blobs)


def read_snapshot(path: Path) -> CaffeSnapshot:
    """Read a `.solverstate`; raises `ConfigError` with the remedy."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise ConfigError(
            f"resume names {path}, which is not a file; give a run directory or a {SUFFIX}"
        )
    try:
        state = read_state(path)
        diverged = next(
            (at for at, one in enumerate(state.history) if not np.isfinite(one.read()).all()), None
        )
    except EngineError as error:
        raise ConfigError(f"resume: {error}") from None
    if not state.learned_net:
        raise ConfigError(
            f"{path} names no weights; give a {SUFFIX} that Caffe wrote with its .caffemodel"
        )
    if diverged is not None:
        raise ConfigError(
            f"the solver history in {path} holds NaN or infinity (blob {diverged}): training had diverged; give an "
            "earlier snapshot"
        )
    model = Path(state.learned_net)
    tried = [model, path.parent / model.name]
    found = next((one for one in tried if os.path.isfile(one)), None)
    if found is None:
        raise ConfigError(
            f"the weights of {path} were found neither at {tried[0]} nor at {tried[1]}; put them beside it"
        )
    if state.iteration < 0:
        raise ConfigError(
            f"{path} is at iteration {state.iteration}, which no solver reaches; give another"
        )
    if (problem := problem_with_name(found)) is not None:
        raise ConfigError(f"the weights of {path}, {str(found)!a}, have a name that {problem}")
    return CaffeSnapshot(path, state.iteration, found.absolute(), state)
