"""Exports a deploy net with its model: makes the files, compares them with an engine, and only then writes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from caffenets.deploy import Deploy, batch_axes, with_batch
from caffenets.errors import ConfigError, EngineError, NetError, SolverError
from caffenets.export.differences import TooFarError, difference
from caffenets.export.layered import (
    FixedBatchError,
    Layered,
    draw_inputs,
    file_title,
    found_in,
    layered,
)
from caffenets.export.transform import Transform
from caffenets.export.trials import Arrays, Computed, Trials
from caffenets.extras import lacking
from caffenets.files import written_whole
from caffenets.forms.steps import Dims, dims_of
from caffenets.inputs import MOST_VALUES
from caffenets.prototxt.text import to_text
from caffenets.weight_files.caffemodel import Model, read_model

BATCHES: Final = (1, 7)  # that an export is tried with
MOST_RECORDS: Final = 16
_SEED: Final = 1
# Rounding of inputs, and how many times what that changes an export may be apart: a maximum that is all but equal to
# another is unpooled elsewhere.
_ROUNDING: Final = np.float32(1 + 2**-22)
_AS_ROUNDING: Final = 4.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """The files to write; None for those that are not asked for."""

    onnx: Path | None = None
    torch: Path | None = None
    deploy: Path | None = None

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        for option in ("onnx", "torch", "deploy"):
            path = getattr(self, option)
            if path is not None:
                yield option, path


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """An ONNX file; `axes` are those of its inputs along which records are, none where the batch is fixed."""

    file: Path
    axes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Try:
    """Records that the files are given, what the engine made of them, and how they are called.

    The engine is given the records after their transforms.
    """

    name: str
    records: Arrays
    computed: Computed


@dataclass(slots=True)
class _Built:
    """A deploy net that the engine has computed; `batch` is 0 where the batch is free, `why` why it is not."""

    net: Any
    tries: list[_Try]
    dims: Mapping[str, Dims]
    batch: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Forms:
    """A net with its weights, its ONNX file, and the text of its module."""

    made: Layered
    onnx: bytes
    torch: str


def check_wanted(wanted: Wanted, model: Path | None, project: str = "caffe-nets") -> None:
    """Raises `ConfigError` with every mistake in the options."""
    problems = []
    if not [*wanted]:
        problems.append("nothing is to be written: give --onnx, --torch or --deploy")
    if model is None and (wanted.onnx is not None or wanted.torch is not None):
        problems.append("a model is needed for --onnx and --torch: name a .caffemodel or a run")
    if wanted.torch is not None and wanted.torch.suffix != ".py":
        problems.append(
            f"--torch {wanted.torch} is a Python module: give it a name that ends in .py"
        )
    if wanted.onnx is not None:
        sentences = (lacking(one, "onnx", "--onnx", project) for one in ("onnx", "onnxruntime"))
        problems += filter(None, sentences)
    if wanted.torch is not None and (sentence := lacking("torch", "torch", "--torch", project)):
        problems.append(sentence)
    for option, path in wanted:
        if os.path.isdir(path):
            problems.append(f"--{option} {path} is a folder: give the name of a file")
        elif not os.path.isdir(path.absolute().parent):
            problems.append(f"--{option} {path}: there is no folder {path.parent}: make it first")
    paths = [os.path.abspath(path) for _, path in wanted]
    if len(set(paths)) < len(paths):
        problems.append(f"two options name the file {paths[0]}: give each its own")
    if problems:
        raise ConfigError(problems)


def exported(
    deploy: Deploy,
    model: Path | None,
    wanted: Wanted,
    trials: Trials,
    origin: str,
    scratch: Path,
    *,
    before: Mapping[str, Transform] | None = None,
    records: Arrays | None = None,
) -> Iterator[str]:
    """Write the files that are wanted; yields a line about each. `scratch` is for files of this export alone.

    With `before` ONNX and PyTorch take records as they are before these transforms; with `records` the files are
    compared on some of these, too. Raises `ConfigError`, `EngineError`; then nothing is written.
    """
    stored = None if model is None else read_model(model)
    built, forms = _computed(deploy, wanted, trials, model, stored, origin, before or {})
    if records and not built.batch:
        built.tries += _tries_of_records(built, records, trials, model, before or {})
    own = partial(_own_change, built.net, trials, model, before or {})
    files, lines = _made(forms, built, wanted, trials, scratch, own)
    if wanted.deploy is not None:
        files[wanted.deploy] = scratch / "deploy.prototxt"
        files[wanted.deploy].write_text(to_text(built.net), encoding="utf-8")
        outputs = built.tries[0].computed.outputs
        ends = _ends(built.dims, deploy.inputs, outputs, found_in(built.net.layer, outputs))
        lines.append(f"{wanted.deploy}: {ends}")
    write_files(files)
    yield from deploy.notes
    if built.batch:
        yield f"the batch is {built.batch} and not free: {built.why}"
    yield from lines


def as_onnx(deploy: Deploy, model: Path, origin: str, trials: Trials, scratch: Path) -> OnnxFile:
    """A deploy net with this model as a file in `scratch`, compared with the engine.

    Raises `SolverError` with each layer without an equal, `EngineError`.
    """
    file = scratch / "core.onnx"
    wanted = Wanted(onnx=file)
    built, forms = _computed(deploy, wanted, trials, model, read_model(model), origin, {})
    own = partial(_own_change, built.net, trials, model, {})
    files, _ = _made(forms, built, wanted, trials, scratch, own)
    files[file].rename(file)
    return OnnxFile(file, {} if built.batch else batch_axes(built.net))


def _computed(
    deploy: Deploy,
    wanted: Wanted,
    trials: Trials,
    model: Path | None,
    stored: Model | None,
    origin: str,
    before: Mapping[str, Transform],
) -> tuple[_Built, _Forms | None]:
    """The net as the engine computes it, and the content of the files; with its own batch where it takes no other."""
    built = _built(deploy, trials, model, before)
    try:
        return built, _forms(built, wanted, origin, stored, before)
    except FixedBatchError as error:
        built = _fixed(deploy, trials, model, before, str(error))
        return built, _forms(built, wanted, origin, stored, before)


def _forms(
    built: _Built,
    wanted: Wanted,
    origin: str,
    stored: Model | None,
    before: Mapping[str, Transform],
) -> _Forms | None:
    """The content of the files; None where only a deploy net is wanted. Raises `SolverError`, `FixedBatchError`."""
    if wanted.onnx is None and wanted.torch is None:
        return None
    first = built.tries[0].computed
    made = layered(
        built.net, origin, built.dims, first.outputs, first.blobs, stored, before, first.constants
    )
    return _Forms(
        made,
        b"" if wanted.onnx is None else made.as_onnx(),
        "" if wanted.torch is None else made.as_torch(file_title(made.name, origin)),
    )


def _made(
    forms: _Forms | None,
    built: _Built,
    wanted: Wanted,
    trials: Trials,
    scratch: Path,
    own_change: Callable[[_Try, Collection[str]], float],
) -> tuple[dict[Path, Path], list[str]]:
    """The files in `scratch` by their later names, each compared with the engine, and a line about each."""
    files: dict[Path, Path] = {}
    lines: list[str] = []
    if forms is None:
        return files, lines
    made, given = forms.made, [one.records for one in built.tries]
    if wanted.onnx is not None:
        file = scratch / "net.onnx"
        file.write_bytes(forms.onnx)
        ran = trials.onnx(file, given)
        lines.append(_line(wanted.onnx, made, built, ran, trials.judge, own_change))
        files[wanted.onnx] = file
    if wanted.torch is not None:
        module = scratch / "net.py"
        module.write_text(forms.torch, encoding="utf-8")
        ran = trials.torch(module, given, list(made.outputs), made.values, made.owners)
        lines.append(_line(wanted.torch, made, built, ran, trials.judge, own_change))
        files |= {wanted.torch.with_suffix(".pt"): module.with_suffix(".pt"), wanted.torch: module}
    return files, lines


def _built(
    deploy: Deploy, trials: Trials, model: Path | None, before: Mapping[str, Transform]
) -> _Built:
    """The net with both batches, or with its own where it takes no other. Raises `EngineError`, `SolverError`."""
    try:
        nets = [with_batch(deploy.net, batch) for batch in BATCHES]
        small, large = _tried(nets, trials, model, before)
        if small.computed.blobs != large.computed.blobs:
            raise SolverError("the shape of a parameter depends on the batch")
        dims = dims_of(small.computed.shapes, large.computed.shapes)
        return _Built(with_batch(deploy.net, BATCHES[0]), [small, large], dims)
    except (NetError, ValueError, KeyError) as error:
        return _fixed(deploy, trials, model, before, str(error))


def _fixed(
    deploy: Deploy, trials: Trials, model: Path | None, before: Mapping[str, Transform], why: str
) -> _Built:
    """The net with its own batch, and why. Raises `EngineError`, `SolverError`."""
    (alone,) = _tried([deploy.net], trials, model, before)
    axes = batch_axes(deploy.net)
    batch = next((deploy.inputs[name][axis] for name, axis in axes.items()), 1)
    return _Built(deploy.net, [alone], alone.computed.shapes, batch, why.partition("\n")[0])


def _tried(
    nets: Sequence[Any], trials: Trials, model: Path | None, before: Mapping[str, Transform]
) -> list[_Try]:
    drawn = []
    for net in nets:
        values = sum(prod(shape.dim) for one in net.layer for shape in one.input_param.shape)
        if values > MOST_VALUES:
            raise SolverError(f"the inputs have {values:,} values: give smaller ones by --shape")
        rng = np.random.default_rng(_SEED)
        records = draw_inputs(net, rng)
        pixels = {name: rng.integers(0, 256, records[name].shape) for name in before}
        drawn.append(records | {name: one.astype(np.float32) for name, one in pixels.items()})
    given = [(net, _passed(one, before)) for net, one in zip(nets, drawn, strict=True)]
    computed = trials.engine(given, model)
    return [_Try("random records", *pair) for pair in zip(drawn, computed, strict=True)]


def _passed(records: Arrays, before: Mapping[str, Transform]) -> Arrays:
    """What data layers would make of these records."""
    return {
        name: before[name](values) if name in before else values for name, values in records.items()
    }


def _tries_of_records(
    built: _Built,
    records: Arrays,
    trials: Trials,
    model: Path | None,
    before: Mapping[str, Transform],
) -> list[_Try]:
    """The net on some of these records; nothing where it has inputs that they lack."""
    axes = batch_axes(built.net)
    inputs = {}
    for layer in built.net.layer:
        for top in layer.top if layer.type == "Input" else ():
            if top not in records or top not in axes:
                return []
            taken = np.arange(min(MOST_RECORDS, records[top].shape[axes[top]]))
            inputs[str(top)] = np.ascontiguousarray(
                np.take(records[top], taken, axes[top]), np.float32
            )
    counts = {array.shape[axes[name]] for name, array in inputs.items()}
    if len(counts) != 1:
        return []
    net = with_batch(built.net, counts.pop())
    try:
        raw = {name: before[name].back(x) if name in before else x for name, x in inputs.items()}
        (computed,) = trials.engine([(net, _passed(raw, before))], model)
        return [_Try("test records", raw, computed)]
    except EngineError:
        return []


def _line(
    path: Path,
    made: Layered,
    built: _Built,
    ran: Sequence[Arrays],
    judge: str,
    own_change: Callable[[_Try, Collection[str]], float],
) -> str:
    """What is in a file, and how far it is from the engine. Raises `EngineError` if that is too far."""
    apart: dict[str, float] = {}
    own = 0.0
    for one, found in zip(built.tries, ran, strict=True):
        compared = found, one.computed.outputs, str(path), judge, made.found
        try:
            worst = difference(*compared)
        except TooFarError:
            own = max(own, own_change(one, made.found))
            worst = difference(*compared, most=_AS_ROUNDING * own)
        apart[one.name] = max(worst, apart.get(one.name, 0.0))
    measured = ", ".join(f"{worst:.1e} on {name}" for name, worst in apart.items())
    count = sum(values.size for values in made.values.values())
    ends = _ends(built.dims, made.inputs, made.outputs, made.found)
    line = f"{path}: {count:,} parameters, {ends}; differs from {judge} by at most {measured}"
    return (
        line
        if not own
        else (
            f"{line}; the net itself changes by {own:.1e} where its inputs change by 2e-07 of themselves"
        )
    )


def _own_change(
    net: Any,
    trials: Trials,
    model: Path | None,
    before: Mapping[str, Transform],
    one: _Try,
    found: Collection[str],
) -> float:
    """How far the net's outputs move where its inputs are rounded otherwise."""
    axes, given = batch_axes(net), _passed(one.records, before)
    counts = [array.shape[axes[name]] for name, array in given.items() if name in axes]
    sized = with_batch(net, counts[0]) if counts else net
    moved = {name: array * _ROUNDING for name, array in given.items()}
    ours, outputs = (one.outputs for one in trials.engine([(sized, moved), (sized, given)], model))
    return difference(ours, outputs, "the net", trials.judge, found, most=np.inf)


def _ends(
    dims: Mapping[str, Dims],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    found: Collection[str] = (),
) -> str:
    def sizes(name: str) -> str:
        free = "found" if name in found else "batch"
        return ", ".join(free if size is None else str(size) for size in dims[name])

    def listed(names: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} ({sizes(name)})" for name in names)

    return f"{listed(inputs)} -> {listed(outputs)}"


def write_files(files: Mapping[Path, Path]) -> None:
    """Copy the files to their names; if one cannot be written, none stays. Raises `ConfigError`."""
    done: list[Path] = []
    try:
        for path, file in files.items():
            with file.open("rb") as source, written_whole(path) as out:
                shutil.copyfileobj(source, out, 1 << 20)
            done.append(path)
    except OSError as error:
        for path in done:
            path.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; make room or make the folder writable"
        ) from error
