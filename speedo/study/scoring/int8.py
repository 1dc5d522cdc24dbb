"""Scores a model in 8 bits, as a compiler for an int8 processor would make it.

The core of each test net is exported and quantised; it then stands in the test net as one layer, so data, losses,
accuracy and average precision are computed as for the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from caffenets.export.exporting import as_onnx
from caffenets.export.trials import Arrays
from caffenets.host_program import caffe_schema
from caffenets.int8.model import WEIGHTS
from caffenets.int8.split import INTEGER, Split, split
from caffenets.prototxt.text import parse_text, to_text
from speedo.engines.export.source import read_records
from speedo.engines.export.trial import Trials
from speedo.engines.make import EngineChoice
from speedo.engines.schema import ONNX_LAYER
from speedo.engines.solver import SolverSpec
from speedo.errors import ConfigError, SolverError
from speedo.run.scratch import scratch_folder
from speedo.study.scoring.models import ScoredModel
from speedo.study.scoring.score import Score, ScoringListener, score_models
from speedo.system.remedies import lacking

Ranges = Literal["percentile", "minmax"]
USUAL_BATCHES: Final = 10


@dataclass(frozen=True, slots=True)
class CalibrationRecords:
    """The records that the ranges are taken from: batches of the training data, with the batch of the test net."""

    training: SolverSpec
    batches: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Int8Scores:
    """The scores by kind of weights, `per_tensor` and `per_channel`, and why.

    `layers` are those with weights and their types, with the signal to noise of each quantised alone, in decibels by
    kind of weights; None where there is no noise. `in_float` are the layers that are not quantised, and their types.
    """

    scores: Mapping[str, Score]
    layers: Mapping[tuple[str, str], Mapping[str, float | None]]
    in_float: tuple[tuple[str, str], ...]
    records: int


def score_in_int8(
    spec: SolverSpec,
    model: ScoredModel,
    workers: int,
    progress: ScoringListener,
    choice: EngineChoice,
    calibration: CalibrationRecords,
    note: Callable[[str], None],
) -> Int8Scores:
    """The scores of a quantised model by the test nets of `spec`. Raises `ConfigError`, `EngineError`."""
    if sentences := [
        *filter(None, (lacking(one, "onnx", "--int8") for one in ("onnx", "onnxruntime")))
    ]:
        raise ConfigError(sentences)
    whole: Any = parse_text(spec.text, caffe_schema().SolverParameter())
    nets = {kind: parse_text(spec.text, caffe_schema().SolverParameter()) for kind in WEIGHTS}
    layers: dict[tuple[str, str], Mapping[str, float | None]] = {}
    in_float: dict[tuple[str, str], None] = {}
    records = 0
    with scratch_folder() as scratch:
        for at, net in enumerate(whole.test_net_param):
            origin = spec.net_files[-len(whole.test_net_param) :][at]
            parts = split(net, origin)
            folder = scratch / f"int8-{at}"
            folder.mkdir()
            trials = Trials(choice.on_cpu(), folder, origin)
            note(f"int8: takes ranges from {calibration.batches} batches of training records")
            answer, count = _quantised(spec, parts, origin, model.path, calibration, trials, folder)
            records += count
            types = {str(layer.name): str(layer.type) for layer in net.layer}
            layers |= {(name, types[name]): noise for name, noise in answer["layers"].items()}
            names = [*answer["in_float"], *(str(layer.name) for layer in parts.rest)]
            in_float |= dict.fromkeys((name, types[name]) for name in names)
            for kind, parameter in nets.items():
                file = folder / f"{kind}.onnx"
                parameter.test_net_param[at].CopyFrom(parts.with_core(file, ONNX_LAYER))
        modules = (*spec.python_layers, ONNX_LAYER)
        known = [str(layer.name) for net in whole.test_net_param for layer in net.layer]
        scores = {}
        for kind, parameter in nets.items():
            note(f"int8: scores with weights {kind.replace('_', ' ')}")
            quantised = replace(spec, text=to_text(parameter), python_layers=modules)
            (scores[kind],) = score_models(quantised, [model], workers, progress, choice, known)
    return Int8Scores(scores, layers, tuple(in_float), records)


def _quantised(
    spec: SolverSpec,
    parts: Split,
    origin: str,
    model: Path,
    calibration: CalibrationRecords,
    trials: Trials,
    folder: Path,
) -> tuple[Mapping[str, Any], int]:
    """Make the files of both kinds of weights in this folder; what was measured, and how many records gave ranges."""
    tested = read_records(spec, parts.net, trials, folder, 1, parts.inputs)
    core = as_onnx(
        parts.deploy({name: values.shape[1:] for name, values in tested.items()}),
        model, origin, trials, folder,
    )  # fmt: skip
    training = calibration.training
    net: Any = parse_text(training.text, caffe_schema().SolverParameter())
    trained = read_records(
        training, net.test_net_param[0], trials, folder, calibration.batches, parts.inputs
    )
    _check_alike(trained, tested, core.axes, training, origin)
    request = {
        "folder": str(folder),
        "axes": dict(core.axes),
        "integer": [str(layer.name) for layer in parts.core if layer.type in INTEGER],
        "ranges": calibration.ranges,
    }
    first = trained[parts.inputs[0]]
    count = first.shape[0] * first.shape[1 + core.axes.get(parts.inputs[0], 0)]
    return trials.int8(core.file, trained, request), count


def _check_alike(
    trained: Arrays, tested: Arrays, axes: Mapping[str, int], training: SolverSpec, origin: str
) -> None:
    """Raises `SolverError` unless the training records can go into the test net."""
    for name, values in tested.items():
        if name not in trained:
            raise SolverError(
                f"{training.net_files[0]}: no data layer for training makes {name!r}, which {origin} reads "
                "and of which int8 needs the range: name the tops of both data layers alike"
            )
        ours, theirs = list(trained[name].shape[1:]), list(values.shape[1:])
        shown = [" x ".join(map(str, shape)) for shape in (ours, theirs)]
        for shape in (ours, theirs) if name in axes else ():
            del shape[axes[name]]
        if ours != theirs:
            raise SolverError(
                f"{training.net_files[0]}: {name!r} is {shown[0]} in training and {shown[1]} in {origin}: int8 takes "
                "its ranges from training records, so give both the same crop_size"
            )
