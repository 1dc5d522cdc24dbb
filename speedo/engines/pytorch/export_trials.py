"""What an export has PyTorch do, in a process of its own: compute a deploy net, read a batch, run a module's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.export.trials import Arrays
from caffenets.layers.inputs import Input
from caffenets.layers.prior_box import PriorBox
from caffenets.pytorch.trials import module_in, on_module, save_state_dict
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.scoring import net_blobs
from speedo.engines.weights_check import load_to_score


def computing(
    request: dict[str, Any], values: Arrays
) -> Callable[[Mapping[str, Any], Arrays], tuple[Any, Any]]:
    """What computes the runs of a request of `speedo.engines.export.trial`; `values` are a module's.

    Raises `EngineError`, `SolverError`.
    """
    torch.set_grad_enabled(False)
    kind = request["kind"]
    if kind == "records":
        return lambda run, inputs: (None, _records(request))
    if kind == "engine":
        weights = request["weights"]
        return lambda run, inputs: _on_the_engine(run["net"], inputs, weights)
    file = Path(request["file"])
    save_state_dict(file, values, request["owners"])
    module = module_in(file)
    return lambda run, inputs: (None, on_module(module, inputs, request["names"]))


def _on_the_engine(text: str, inputs: Arrays, weights: str | None) -> tuple[Any, Arrays]:
    parameter: Any = caffe_pb2.NetParameter()
    text_format.Parse(text, parameter)
    net = Net(parameter, "TEST")
    if weights is not None:
        load_to_score(Path(weights), *net_blobs(net))
    for layer in net.layers:
        if isinstance(layer, Input):
            layer.values = [torch.from_numpy(inputs[top]) for top in layer.param.top]
    _, outputs = net.forward()
    net.check_indices()
    blobs: dict[str, list[list[int]]] = {}
    for name, own in net.blobs_of_layers():
        if own:
            blobs[name] = [list(blob.shape) for blob in own]
    shapes = {name: list(shape) for name, shape in net.shapes.items()}
    constants = {
        layer.param.top[0]: layer.forward([torch.zeros(shapes[b]) for b in layer.param.bottom], [])[
            0
        ].tolist()
        for layer in net.layers
        if isinstance(layer, PriorBox)
    }
    answer = {"shapes": shapes, "blobs": blobs, "constants": constants}
    return answer, {name: one.numpy() for name, one in outputs.items()}


def _records(request: dict[str, Any]) -> list[Arrays]:
    parameter: Any = caffe_pb2.SolverParameter()
    text_format.Parse(request["solver"], parameter)
    net = Net(parameter.test_net_param[0], "TEST", folder=Path(request["folder"]))
    try:
        return [
            {name: one.float().numpy() for name, one in net.next_batch().items()}
            for _ in range(request["batches"])
        ]
    finally:
        net.close()
