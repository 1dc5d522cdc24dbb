"""Copies weights into a net of Caffe's, and checks whether they are for it: Caffe silently accepts many that are not.

Caffe itself never opens a file of weights: it would read what a stranger's file names, and abort where a shape differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from speedo.engines.base import ModelEngine
from speedo.engines.weight_files.caffemodel import matched, read_model
from speedo.engines.weight_files.stored import Stored, Values
from speedo.errors import EngineError, SolverError


@dataclass(frozen=True, slots=True)
class NetBlob:
    """A blob of a built net; `place` is where its memory begins, which is one for shared blobs."""

    shape: tuple[int, ...]
    place: int
    write: Callable[[Values], object]


NetBlobs = Mapping[tuple[str, int], NetBlob]  # by layer and index, in the net's order


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


def copy_weights(path: Path, blobs: NetBlobs, layers: Iterable[str]) -> None:
    """Copy the parameters of a `.caffemodel` or `.caffemodel.h5` into the blobs of the layers with their names.

    `layers` are the names of all layers. Raises `EngineError`, and changes nothing, where a shape differs.
    """
    for key, values in _found(path, blobs, layers).items():
        blobs[key].write(values.read())


def load_to_score(weights: Path, blobs: NetBlobs, layers: Iterable[str]) -> None:
    """The same for a net that is to be scored; `SolverError`, also if weights lack a blob, or hold NaN or infinity.

    Caffe itself would score the values of a filler, and its Accuracy layer answers 1.0 for a net full of NaN.
    """
    try:
        found = _found(weights, blobs, layers)
        filled = {blobs[key].place for key in found}
        for (name, index), blob in blobs.items():
            if blob.place not in filled and 0 not in blob.shape:
                raise SolverError(
                    f"weights {weights} has no values for blob {index} of layer {name!r}: give those of this net"
                )
        for (name, index), one in found.items():
            values = one.read()
            wrong = values.size - int(np.isfinite(values).sum())
            if wrong:
                raise SolverError(
                    f"weights {weights} cannot be scored: {wrong:,} of {values.size:,} values of blob {index} of layer "
                    f"{name!r} are NaN or infinite; give those of an earlier snapshot"
                )
            blobs[name, index].write(values)
    except EngineError as error:
        raise SolverError(f"weights {error}") from error


def caffe_blobs(net: Any) -> tuple[NetBlobs, list[str]]:
    """The blobs of Caffe's net, and the names of its layers."""
    blobs = {
        (str(name), index): NetBlob(
            tuple(blob.data.shape), blob.data.ctypes.data, partial(_write, blob)
        )
        for name, own in net.params.items()
        for index, blob in enumerate(own)
    }
    return blobs, list(map(str, net._layer_names))


def _write(blob: Any, values: Values) -> None:
    blob.data[...] = values


def _found(path: Path, blobs: NetBlobs, layers: Iterable[str]) -> dict[tuple[str, int], Stored]:
    shared, seen = set(), set[int]()
    for key, blob in blobs.items():
        if blob.place in seen:
            shared.add(key)
        seen.add(blob.place)
    shapes = [(*key, blob.shape) for key, blob in blobs.items()]
    return matched(read_model(path), shapes, layers=layers, shared=shared)
