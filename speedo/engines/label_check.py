"""Labels that a net has no class for: a Caffe built for speed reads beyond its memory and trains on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import lmdb

from speedo.engines.caffe_import import load_caffe

_JUDGES: Final = ("SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss", "Accuracy")


def label_problems(net: Any, blobs: Mapping[str, Any], *, limit_s: float = 2.0) -> Iterator[str]:
    """A sentence for each LMDB of this NetParameter that holds a label beyond the classes of a layer.

    `blobs` are those of the net as built, by name. Records are read in their order for `limit_s` seconds.
    """
    databases = {
        layer.top[1]: layer
        for layer in net.layer
        if layer.type == "Data"
        and len(layer.top) > 1
        and layer.data_param.backend == layer.data_param.LMDB
    }
    judges: dict[str, tuple[int, Any]] = {}
    for layer in net.layer:
        if layer.type in _JUDGES and len(layer.bottom) > 1 and layer.bottom[1] in databases:
            classes = _classes(layer, blobs)
            if classes and classes < judges.get(layer.bottom[1], (classes + 1, None))[0]:
                judges[layer.bottom[1]] = classes, layer
    for top, (classes, judge) in judges.items():
        source = databases[top].data_param.source
        found = _beyond(source, classes, _ignored(judge), time.monotonic() + limit_s)
        if found is not None:
            record, label = found
            yield (
                f"layer {databases[top].name!r} reads the label {label} (record {record!r} of {source}), but "
                f"{judge.bottom[0]!r} has {classes} classes, 0 to {classes - 1}: correct the labels, or make "
                f"num_output {label + 1} or more"
                if label >= 0
                else f"layer {databases[top].name!r} reads the label {label} (record {record!r} of {source}): "
                "correct the labels, which count from 0"
            )


def _classes(judge: Any, blobs: Mapping[str, Any]) -> int:
    """Extent of the judged blob along its classes; 0 where that is not known here."""
    if judge.bottom[0] not in blobs:
        return 0
    shape = tuple(blobs[judge.bottom[0]].data.shape)
    axis = judge.accuracy_param.axis if judge.type == "Accuracy" else judge.softmax_param.axis
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else 0


def _ignored(judge: Any) -> int | None:
    owner = judge.accuracy_param if judge.type == "Accuracy" else judge.loss_param
    return int(owner.ignore_label) if owner.HasField("ignore_label") else None


def _beyond(
    source: str, classes: int, ignored: int | None, deadline: float
) -> tuple[str, int] | None:
    """Key and label of the first record whose label is no class."""
    datum = load_caffe().proto.caffe_pb2.Datum()
    path = Path(source)
    with (
        lmdb.open(str(path), readonly=True, lock=False, subdir=path.is_dir()) as database,
        database.begin() as transaction,
    ):
        for key, value in transaction.cursor():
            datum.ParseFromString(value)
            if not 0 <= datum.label < classes and datum.label != ignored:
                return key.decode(errors="replace"), datum.label
            if time.monotonic() > deadline:
                break
    return None
