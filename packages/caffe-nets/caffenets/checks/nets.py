"""Checks a net for what Caffe would refuse before it reads a record.

Caffe: net.cpp, Init; layer_factory.hpp, CreateLayer.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caffenets.checks.paths import SearchPath
from caffenets.checks.sources import (
    LARGEST_INT32,
    file_problem,
    source_problems,
    transform_problems,
)
from caffenets.data_layers import FED_FROM_OUTSIDE, SOURCES, batch_of, data_layers, is_data_layer
from caffenets.known_types import type_here
from caffenets.prototxt.forks import about_layer
from caffenets.prototxt.text import did_you_mean, line_of_layer

_TRAIN: Final = "train net"
_TEST: Final = "test net"


@dataclass(frozen=True, slots=True)
class Known:
    """The types of layers that compute a net: `types`, of which `refused` say why not, and what to do.

    `elsewhere` are the types of this package's layers, for a hint. `python`: Python layers run, and need their modules.
    """

    types: Collection[str]
    refused: Mapping[str, str]
    elsewhere: Collection[str]
    python: bool = False


def net_problems(
    parameter: Any, search: SearchPath, net_files: Sequence[str], known: Known
) -> list[str]:
    """Every problem in the nets of an inlined SolverParameter and in the files that they name.

    Each sentence begins with the net's file; a problem of both train and test net is reported once.
    """
    nets = [(_TRAIN, parameter.train_net_param)]
    nets += [(_TEST, net) for net in parameter.test_net_param]
    found: list[str] = []
    computed = set(known.types) - known.refused.keys()
    for (role, net), file in zip(nets, net_files, strict=False):
        found += problems_of_layers(net, search, file, known)
        # A layer of another Caffe may bring the records, or be the loss.
        if all(layer.type in computed or not about_layer(layer.type, ()) for layer in net.layer):
            found += [f"{file}: {text}" for text in (_train(net) if role == _TRAIN else _test(net))]
    for weights in (name.strip() for names in parameter.weights for name in names.split(",")):
        found += file_problem("the solver names the weights", weights, search)
    return list(dict.fromkeys(found))


def problems_of_tests(
    parameter: Any, search: SearchPath, net_files: Sequence[str], known: Known
) -> list[str]:
    """As `net_problems`, of the test nets alone; `net_files` are theirs."""
    found: list[str] = []
    for net, file in zip(parameter.test_net_param, net_files, strict=True):
        found += problems_of_layers(net, search, file, known)
        found += [f"{file}: {text}" for text in _test(net)]
    return list(dict.fromkeys(found))


def problems_of_layers(net: Any, search: SearchPath, file: str, known: Known) -> list[str]:
    """As `net_problems`, of the layers of any net, also one whose records come from outside."""
    tops: list[str] = []
    found = _refused(net, file, known)
    for layer in net.layer:
        if texts := list(_problems(layer, tops, search, known)):
            place = f"{file}{line_of_layer(file, layer.name)}: layer {layer.name!r}"
            found += [f"{place} {text}" for text in texts]
        tops += layer.top
    return found


def _problems(layer: Any, tops: Collection[str], search: SearchPath, known: Known) -> Iterator[str]:
    """Of a layer, each to follow `layer 'x' `; `tops` are those of the layers before it."""
    if layer.type not in known.types:
        other = about_layer(layer.type, known.elsewhere)
        suggestion = f": {other}" if other else did_you_mean(layer.type, known.types)
        yield f"has the unknown type {layer.type!r}{suggestion or ', none of BVLC Caffe: correct it'}"
    for bottom in layer.bottom:
        if bottom not in tops:
            suggestion = did_you_mean(bottom, tops) or ": correct it"
            yield f"reads {bottom!r}, which no earlier layer makes{suggestion}"
    for place, top in enumerate(layer.top):
        # In place means: the same blob in the same position (Caffe: net.cpp, AppendTop).
        if top in tops and top not in layer.bottom[place : place + 1]:
            yield f"makes {top!r}, which another layer makes, too: rename one"
    if is_data_layer(layer):
        yield from source_problems(layer, search)
    yield from transform_problems(layer, search)
    if layer.type == "Python" and known.python:
        yield from _python(layer, search)


def _refused(net: Any, file: str, known: Known) -> list[str]:
    """The layers that are not computed, a sentence each with its place."""
    return [
        f"{file}{line_of_layer(file, layer.name)}: layer {layer.name!r} ({layer.type}) {known.refused[layer.type]}"
        for layer in net.layer
        if type_here(layer) in known.refused and layer.type not in FED_FROM_OUTSIDE
    ]


def _train(net: Any) -> Iterator[str]:
    outside = [layer for layer in net.layer if layer.type in FED_FROM_OUTSIDE]
    for layer in outside:
        yield (
            f"the train net gets its records from outside (layer {layer.name!r}, type {layer.type}): "
            "give it a Data, HDF5Data or ImageData layer"
        )
    if not outside and not data_layers(net):
        yield "the train net has no data layer: give it a Data, HDF5Data or ImageData layer"
    elif not outside and not any(
        batch_of(layer) or layer.type in SOURCES for layer in data_layers(net)
    ):
        yield (
            "the batch size of the train net is not known: "
            "write batch_size in the param_str of its Python data layer"
        )
    for layer in data_layers(net):
        if layer.type not in SOURCES and not 0 <= batch_of(layer) <= LARGEST_INT32:
            yield (
                f"layer {layer.name!r} has the batch {batch_of(layer)}, more than Caffe can count: "
                f"use 1 to {LARGEST_INT32}"
            )
    if not any(_has_loss(layer) for layer in net.layer):
        yield "the train net has no loss: add a loss layer such as SoftmaxWithLoss"


def _test(net: Any) -> Iterator[str]:
    if not data_layers(net):
        yield "the test net has no data layer: give it one with `include { phase: TEST }`"


def _has_loss(layer: Any) -> bool:
    if layer.loss_weight:
        return any(layer.loss_weight)
    return bool(layer.type.endswith("Loss"))


def _python(layer: Any, search: SearchPath) -> Iterator[str]:
    module = layer.python_param.module
    if not module or not layer.python_param.layer:
        yield "needs python_param with module and layer: add them"
        return
    sys.path.insert(0, str(search.folder))
    try:
        found = importlib.util.find_spec(module.partition(".")[0]) is not None
    finally:
        sys.path.remove(str(search.folder))
    if not found:
        yield (
            f"needs the Python module {module!r}, which is neither in {search.folder} nor "
            "installed: put it there, or install it and allow it with --python-layers"
        )
