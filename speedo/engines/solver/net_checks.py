"""Checks a net for what Caffe would refuse before it reads a record.

Caffe: net.cpp, Init; layer_factory.hpp, CreateLayer.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from caffenets.data_layers import FED_FROM_OUTSIDE, SOURCES, batch_of, data_layers, is_data_layer
from caffenets.known_types import type_here
from caffenets.prototxt.forks import about_layer
from caffenets.prototxt.text import did_you_mean, line_of_layer
from speedo.engines.layer_types import layer_types, refusals
from speedo.engines.solver.paths import SearchPath
from speedo.engines.solver.source_checks import file_problem, source_problems, transform_problems
from speedo.system.bounds import LARGEST_INT32, EngineName

_TRAIN: Final = "train net"
_TEST: Final = "test net"


def net_problems(
    parameter: Any, search: SearchPath, net_files: Sequence[str], engine: EngineName = "caffe"
) -> list[str]:
    """Every problem in the nets of an inlined SolverParameter and in the files that they name.

    Each sentence begins with the net's file; a problem of both train and test net is reported once.
    """
    nets = [(_TRAIN, parameter.train_net_param)]
    nets += [(_TEST, net) for net in parameter.test_net_param]
    found: list[str] = []
    computed = set(layer_types(engine)) - refusals(engine).keys()
    for (role, net), file in zip(nets, net_files, strict=False):
        found += _refused(net, file, engine)
        found += [f"{file}: {text}" for text in _layers(net, search, engine)]
        # A layer of another Caffe may bring the records, or be the loss.
        if all(layer.type in computed or not about_layer(layer.type, ()) for layer in net.layer):
            found += [f"{file}: {text}" for text in (_train(net) if role == _TRAIN else _test(net))]
    for weights in (name.strip() for names in parameter.weights for name in names.split(",")):
        found += file_problem("the solver names the weights", weights, search)
    return list(dict.fromkeys(found))


def problems_of_tests(
    parameter: Any, search: SearchPath, net_files: Sequence[str], engine: EngineName = "caffe"
) -> list[str]:
    """As `net_problems`, of the test nets alone; `net_files` are theirs."""
    found: list[str] = []
    for net, file in zip(parameter.test_net_param, net_files, strict=True):
        found += _refused(net, file, engine)
        found += [f"{file}: {text}" for text in (*_layers(net, search, engine), *_test(net))]
    return list(dict.fromkeys(found))


def problems_of_deploy(
    net: Any, search: SearchPath, file: str, engine: EngineName = "caffe"
) -> list[str]:
    """As `net_problems`, of a net whose records come from outside."""
    said = (f"{file}: {text}" for text in _layers(net, search, engine))
    return [*_refused(net, file, engine), *said]


def _layers(net: Any, search: SearchPath, engine: EngineName) -> Iterator[str]:
    known = layer_types(engine)
    tops: list[str] = []
    for layer in net.layer:
        name = f"layer {layer.name!r}"
        if layer.type not in known:
            other = about_layer(layer.type, layer_types("torch"))
            suggestion = f": {other}" if other else did_you_mean(layer.type, known)
            yield f"{name} has the unknown type {layer.type!r}{suggestion or ', none of BVLC Caffe: correct it'}"
        for bottom in layer.bottom:
            if bottom not in tops:
                suggestion = did_you_mean(bottom, tops) or ": correct it"
                yield f"{name} reads {bottom!r}, which no earlier layer makes{suggestion}"
        for place, top in enumerate(layer.top):
            # In place means: the same blob in the same position (Caffe: net.cpp, AppendTop).
            if top in tops and top not in layer.bottom[place : place + 1]:
                yield f"{name} makes {top!r}, which another layer makes, too: rename one"
        tops += layer.top
        if is_data_layer(layer):
            yield from (f"{name} {text}" for text in source_problems(layer, search))
        yield from (f"{name} {text}" for text in transform_problems(layer, search))
        if layer.type == "Python" and engine == "caffe":
            yield from (f"{name} {text}" for text in _python(layer, search))


def _refused(net: Any, file: str, engine: EngineName) -> list[str]:
    """The layers that the engine does not have, a sentence each with its place."""
    return [
        f"{file}{line_of_layer(file, layer.name)}: layer {layer.name!r} ({layer.type}) {refusals(engine)[layer.type]}"
        for layer in net.layer
        if type_here(layer) in refusals(engine) and layer.type not in FED_FROM_OUTSIDE
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
