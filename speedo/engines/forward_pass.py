"""The forward pass of a net of pycaffe, with what Caffe itself does not look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np

from speedo.engines.label_rules import Classes, classes_of, label_bottom
from speedo.errors import EngineError


class ForwardPass:
    """Runs `net`, which Caffe built from the NetParameter `parameter`.

    Raises `EngineError` for a label without a class, with which Caffe would read beyond its memory. A shuffled HDF5Data
    layer is read as by a solver alone: its list has a worker's share only (`speedo.engines.solver.hdf5_shares`).
    """

    def __init__(self, net: Any, parameter: Any) -> None:
        params = {layer.name: layer for layer in parameter.layer}
        self._net = net
        self._labels: dict[int, tuple[Any, Classes]] = {}
        self._alone: set[int] = set()
        self._sources: list[int] = []
        self._replaced: set[int] = set()  # those whose batches come from elsewhere: `read_from`
        self._fill: Callable[[Any], None] | None = None
        for at, name in enumerate(net._layer_names):
            bottoms, param = list(net._bottom_ids(at)), params.get(name)
            if not bottoms:
                self._sources.append(at)
            if param is None:
                continue  # a Split of Caffe's own
            if param.type == "HDF5Data" and param.hdf5_data_param.shuffle:
                self._alone.add(at)
            shapes = {param.bottom[0]: tuple(net._blobs[bottoms[0]].shape)} if bottoms else {}
            if (classes := classes_of(param, shapes)) is not None:
                self._labels[at] = net._blobs[bottoms[label_bottom(param)]], classes
        self._parts = self._parts_without(())

    def read_from(self, fill: Callable[[Any], None], layers: Collection[str]) -> None:
        """Have `fill` put each batch into the net, in place of the data layers of these names."""
        self._fill = fill
        self._replaced = {at for at in self._sources if self._net._layer_names[at] in layers}
        self._parts = self._parts_without(self._replaced)

    def run(self) -> float:
        """Read the next batch and compute all layers; the loss."""
        loss = 0.0
        if self._fill is not None:
            self._fill(self._net)
        for first, last in self._parts:
            if first in self._labels:
                self._check(*self._labels[first])
            # In float32, as Caffe adds the losses of its layers.
            loss = float(np.float32(loss + self._forward(first, last)))
        if not math.isfinite(loss):
            self._blame_records()
        return loss

    def read(self) -> None:
        """Let the layers without a bottom pass over a batch."""
        if self._fill is not None:
            self._fill(self._net)
        for layer in self._sources:
            if self._fill is None or layer not in self._replaced:
                self._forward(layer, layer)

    def _parts_without(self, left_out: Collection[int]) -> list[tuple[int, int]]:
        """First and last layers of what Caffe runs at once."""
        apart = {*self._alone, *left_out}
        stops = {0, len(self._net.layers), *self._labels, *apart, *(at + 1 for at in apart)}
        return [(first, end - 1) for first, end in pairwise(sorted(stops)) if first not in left_out]

    def _forward(self, first: int, last: int) -> float:
        with as_a_solver_alone() if first in self._alone else nullcontext():
            return float(self._net._forward(first, last))

    def _blame_records(self) -> None:
        """Raise `EngineError` if a loss is not finite because the records are not."""
        for layer in self._sources:
            for top in self._net._top_ids(layer):
                if not np.isfinite(self._net._blobs[top].data).all():
                    raise EngineError(
                        f"layer {self._net._layer_names[layer]!r} has read NaN or infinity in "
                        f"{self._net._blob_names[top]!r}: correct its records, or leave those out"
                    )

    @staticmethod
    def _check(blob: Any, classes: Classes) -> None:
        labels = blob.data
        wrong = classes.first_wrong(labels)
        if wrong is not None:
            label = float(labels.flat[wrong])
            raise EngineError(
                f"layer {classes.layer!r} reads the label {label:.9g}, {classes.problem(label)}"
            )


@contextmanager
def as_a_solver_alone() -> Iterator[None]:
    """Caffe's data layers look at rank and count when they are read."""
    # Imported here: every engine's module imports this one for its test nets.
    from speedo.engines.caffe_import import load_caffe

    caffe = load_caffe()
    rank, count = caffe.solver_rank(), caffe.solver_count()
    caffe.set_solver_rank(0)
    caffe.set_solver_count(1)
    try:
        yield
    finally:
        caffe.set_solver_count(count)
        caffe.set_solver_rank(rank)
