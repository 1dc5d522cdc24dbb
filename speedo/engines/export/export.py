"""Exports a model that was trained here: finds its net and its records, and has the files compared with the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from caffenets.export.exporting import Wanted, check_wanted, exported
from caffenets.forms.steps import Shape
from caffenets.weight_files.caffemodel import read_model
from speedo.engines.export.source import read_source
from speedo.engines.export.trial import Trials
from speedo.engines.make import EngineChoice


def export(
    model: Path | None,
    net: Path,
    wanted: Wanted,
    *,
    shapes: Mapping[str, Shape],
    transform: bool,
    data_root: Path | None,
    choice: EngineChoice,
    scratch: Path,
    ignore_unknown: bool = False,
) -> Iterator[str]:
    """Write the files that are wanted; yields a line about each. `scratch` is for files of this export alone.

    With `transform` ONNX and PyTorch take records as they are before the data layers' transform_param.
    Raises `ConfigError`, `EngineError`; then nothing is written.
    """
    check_wanted(wanted, model, "speedo")
    layers = () if model is None else read_model(model).layers
    blobs = {one.name: [() if blob is None else blob.shape for blob in one.blobs] for one in layers}
    source = read_source(net, data_root, choice, ignore_unknown)
    trials = Trials(choice, scratch, source.origin)
    records, why_none = source.records(trials, scratch)
    known = {name: array.shape for name, array in records.items()}
    deploy = source.deploy(shapes, known, blobs)
    before = source.transforms(deploy) if transform else {}
    said = exported(
        *(deploy, model, wanted, trials, source.origin, scratch), before=before, records=records
    )
    first = next(said)  # now all is written
    yield from (f"left out: {one}" for one in source.spec.left_out)
    if source.spec.left_out:
        yield f"{choice.name} computed the net without what was left out, too: the comparisons below do not show it"
    yield first
    yield from said
    if not records and (wanted.onnx is not None or wanted.torch is not None):
        yield f"not compared on test records: {why_none}"
