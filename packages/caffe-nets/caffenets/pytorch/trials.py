"""Computes a net, and the files that are made of it, in this process."""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from caffenets.deploy import Deploy
from caffenets.export.trials import Arrays, Computed
from caffenets.graph import NetGraph
from caffenets.layer import LayerContext
from caffenets.layers.prior_box import PriorBox
from caffenets.onnx_session import opened
from caffenets.pytorch.module import CaffeModule, check_memory


class TrialsHere:
    """Implements `caffenets.export.trials.Trials`; what computes the net is this package."""

    judge = "caffenets"

    def engine(self, nets: Sequence[tuple[Any, Arrays]], weights: Path | None) -> list[Computed]:
        return [self._computed(net, inputs, weights) for net, inputs in nets]

    def _computed(self, net: Any, inputs: Arrays, weights: Path | None) -> Computed:
        deploy = Deploy(net, {name: values.shape for name, values in inputs.items()})
        module = CaffeModule(deploy)
        if weights is not None:
            module.load_weights(weights)
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(values) for values in inputs.values()))
        graph = module.graph
        layers = [wired.layer for wired in graph.wired]
        return Computed(
            graph.shapes,
            {
                one.name: tuple(tuple(blob.shape) for blob in one.blobs)
                for one in layers
                if one.blobs
            },
            {name: values.numpy() for name, values in outputs.items()},
            {
                str(one.param.top[0]): one.forward(
                    [torch.zeros(graph.shapes[bottom]) for bottom in one.param.bottom], []
                )[0].tolist()
                for one in layers
                if isinstance(one, PriorBox)
            },
        )

    def onnx(self, file: Path, inputs: Sequence[Arrays]) -> list[Arrays]:
        session = opened(file)
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, dict(one)), strict=True)) for one in inputs]

    def torch(
        self,
        file: Path,
        inputs: Sequence[Arrays],
        names: Sequence[str],
        values: Arrays,
        owners: Mapping[str, str],
    ) -> list[Arrays]:
        save_state_dict(file, values, owners)
        module = module_in(file)
        with torch.no_grad():
            return [on_module(module, one, names) for one in inputs]


def check_computable(net: Any) -> None:
    """Raises `EngineError` for a deploy net that is not to be computed here, before anything is."""
    check_memory(NetGraph(net, "TEST", LayerContext("TEST")))


def save_state_dict(file: Path, values: Arrays, owners: Mapping[str, str]) -> None:
    """Write beside this module the values of each key, which are those of its owner. Raises `OSError`."""
    tensors = {name: torch.tensor(array) for name, array in values.items()}
    beside = file.with_suffix(".pt")
    try:
        torch.save({key: tensors[owner] for key, owner in owners.items()}, beside)
    except RuntimeError as error:  # of PyTorch's own writer
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(beside)) from error


def module_in(file: Path) -> Any:
    """The module that this file of ours makes, with its state dict."""
    spec = importlib.util.spec_from_file_location("exported", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def on_module(module: Any, inputs: Arrays, names: Sequence[str]) -> Arrays:
    """Its outputs, by these names."""
    found = module(*(torch.from_numpy(values) for values in inputs.values()))
    named = found if isinstance(found, dict) else {names[0]: found}
    return {name: one.numpy() for name, one in named.items()}
