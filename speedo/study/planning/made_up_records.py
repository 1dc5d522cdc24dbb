"""A net whose records are not on this machine, with made-up ones: its parameters are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from caffenets.data_layers import SOURCES, batch_of, data_layers, source_of
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text, to_text
from speedo.engines.solver import SolverSpec
from speedo.errors import SolverError

COLORS: Final = 3


def with_made_up_records(spec: SolverSpec) -> SolverSpec:
    """The train net alone, zeros in place of records that are not found. Raises `SolverError` if their size is unknown.

    It is known where the prototxt crops them: squares of `crop_size`, in three colors unless it says otherwise.
    """
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    for field in ("test_net_param", "test_iter", "test_interval"):
        parameter.ClearField(field)
    problems = []
    for layer in data_layers(parameter.train_net_param):
        if layer.type not in SOURCES or spec.search.find(source_of(layer)) is not None:
            continue
        crop = int(layer.transform_param.crop_size)
        if not crop or layer.type == "HDF5Data":
            problems.append(
                f"{spec.net_files[0]}: layer {layer.name!r} reads its records from "
                f"{spec.search.missing(source_of(layer))}; without them the size of the net is not known"
            )
        else:
            _make_up(layer, crop)
    if problems:
        raise SolverError(problems)
    return replace(spec, text=to_text(parameter))


def _make_up(layer: Any, crop: int) -> None:
    """The layer as one of type `DummyData`, its tops with the same shapes."""
    batch = batch_of(layer)
    transform = layer.transform_param
    channels = 1 if transform.force_gray else max(len(transform.mean_value), COLORS)
    layer.ClearField(SOURCES[layer.type])
    layer.ClearField("transform_param")
    layer.type = "DummyData"
    shapes = [(batch, channels, crop, crop), (batch,)]
    for _, dims in zip(layer.top, shapes, strict=False):
        layer.dummy_data_param.shape.add().dim.extend(dims)
