"""Takes weights of ONNX, of a PyTorch state dict or of `.npz` back into a `.caffemodel` or a `.caffemodel.h5`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from caffenets.deploy import Deploy
from caffenets.errors import ConfigError, SolverError
from caffenets.export.layered import Layered, draw_inputs, layered
from caffenets.export.trials import Trials
from caffenets.files import written_whole
from caffenets.forms.steps import Shape, identifiers
from caffenets.layer import Values
from caffenets.layers import LAYERS
from caffenets.weight_files.archives import read_npz
from caffenets.weight_files.caffemodel import write_model
from caffenets.weight_files.hdf5 import write_layers
from caffenets.weight_files.onnx import read_initializers
from caffenets.weight_files.state_dict import read_state_dict
from caffenets.weight_files.stored import Stored

_REMEDY: Final = "give the file that was exported of this net, or one with the same names"


def check_model(model: Path) -> None:
    """Raises `ConfigError` where no file of this name can be written."""
    if not model.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {model.parent}: make it first")
    if model.is_dir():
        raise ConfigError(f"{model} is a folder: give the name of a file")


def import_weights(
    file: Path,
    model: Path,
    net: Any,
    deploy_of: Callable[[Mapping[str, Sequence[Shape]]], Deploy],
    trials: Trials,
    origin: str,
    scratch: Path,
) -> Iterator[str]:
    """Write the model, in HDF5 if its name ends in `.h5`; yields a line about it.

    `deploy_of` makes the deploy net of `net`, from the file `origin`, with what is known of the shapes of its layers'
    blobs. Raises `ConfigError`, `EngineError`; then nothing is written.
    """
    check_model(model)
    is_onnx = file.suffix == ".onnx"
    notes: Mapping[str, str] = {}
    if is_onnx:
        stored, notes = read_initializers(file)
    else:
        stored = read_npz(file) if file.suffix == ".npz" else read_state_dict(file)
    deploy = deploy_of(_shapes_by_layer(net, stored))
    drawn = draw_inputs(deploy.net, np.random.default_rng(1))
    (computed,) = trials.engine([(deploy.net, drawn)], None)
    made = layered(deploy.net, origin, computed.shapes, computed.outputs, computed.blobs, None)
    blobs = _blobs(made, file, stored, notes, is_onnx)
    params = {layer.param.name: layer for layer in made.layers}
    written = [
        (layer, blobs.get(layer.name, []) if layer.name in params else [])
        for layer in deploy.net.layer
    ]
    part = scratch / f"model.caffemodel{'.h5' if model.suffix == '.h5' else ''}"
    with part.open("w+b") as out:
        if model.suffix == ".h5":
            _write_hdf5(out, model, written)
        else:
            write_model(out, str(deploy.net.name), written)
    trials.engine([(deploy.net, drawn)], part)
    try:
        with part.open("rb") as source_file, written_whole(model) as out:
            out.write(source_file.read())
    except OSError as error:
        raise ConfigError(f"{model} cannot be written: {error.strerror or error}") from error
    count = sum(values.size for own in blobs.values() for values in own)
    yield f"{model}: {count:,} values in {len(blobs)} layers, from {file}"


def _write_hdf5(
    out: IO[bytes], model: Path, written: Sequence[tuple[Any, Sequence[Values]]]
) -> None:
    """Raises `ConfigError` for a name that Caffe does not find there."""
    for layer, own in written:
        if own and "/" in layer.name:
            raise ConfigError(
                f"{model}: Caffe does not find layer {layer.name!r} in HDF5, because of the slash in its name: give a "
                "name that ends in .caffemodel"
            )
    blobs = [(f"{layer.name}/{at}", one) for layer, own in written for at, one in enumerate(own)]
    write_layers(out, [str(layer.name) for layer, _ in written], blobs)


def _blobs(
    made: Layered,
    file: Path,
    stored: Mapping[str, Stored],
    notes: Mapping[str, str],
    is_onnx: bool,
) -> dict[str, list[Values]]:
    """The blobs of each layer that has some. Raises `SolverError` with every one that is missing or does not fit."""
    found: dict[str, list[Values]] = {}
    problems = [
        f"{key!r} of {file} has the shape {stored[key].shape}, and layer {layer.step.param.name!r} needs {shape}: "
        f"{_REMEDY}"
        for layer in made.layers
        for key, shape in zip(layer.step.owners, layer.step.blobs, strict=True)
        if key in stored and stored[key].size != math.prod(shape)
    ]
    if problems:
        raise SolverError(problems)
    values = _Read(stored)
    for layer in made.layers:
        step = layer.step
        if not step.blobs:
            continue
        try:
            own = layer.from_onnx(values, notes) if is_onnx else [values[k] for k in step.owners]
        except KeyError as error:
            problems.append(
                f"{file} has no {error.args[0]!r}, which layer {step.param.name!r} needs: {_REMEDY}"
            )
            continue
        found[step.param.name] = [
            one.reshape(shape) for one, shape in zip(own, step.blobs, strict=True)
        ]
    if problems:
        raise SolverError(problems)
    if not found:
        raise SolverError(f"{made.origin}: has no layer with parameters: give another net")
    return found


class _Read(Mapping[str, Values]):
    """Arrays of a file, each read when it is asked for."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    def __getitem__(self, key: str) -> Values:
        return self._stored[key].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _shapes_by_layer(net: Any, stored: Mapping[str, Stored]) -> dict[str, list[Shape]]:
    """The shape of each layer's first blob, from which the sizes of an input may follow."""
    names = identifiers(str(layer.name) for layer in net.layer)
    found = {}
    for layer in net.layer:
        kind = LAYERS.get(layer.type)
        first = "" if kind is None else f"{names[layer.name]}.{kind.blob_names[0]}"
        if first in stored:
            found[str(layer.name)] = [stored[first].shape]
    return found
