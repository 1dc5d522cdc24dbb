"""What an export has PyTorch do, in a process of its own: compute a deploy net, read a batch, run a module's file."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.pytorch.layers.inputs import Input
from caffenets.pytorch.layers.prior_box import PriorBox
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.scoring import net_blobs
from speedo.engines.weights_check import load_to_score

Arrays = Mapping[str, npt.NDArray[Any]]


def computing(request: dict[str, Any]) -> Callable[[Mapping[str, Any], Arrays], tuple[Any, Any]]:
    """What computes the runs of a request of `speedo.engines.export.trial`.

    Raises `EngineError`, `SolverError`.
    """
    torch.set_grad_enabled(False)
    kind = request["kind"]
    if kind == "records":
        return lambda run, inputs: (None, _records(request))
    if kind == "engine":
        weights = request["weights"]
        return lambda run, inputs: _on_the_engine(run["net"], inputs, weights)
    _save_state_dict(request)
    module = _loaded(Path(request["file"]))
    return lambda run, inputs: (None, _on_a_module(module, inputs, request["names"]))


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


def _save_state_dict(request: Mapping[str, Any]) -> None:
    with np.load(request["values"], allow_pickle=False) as stored:
        names = json.loads(stored["names"].tobytes())
        tensors = {name: torch.from_numpy(stored[f"a{at}"]) for at, name in enumerate(names)}
    values = {key: tensors[owner] for key, owner in request["owners"].items()}
    torch.save(values, Path(request["file"]).with_suffix(".pt"))


def _loaded(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("exported", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def _on_a_module(module: Any, inputs: Arrays, names: Sequence[str]) -> Arrays:
    found = module(*(torch.from_numpy(values) for values in inputs.values()))
    named = found if isinstance(found, dict) else {names[0]: found}
    return {name: one.numpy() for name, one in named.items()}
