"""The files of `run.save`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speedo.exchange.npz import write_arrays, write_named
from speedo.worker.weights import ScriptWeights


def save(path: Path, weights: ScriptWeights, thing: Any) -> None:
    """Write the `thing`, or the weights where it is None; see `JoinedRun.save`."""
    if thing is None:
        vector = weights.layout.zeros()
        weights.read_weights(vector)
        write_arrays(path, weights.layout, vector)
    elif path.suffix == ".npz":
        write_named(path, thing)
    else:
        from speedo.engines.pytorch.packed_tensors import save_object

        save_object(path, thing)
