"""One data layer, read by pycaffe and by the PyTorch engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from google.protobuf import text_format

from speedo.engines.caffe_import import load_caffe

Batches = list[list[np.ndarray]]


def by_caffe(
    layer: str, batches: int, folder: Path, *, phase: str = "TRAIN", rank: int = 0, count: int = 1
) -> Batches:
    """The tops of so many batches of a net that is this layer alone, by plain pycaffe."""
    caffe = load_caffe()
    file = folder / "layer.prototxt"
    file.write_text(f"layer {{ {layer} }}")
    caffe.set_mode_cpu()
    caffe.set_multiprocess(True)
    caffe.set_solver_count(count)
    caffe.set_solver_rank(rank)
    try:
        net = caffe.Net(str(file), getattr(caffe, phase))
        found = []
        for _ in range(batches):
            net.forward()
            found.append([net.blobs[top].data.copy() for top in net.top_names[net._layer_names[0]]])
        return found
    finally:
        caffe.set_solver_count(1)
        caffe.set_solver_rank(0)


def source_of(
    layer: str, *, ahead: bool | None = None, decoders: int | None = None, **place: Any
) -> Any:
    """The layer of the PyTorch engine, before its setup; `place` as in Place."""
    from caffenets.layer import LayerContext
    from speedo.engines.pytorch.data import SOURCES

    param = text_format.Parse(layer, load_caffe().proto.caffe_pb2.LayerParameter())
    return SOURCES[param.type](param, LayerContext(**place), ahead=ahead, decoders=decoders)


def by_torch(layer: str, batches: int, *, ahead: bool | None = None, **place: Any) -> Batches:
    """The same of the PyTorch engine; the shapes that `setup` says are those that come."""
    source = source_of(layer, ahead=ahead, **place)
    try:
        shapes = source.setup([])
        found = [[top.numpy() for top in source.forward([], [])] for _ in range(batches)]
        assert [top.shape for top in found[0]] == shapes
        return found
    finally:
        source.close()


def assert_same(found: Batches, expected: Batches, tolerance: float = 0) -> None:
    """Every top of every batch has the same shape and values."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert one.dtype == np.float32
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def pixels(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, tuple(shape), dtype=np.uint8)


def datum(image: np.ndarray, label: int | None = 0) -> bytes:
    """A raw record of an image (C, H, W): bytes, or else `float_data`."""
    channels, height, width = image.shape
    made = load_caffe().proto.caffe_pb2.Datum(channels=channels, height=height, width=width)
    if image.dtype == np.uint8:
        made.data = image.tobytes()
    else:
        made.float_data.extend(image.ravel().tolist())
    if label is not None:
        made.label = label
    return bytes(made.SerializeToString())


def encoded_datum(file: bytes, label: int = 0) -> bytes:
    """A record of an image file."""
    made = load_caffe().proto.caffe_pb2.Datum(data=file, label=label, encoded=True)
    return bytes(made.SerializeToString())


def write_records(folder: Path, values: Iterable[bytes]) -> Path:
    """An LMDB of these values under numbered keys."""
    environment = lmdb.open(str(folder), map_size=1 << 26)
    with environment, environment.begin(write=True) as transaction:
        for index, value in enumerate(values):
            transaction.put(f"{index:08}".encode(), value)
    return folder


def data_layer(
    source: Path, batch: int, more: str = "", tops: str = 'top: "data" top: "label"'
) -> str:
    """A Data layer over an LMDB."""
    return (
        f'name: "records" type: "Data" {tops} '
        f'data_param {{ source: "{source}" backend: LMDB batch_size: {batch} }} {more}'
    )
