"""Tries how the gradient of a batch follows from those of its parts: as their mean, as their sum, or not at all.

A step of sequential Caffe can be divided over workers only where the loss is a mean, or a sum, over records that do
not know of each other. A few records of the run's own data are computed whole and in two unequal parts, at random
weights, and the gradients of every parameter blob are compared. Runs in a child process (`speedo.engines.net_trial`):
Caffe aborts where a batch size is written into a shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from google.protobuf import text_format

from caffenets.box_labels import ROW, TOP, boxes_of
from caffenets.host_program import caffe_schema
from speedo.engines.base import ModelEngine, RateSchedule
from speedo.engines.make import EngineChoice, make_engine
from speedo.exchange.vector import Layout, Vector

Division = Literal["mean", "sum", "none"]

_RECORDS: Final = 5  # of a whole trial batch
_PARTS: Final = ((0, 2, 4), (1, 3))  # unequal, so that a mean has to be weighted by records
_TRIALS: Final = 3  # each with other records, where the batch has as many, and other weights
# float32 leaves some 1e-6 of a gradient. A ReLU or a maximum at its edge may change a single trial by more.
_EXACT: Final = 1e-4
_NEAR: Final = 1e-2
# Of the largest blob's gradient: what rounding leaves where the true gradient is 0.
_NOISE: Final = 1e-6
_SAMPLED: Final = 10_000  # values of a blob that are compared
# Layers without bottoms that read no records.
_NO_RECORDS: Final = ("Parameter",)

# Of each trial, of each blob.
Gradients = list[list[Vector]]


def try_division(
    choice: EngineChoice,
    solver_text: str,
    batch: Mapping[str, Vector],
    schedule: RateSchedule,
    scratch: Path,
    *,
    folder: Path | None = None,
    python_layers: Collection[str] = (),
) -> Division:
    """How the parts of `batch`, the tops of the data layers of the solver's train net by their names, give the whole.

    Raises `EngineError`, or aborts the process, where a net cannot be built with another batch.
    """
    solver = text_format.Parse(solver_text, caffe_schema().SolverParameter())
    size = _batch_size(solver.train_net_param, batch)
    records = min(_RECORDS, size)
    trials = max(1, min(_TRIALS, size // records))
    layouts = set()

    def gradients(rows: Sequence[int]) -> Gradients:
        where = scratch / f"rows-{'-'.join(map(str, rows))}"
        where.mkdir()
        text = _reading(solver, batch, size, records, trials, rows, where)
        engine = make_engine(
            choice,
            text,
            lr_policy=schedule,
            folder=folder,
            python_layers=python_layers,
            scratch=where,
        )
        layouts.add(engine.layout.digest)
        try:
            return [_sampled_gradient(engine, trial) for trial in range(_TRIALS)]
        finally:
            engine.close()

    whole = gradients(range(records))
    parts = [tuple(row for row in rows if row < records) for rows in _PARTS]
    divided = [gradients(rows) for rows in parts]
    if len(layouts) > 1:
        return "none"
    weights = [len(rows) / records for rows in parts]
    if _agree(whole, divided, weights):
        return "mean"
    return "sum" if _agree(whole, divided, [1.0] * len(parts)) else "none"


def _batch_size(net: Any, batch: Mapping[str, Vector]) -> int:
    """The leading extent of the first top of the first data layer that has one."""
    for layer in _sources(net):
        for top in layer.top:
            if batch[top].ndim:
                return int(batch[top].shape[0])
    return 1


def _sources(net: Any) -> Iterator[Any]:
    return (one for one in net.layer if not one.bottom and one.type not in _NO_RECORDS)


def _reading(
    solver: Any,
    batch: Mapping[str, Vector],
    size: int,
    records: int,
    trials: int,
    rows: Sequence[int],
    folder: Path,
) -> str:
    """The solver with a train net that reads those `rows` of each trial's records from HDF5 files in `folder`."""
    own = type(solver)()
    own.CopyFrom(solver)
    own.iter_size = 1
    own.ClearField("weights")
    net = own.train_net_param
    layers = [type(layer).FromString(layer.SerializeToString()) for layer in net.layer]
    net.ClearField("layer")
    for layer in layers:
        if not layer.bottom and layer.type not in _NO_RECORDS:
            of_trials = [[trial * records + row for row in rows] for trial in range(trials)]
            for number, top in enumerate(layer.top):
                if layer.type == "AnnotatedData" and number == TOP:
                    taken, batch_size = _boxes(batch[top], of_trials), 1
                elif batch[top].shape[0] == size:
                    taken = batch[top][[row for trial in of_trials for row in trial]]
                    batch_size = len(rows)
                else:  # a constant of the model
                    taken, batch_size = batch[top], batch[top].shape[0]
                _add_reader(net, top, taken, batch_size, folder)
            continue
        if layer.type == "Dropout":
            layer.phase = caffe_schema().TEST  # it must not drop other units in each part
        net.layer.add().CopyFrom(layer)
    return str(text_format.MessageToString(own))


def _boxes(labels: Vector, of_trials: Sequence[Sequence[int]]) -> Vector:
    """A row for each trial: the boxes of its images, as many as those with most; the others have rows of -1."""
    own = [boxes_of(labels, images) for images in of_trials]
    taken = np.full((len(own), 1, max(one.shape[2] for one in own), ROW), -1.0, np.float32)
    for trial, one in enumerate(own):
        taken[trial, :, : one.shape[2]] = one[0]
    return taken


def _add_reader(net: Any, top: str, taken: Vector, batch_size: int, folder: Path) -> None:
    """One layer for one top."""
    import h5py

    number = len(net.layer)
    name = f"records{number}"  # a top's own name may have a slash, which HDF5 takes for a folder
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file[name] = taken
    listed = folder / f"{name}.txt"
    listed.write_text(f"{folder / name}.h5\n")
    reader = net.layer.add(name=name, type="HDF5Data", top=[name])
    reader.hdf5_data_param.source = str(listed)
    reader.hdf5_data_param.batch_size = batch_size
    net.layer.add(name=f"{name}_named", type="Power", bottom=[name], top=[top])


def _sampled_gradient(engine: ModelEngine, trial: int) -> list[Vector]:
    """Of each blob the gradient of the next batch at the trial's weights, at most `_SAMPLED` values of it."""
    engine.load_weights(_weights(engine.layout, trial))
    gradient = engine.layout.zeros()
    engine.gradient(1, gradient)
    chance = np.random.default_rng(trial)
    found = []
    for blob, place in engine.layout.slices():
        values = gradient[place]
        if blob.size > _SAMPLED:
            values = values[chance.integers(blob.size, size=_SAMPLED)]
        found.append(values.copy())
    return found


def _weights(layout: Layout, trial: int) -> Vector:
    """Random weights that keep the size of what passes through them (He et al. 2015); running sums are 0."""
    weights = layout.zeros()
    most = min(1 << 20, max((blob.size for blob in layout.blobs), default=0))
    noise = np.random.default_rng(100 + trial).standard_normal(most, np.float32)
    for blob, place in layout.slices():
        if not blob.statistic:
            scale = np.sqrt(2 * blob.shape[0] / blob.size) if len(blob.shape) > 1 else 0.3
            weights[place] = np.resize(noise, blob.size) * np.float32(scale)
    return weights


def _agree(whole: Gradients, parts: Sequence[Gradients], weights: Sequence[float]) -> bool:
    """Whether the weighted sum of the parts is the whole, in every blob."""
    errors = []
    for trial, expected in enumerate(whole):
        found = [one[trial] for one in parts]
        sizes, differences = [], []
        for at, blob in enumerate(expected):
            shares = [w * one[at].astype(np.float64) for w, one in zip(weights, found, strict=True)]
            differences.append(float(np.linalg.norm(blob - sum(shares))))
            sizes.append(float(np.linalg.norm(blob)) + sum(map(float, map(np.linalg.norm, shares))))
        if not np.isfinite(sizes).all():
            continue
        floor = _NOISE * max(sizes, default=0.0)
        errors.append(
            max(
                (d / (s + floor / _EXACT) for d, s in zip(differences, sizes, strict=True) if d),
                default=0.0,
            )
        )
    exact = sum(error <= _EXACT for error in errors)
    return bool(errors) and max(errors) <= _NEAR and exact >= min(2, len(errors))
