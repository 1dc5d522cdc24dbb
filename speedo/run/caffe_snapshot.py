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
from google.protobuf.message import DecodeError

from speedo.engines.base import ModelEngine
from speedo.engines.snapshot_hdf5 import read_hdf5
from speedo.engines.solver.proto import caffe_proto
from speedo.errors import ConfigError, EngineError
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Checkpoint, Counters, WorkerState
from speedo.system.files import problem_with_name, read_bytes

SUFFIX: Final = ".solverstate"
_HDF5: Final = b"\x89HDF"


def is_snapshot(path: Path) -> bool:
    """Whether a file has the name of a `.solverstate`, in either form."""
    return path.name.removesuffix(".h5").endswith(SUFFIX)


@dataclass(frozen=True, slots=True)
class CaffeSnapshot:
    """`state` is the file's content, `model` the weights that belong to it."""

    path: Path
    iteration: int
    model: Path
    state: bytes

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
        history = engine.history_from(self.state)
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


def read_snapshot(path: Path) -> CaffeSnapshot:
    """Read a `.solverstate`; raises `ConfigError` with the remedy."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise ConfigError(
            f"resume names {path}, which is not a file; give a run directory or a {SUFFIX}"
        )
    try:
        state = read_bytes(path)
    except OSError as error:
        raise ConfigError(
            f"resume names {path}, which cannot be read ({error.strerror}); give a run directory or a {SUFFIX}"
        ) from None
    if state.startswith(_HDF5):
        try:
            state = read_hdf5(str(path))
        except EngineError as error:
            raise ConfigError(f"{path} cannot be resumed: {error}; give another") from None
    message = caffe_proto().SolverState()
    try:
        message.ParseFromString(state)
    except DecodeError:
        raise ConfigError(
            f"{path} is not a {SUFFIX} of Caffe, or a truncated one; give another"
        ) from None
    if not message.learned_net:
        raise ConfigError(
            f"{path} names no weights; give a {SUFFIX} that Caffe wrote with its .caffemodel"
        )
    for index, blob in enumerate(message.history):
        if not np.isfinite(np.array(blob.data, dtype=np.float32)).all():
            raise ConfigError(
                f"the solver history in {path} holds NaN or infinity (blob {index}): training had diverged; give an "
                "earlier snapshot"
            )
    model = Path(message.learned_net)
    tried = [model, path.parent / model.name]
    found = next((one for one in tried if os.path.isfile(one)), None)
    if found is None:
        raise ConfigError(
            f"the weights of {path} were found neither at {tried[0]} nor at {tried[1]}; put them beside it"
        )
    if message.iter < 0:
        raise ConfigError(
            f"{path} is at iteration {message.iter}, which no solver reaches; give another"
        )
    if (problem := problem_with_name(found)) is not None:
        raise ConfigError(f"the weights of {path}, {str(found)!a}, have a name that {problem}")
    return CaffeSnapshot(path, int(message.iter), found.absolute(), state)
