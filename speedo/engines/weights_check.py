"""Checks whether a file is a .caffemodel for a net, because Caffe silently accepts many files that are not.

Its layers are compared without Caffe. Then a child process loads it with Caffe and examines the result, because Caffe
does not find in HDF5 what has a slash in its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speedo.engines.base import ModelEngine
from speedo.engines.pytorch.model_files import read_model
from speedo.errors import EngineError, SolverError

_HDF5: Final = b"\x89HDF"  # Caffe reads such files too
Values = npt.NDArray[np.float32]
UNTOUCHED: Final = np.float32(-2.7182819e-31)  # no weight has it: what keeps it was not loaded


def check_weights(path: Path, layers: Iterable[str]) -> None:
    """Raises `SolverError` unless the file holds parameters for one of these layers."""
    try:
        model = read_model(path)
    except EngineError as error:
        raise SolverError(f"weights {error}") from error
    held = [layer.name for layer in model.layers if layer.blobs]
    if not held:
        raise SolverError(f"weights {path} holds no parameters: give another --weights")
    if not set(held) & set(layers):
        raise SolverError(
            f"weights {path} has no layer of this net, only {', '.join(held[:5])}: "
            "give another --weights, or name the layers alike"
        )


def check_start(engine: ModelEngine, weights: Sequence[Path]) -> None:
    """Raises `SolverError`, naming the layer, if parameters begin with NaN or infinity, or if no weights were loaded.

    The engine is built for this check only: loading from HDF5 overwrites its weights.
    """
    for file in weights or (None,):
        _check_start(engine, file)


def _check_start(engine: ModelEngine, weights: Path | None) -> None:
    vector = engine.layout.zeros()
    if weights is not None:
        named = not _is_hdf5(weights)  # then `check_weights` has compared the names
        if not named:
            vector.fill(UNTOUCHED)
            engine.load_weights(vector)
        engine.copy_from(weights)
        engine.read_weights(vector)
        if not named and (vector == UNTOUCHED).all():
            raise SolverError(
                f"weights {weights} has no layer of this net: give another --weights, or name the layers alike"
            )
    else:
        engine.read_weights(vector)
    for blob, place in engine.layout.slices():
        wrong = blob.size - int(np.isfinite(vector[place]).sum())
        if not wrong:
            continue
        layer, _, index = blob.name.rpartition("/")
        which = f"{wrong:,} of {blob.size:,} values of blob {index} of layer {layer!r} are NaN or infinite"
        if weights is not None:
            raise SolverError(
                f"weights {weights} cannot be trained from: {which}; give others, such as an earlier snapshot"
            )
        raise SolverError(
            f"{which} at the start: correct its filler, or the weights that the solver names"
        )


def load_to_score(weights: Path, net: Any) -> None:
    """Load weights into a net that is to be scored; `SolverError` if they lack a layer's, or hold NaN or infinity.

    Caffe itself would score the values of a filler, and its Accuracy layer answers 1.0 for a net full of NaN.
    """
    for _, _, blob in _blobs(net):
        blob.data[...] = UNTOUCHED
    net.copy_from(str(weights))
    for name, index, blob in _blobs(net):
        check_scored(weights, name, index, blob.data)


def check_scored(weights: Path, name: str, index: int, values: Values) -> None:
    """Raises `SolverError` if this blob, filled with `UNTOUCHED` before, has no values now, or NaN or infinity."""
    if values.size and (values == UNTOUCHED).all():
        raise SolverError(
            f"weights {weights} has no values for blob {index} of layer {name!r}: give those of this net; "
            "if several layers have this name, rename them, since Caffe fills the first alone"
        )
    wrong = values.size - int(np.isfinite(values).sum())
    if wrong:
        raise SolverError(
            f"weights {weights} cannot be scored: {wrong:,} of {values.size:,} values of blob {index} of layer "
            f"{name!r} are NaN or infinite; give those of an earlier snapshot"
        )


def _blobs(net: Any) -> list[tuple[str, int, Any]]:
    return [
        (str(name), index, blob)
        for name, layer in zip(net._layer_names, net.layers, strict=True)
        for index, blob in enumerate(layer.blobs)
    ]


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_HDF5)) == _HDF5
