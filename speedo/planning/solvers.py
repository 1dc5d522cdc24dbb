"""From a solver file to its calibration: read, checked and measured for the numbers of workers that are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from speedo.config.run_config import make_config
from speedo.data import default_data_root
from speedo.planning.calibrate_by_measuring import Effort, measure
from speedo.planning.calibration import Calibration
from speedo.planning.predict import HYBRID
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.prepare import SOLVER_VARIABLE
from speedo.solver import SolverOverrides, check_solver, read_solver
from speedo.solver.bundled import bundled_solver
from speedo.vectors.codecs import NO_COMPRESSION, Compression


def measure_solver(
    solver: Path | None,
    modes: Sequence[str],
    workers: Sequence[int],
    split: bool | None,
    seconds: float,
    note: Callable[[str], None],
    *,
    data_root: Path | None = None,
    cpu: bool = False,
    compression: Compression = NO_COMPRESSION,
) -> Calibration:
    """Without a `solver` that of the environment, or LeNet, whose data are made if they are missing.

    Raises `SolverError` with all that is wrong, `DataError`, `EngineError`, `StoreError`.
    """
    named = os.environ.get(SOLVER_VARIABLE)
    path = solver or (Path(named) if named else bundled_solver())
    root = (data_root or default_data_root()).absolute()
    spec = read_solver(path, overrides=SolverOverrides(cpu=cpu), data_root=root)
    dataset = preparable_dataset(spec)
    if dataset is not None:
        make_dataset(root, dataset, note)
    check_solver(spec, workers=1, split=False)
    sizes: Sequence[int] = ()
    if any(_splits(mode, split) for mode in modes):
        sizes = batches_between(spec.batch_size, max(workers))
    return measure(spec, Effort(seconds, sizes, compression=compression), note)


def batches_between(batch_size: int, workers: int) -> tuple[int, ...]:
    """The share of each of so many workers, and a size halfway to it by ratio: where a step's time is measured."""
    least = max(1, batch_size // workers)
    middle = round((least * batch_size) ** 0.5)
    return tuple(sorted({least, middle} - {batch_size}))


def _splits(mode: str, split: bool | None) -> bool:
    phases = [{"mode": kind, "iterations": 1} for kind in HYBRID] if mode == "hybrid" else []
    return make_config({"mode": mode, "split_batch": split, "phases": phases}).splits_batch
