"""The files of a snapshot, as Caffe writes them: `NAME_iter_N.caffemodel` and `.solverstate`, or both in HDF5.

Plain Caffe's `solver.restore` continues from the `.solverstate`. It holds one history. Where the master or servers make
the solver's update it is theirs. Where every worker has its own, it is their mean, weighted by their records: for SGD
and Nesterov in `sync` the history that one solver with the whole batch would have, for the update is linear.

The weights are taken in the driver's thread. Writing is for another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speedo.engines.base import ModelEngine
from speedo.engines.files import WrittenModel, memory_file, write_out
from speedo.engines.snapshot_hdf5 import write_hdf5
from speedo.engines.solver import SolverSpec
from speedo.engines.solver_history import solverstate_in
from speedo.engines.solverstate import read_solverstate, write_solverstate
from speedo.engines.update_rules import RULES
from speedo.errors import EngineError, FencedError, StoreError
from speedo.exchange.vector import Layout
from speedo.master.center import RunCenter


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Writes snapshots. `fence` raises `FencedError` once another master has taken over the run.

    `server_history` is the history of the solver whose update makes the center; empty if the workers have histories.
    """

    run_dir: Path
    spec: SolverSpec
    engine: ModelEngine
    center: RunCenter
    fence: Callable[[], None]
    server_history: Callable[[], bytes]

    def take(self, iteration: int, last: bool) -> CenterSnapshot:
        """Take the center's weights now. The `last` one's `.caffemodel` is a second name of the run's model.

        Raises `EngineError`, `FencedError`, `StoreError`.
        """
        self.fence()
        model = None
        if not last or self.spec.snapshot_hdf5:
            self.engine.load_weights(self.center.vector)
            model = self.engine.written(hdf5=self.spec.snapshot_hdf5)
        history = self.server_history()
        return CenterSnapshot(
            iteration, model, history, self.run_dir, self.spec, self.center.layout, self.fence
        )

    def taken_at_end(self, iteration: int) -> CenterSnapshot | None:
        """The snapshot of a run that ends there; None if Caffe would write none."""
        named = self.spec.last_snapshot(iteration)
        return None if named is None else self.take(named, last=True)


@dataclass(frozen=True, slots=True)
class CenterSnapshot:
    """A snapshot whose weights, and the history if it is the servers', are in memory."""

    iteration: int
    model: WrittenModel | None
    history: bytes
    run_dir: Path
    spec: SolverSpec
    layout: Layout
    fence: Callable[[], None]

    @property
    def wants_histories(self) -> bool:
        """Whether the workers have the histories."""
        return not self.history

    def write(self, histories: Sequence[tuple[bytes, int]]) -> str:
        """Write both files, from the workers' histories, each with its records; returns the problem if there is one."""
        weights = self.run_dir / self.spec.snapshot_name(self.iteration)
        try:
            self.fence()
            if self.model is not None:
                self.model.write(weights)
        except (EngineError, FencedError, StoreError) as error:
            return f"no snapshot at iteration {self.iteration}: {error}"
        path = self.run_dir / self.spec.solverstate_name(self.iteration)
        try:
            self._write_state(path, weights, [(self.history, 1)] if self.history else histories)
        except OSError as error:
            return f"no {path}: {error.strerror or error}"
        except EngineError as error:
            return f"no {path}: {error}"
        return ""

    def _write_state(
        self, path: Path, weights: Path, histories: Sequence[tuple[bytes, int]]
    ) -> None:
        state = mean_solverstate(
            self.spec.type,
            self.layout,
            histories,
            self.iteration,
            str(weights.absolute()),
            self.spec.lr_policy.steps_taken(max(self.iteration - 1, 0)),
        )
        with memory_file() as (file, _):
            if self.spec.snapshot_hdf5:
                write_hdf5(state, file)
            else:
                file.write(state)
            write_out(file, path)


def mean_solverstate(
    solver_type: str,
    layout: Layout,
    histories: Sequence[tuple[bytes, int]],
    iteration: int,
    weights: str,
    current_step: int,
) -> bytes:
    """The content of a `.solverstate` with the mean of the histories, each weighted by its number.

    `weights` is the file that it names. Raises `EngineError` if there is no history, or one of another solver.
    """
    if not histories:
        raise EngineError("no worker gave its solver history")
    count = RULES[solver_type].vectors
    mean = [layout.zeros() for _ in range(count)]
    whole = sum(weight for _, weight in histories)
    for history, weight in histories:
        vectors, _ = read_solverstate(layout, count, solverstate_in(solver_type, layout, history))
        for total, vector in zip(mean, vectors, strict=True):
            vector *= weight / whole
            total += vector
    return write_solverstate(
        layout, mean, iteration, learned_net=weights, current_step=current_step
    )
