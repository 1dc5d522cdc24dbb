"""Copies weights into a net of Caffe's, and checks whether they are for it: Caffe silently accepts many that are not.

Caffe itself never opens a file of weights: it would read what a stranger's file names, and abort where a shape differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speedo.engines.base import ModelEngine
from speedo.engines.weight_files.caffemodel import matched, read_model
from speedo.errors import EngineError, SolverError

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
    """Raises `SolverError`, naming the layer, if weights do not fit, or parameters begin with NaN or infinity."""
    for file in weights or (None,):
        _check_start(engine, file)


def _check_start(engine: ModelEngine, weights: Path | None) -> None:
    if weights is not None:
        try:
            engine.copy_from(weights)
        except EngineError as error:
            raise SolverError(f"weights {error}") from error
    vector = engine.layout.zeros()
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
    try:
        copy_model(weights, net)
    except EngineError as error:
        raise SolverError(f"weights {error}") from error
    for name, index, blob in _blobs(net):
        check_scored(weights, name, index, blob.data)


def check_scored(weights: Path, name: str, index: int, values: Values) -> None:
    """Raises `SolverError` if this blob, filled with `UNTOUCHED` before, has no values now, or NaN or infinity."""
    if values.size and (values == UNTOUCHED).all():
        raise SolverError(
            f"weights {weights} has no values for blob {index} of layer {name!r}: give those of this net"
        )
    wrong = values.size - int(np.isfinite(values).sum())
    if wrong:
        raise SolverError(
            f"weights {weights} cannot be scored: {wrong:,} of {values.size:,} values of blob {index} of layer "
            f"{name!r} are NaN or infinite; give those of an earlier snapshot"
        )


def copy_model(path: Path, net: Any) -> None:
    """Copy the parameters of a `.caffemodel` or `.caffemodel.h5` into the layers of these names of Caffe's net.

    Raises `EngineError`, and changes nothing, where a shape differs.
    """
    blobs, shapes, shared = {}, [], set()
    seen = set[int]()
    for name, index, blob in _blobs(net):
        blobs[name, index] = blob
        shapes.append((name, index, tuple(blob.data.shape)))
        if blob.data.ctypes.data in seen:
            shared.add((name, index))
        seen.add(blob.data.ctypes.data)
    found = matched(read_model(path), shapes, layers=map(str, net._layer_names), shared=shared)
    for key, values in found.items():
        blobs[key].data[...] = values.read()


def _blobs(net: Any) -> list[tuple[str, int, Any]]:
    return [
        (str(name), index, blob)
        for name, blobs in net.params.items()
        for index, blob in enumerate(blobs)
    ]
