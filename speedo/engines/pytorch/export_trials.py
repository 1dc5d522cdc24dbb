"""What an export has PyTorch do, in a process of its own: compute a deploy net, read a batch, run a module's file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from google.protobuf import text_format

from speedo.engines.pytorch.layers.inputs import Input
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.scoring import Check, load_checked
from speedo.engines.pytorch.state_dict_file import read_state_dict
from speedo.engines.schema import caffe_schema
from speedo.system.files import written_whole

Arrays = Mapping[str, npt.NDArray[Any]]


def compute(
    request: dict[str, Any], inputs: Arrays, untouched: float, check: Check
) -> tuple[Any, Arrays]:
    """The answer to a request of `speedo.engines.export.trial`, and arrays; the rest is as for `Scorer`.

    Raises `EngineError`, `SolverError`.
    """
    kind = request["kind"]
    if kind == "save":
        return None, _save(Path(request["file"]), inputs, request["owners"])
    if kind == "read":
        return None, read_state_dict(Path(request["file"]))
    with torch.no_grad():
        if kind == "engine":
            return _on_the_engine(request, inputs, untouched, check)
        if kind == "records":
            return None, _records(request)
        return None, _on_a_module(request, inputs)


def _on_the_engine(
    request: dict[str, Any], inputs: Arrays, untouched: float, check: Check
) -> tuple[Any, Arrays]:
    parameter: Any = caffe_schema().NetParameter()
    text_format.Parse(request["net"], parameter)
    net = Net(parameter, "TEST")
    if request["weights"] is not None:
        load_checked(Path(request["weights"]), net, untouched, check)
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
    return {"shapes": shapes, "blobs": blobs}, {n: one.numpy() for n, one in outputs.items()}


def _records(request: dict[str, Any]) -> Arrays:
    parameter: Any = caffe_schema().SolverParameter()
    text_format.Parse(request["solver"], parameter)
    net = Net(parameter.test_net_param[0], "TEST", folder=Path(request["folder"]))
    try:
        return {name: one.float().numpy() for name, one in net.next_batch().items()}
    finally:
        net.close()


def _on_a_module(request: dict[str, Any], inputs: Arrays) -> Arrays:
    file = Path(request["file"])
    spec = importlib.util.spec_from_file_location("exported", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.load()(*(torch.from_numpy(values) for values in inputs.values()))
    named = found if isinstance(found, dict) else {request["names"][0]: found}
    return {name: one.numpy() for name, one in named.items()}


def _save(file: Path, values: Arrays, owners: Mapping[str, str]) -> Arrays:
    tensors = {key: torch.from_numpy(array) for key, array in values.items()}
    with written_whole(file) as out:
        torch.save({key: tensors[owner] for key, owner in owners.items()}, out)
    return {}
