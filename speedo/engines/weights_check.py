"""Copies weights into a net of Caffe's, and checks whether they are for it: Caffe silently accepts many that are not.

Caffe itself never opens a file of weights: it would read what a stranger's file names, and abort where a shape differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caffenets.weight_files.caffemodel import matched, read_model
from caffenets.weight_files.stored import Stored, Values
from speedo.engines.base import ModelEngine
from speedo.errors import EngineError, SolverError


@dataclass(frozen=True, slots=True)
class NetBlob:
    """A blob of a built net; `place` is where its memory begins, which is one for shared blobs.

    A file fills those of the `first` layer of a name alone (net.cpp, CopyTrainedLayersFrom).
    """

    layer: str
    index: int
    first: bool
    shape: tuple[int, ...]
    place: int
    write: Callable[[Values], object]


NetBlobs = Sequence[NetBlob]  # in the net's order


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
    for blob, values in _found(path, blobs, layers):
        blob.write(values.read())


def load_to_score(weights: Path, blobs: NetBlobs, layers: Iterable[str]) -> None:
    """The same for a net that is to be scored; `SolverError`, also if weights lack a blob, or hold NaN or infinity.

    Caffe itself would score the values of a filler, and its Accuracy layer answers 1.0 for a net full of NaN.
    """
    try:
        found = _found(weights, blobs, layers)
        filled = {blob.place for blob, _ in found}
        for blob in blobs:
            if blob.place not in filled and 0 not in blob.shape:
                rename = (
                    ""
                    if blob.first
                    else "; rename the layers of one name: Caffe fills the first alone"
                )
                raise SolverError(
                    f"weights {weights} has no values for blob {blob.index} of layer {blob.layer!r}: give those of "
                    f"this net{rename}"
                )
        for blob, one in found:
            values = one.read()
            wrong = values.size - int(np.isfinite(values).sum())
            if wrong:
                raise SolverError(
                    f"weights {weights} cannot be scored: {wrong:,} of {values.size:,} values of blob {blob.index} of "
                    f"layer {blob.layer!r} are NaN or infinite; give those of an earlier snapshot"
                )
            blob.write(values)
    except EngineError as error:
        raise SolverError(f"weights {error}") from error


def caffe_blobs(net: Any) -> tuple[NetBlobs, list[str]]:
    """The blobs of Caffe's net, and the names of its layers."""
    names = list(map(str, net._layer_names))
    layers = zip(names, ([blob.data for blob in layer.blobs] for layer in net.layers), strict=True)
    return blobs_of(layers, lambda values: values.ctypes.data, np.copyto), names


def blobs_of(
    layers: Iterable[tuple[str, list[Any]]],
    place: Callable[[Any], int],
    write: Callable[[Any, Values], object],
) -> NetBlobs:
    """The blobs of these layers; `place` and `write` are what an engine does with one of its arrays."""
    seen = set[str]()
    blobs = []
    for name, arrays in layers:
        first = name not in seen
        seen.add(name)
        blobs += [
            NetBlob(name, index, first, tuple(one.shape), place(one), partial(write, one))
            for index, one in enumerate(arrays)
        ]
    return blobs


def _found(path: Path, blobs: NetBlobs, layers: Iterable[str]) -> list[tuple[NetBlob, Stored]]:
    """What the file holds for the blobs of this net, in the order of the last copies."""
    filled = {(blob.layer, blob.index): blob for blob in blobs if blob.first}
    shared, seen = set(), set[int]()
    for key, blob in filled.items():
        if blob.place in seen:
            shared.add(key)
        seen.add(blob.place)
    shapes = [(*key, blob.shape) for key, blob in filled.items()]
    found = matched(read_model(path), shapes, layers=layers, shared=shared)
    return [(filled[key], values) for key, values in found.items()]
