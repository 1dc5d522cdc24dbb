"""A deploy net of Caffe as a module of PyTorch, with its trained weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caffenets.deploy import Deploy
from caffenets.errors import ConfigError, EngineError
from caffenets.files import free_memory
from caffenets.graph import NetGraph
from caffenets.layer import Layer, LayerContext, Shape
from caffenets.layers.inputs import Input
from caffenets.pytorch.layer_params import check_shared, first_values
from caffenets.weight_files.caffemodel import matched, read_model
from caffenets.weight_files.stored import FLOAT32


def check_memory(graph: NetGraph) -> None:
    """Raises `EngineError` where parameters, and the values that a pass needs at one time, exceed the free memory."""
    parameters = sum(prod(blob.shape) for wired in graph.wired for blob in wired.layer.blobs)
    alive = most = 0
    for wired in graph.wired:
        alive += sum(prod(graph.all_shapes[number]) for number in wired.tops)
        most = max(most, alive)
        alive -= sum(prod(graph.all_shapes[number]) for number in wired.used_up)
    needed, free = FLOAT32.itemsize * (parameters + most), free_memory()
    if needed > free:
        raise EngineError(
            f"the net needs {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free: give a smaller batch, "
            "or correct the sizes of its layers"
        )


class CaffeModule(torch.nn.Module):
    """Computes as Caffe does in its TEST phase. Parameters are called LAYER/INDEX, with _ for each dot in a name.

    `inputs` are the shapes of what `forward` takes, by name and in their order; other batches and sizes may be given.
    Without weights the values are drawn by the net's fillers. Raises `EngineError`, which names a layer.
    """

    def __init__(self, deploy: Deploy) -> None:
        super().__init__()
        self.inputs: Mapping[str, Shape] = dict(deploy.inputs)
        self._net, self._computed = deploy.net, deploy.inputs
        self.graph = NetGraph(deploy.net, "TEST", LayerContext("TEST"))
        self._names: list[list[str]] = []  # of each layer's blobs those of the parameters
        owners: dict[str, str] = {}
        places: dict[str, tuple[Layer, int]] = {}
        check_memory(self.graph)
        for wired in self.graph.wired:
            layer, own = wired.layer, list[str]()
            for number, spec in enumerate(layer.blobs):
                name = f"{layer.name}/{number}".replace(".", "_")
                shared = layer.param_name(number)
                own.append(owners.setdefault(shared, name) if shared else name)
                if own[-1] != name:
                    check_shared(layer, number, *places[own[-1]])
                elif name in places:
                    raise layer.refuse(
                        f"has the name of another layer with parameters ({name}): rename one"
                    )
                else:
                    places[name] = layer, number
                    values = torch.zeros(tuple(spec.shape))
                    first_values(values, layer, number, spec)
                    kept = values if spec.statistic else torch.nn.Parameter(values)
                    self.register_buffer(name, kept) if spec.statistic else setattr(
                        self, name, kept
                    )
            self._names.append(own)

    def load_weights(self, weights: Path | str) -> None:
        """Take the values of a `.caffemodel` or a `.caffemodel.h5`, by the names of layers, as Caffe does.

        Layers that the file does not have keep theirs. Raises `EngineError` for other shapes, or a damaged file.
        """
        blobs, shared, places = [], list[tuple[str, int]](), dict[tuple[str, int], str]()
        for wired, names in zip(self.graph.wired, self._names, strict=True):
            for number, (spec, name) in enumerate(zip(wired.layer.blobs, names, strict=True)):
                key = wired.layer.name, number
                blobs.append((*key, tuple(spec.shape)))
                if name in places.values():
                    shared.append(key)
                places[key] = name
        layers = [wired.layer.name for wired in self.graph.wired]
        found = matched(read_model(Path(weights)), blobs, layers=layers, shared=shared)
        values = dict(self.named_parameters()) | dict(self.named_buffers())
        with torch.no_grad():
            for key, stored in found.items():
                own = values[places[key]]
                own.copy_(torch.tensor(stored.read()).view(own.shape))

    def forward(self, *given: Tensor) -> dict[str, Tensor]:
        """The outputs by name, of one tensor for each of the `inputs`; they are those that no layer reads."""
        if len(given) != len(self.inputs):
            raise ConfigError(
                f"{len(given)} tensors are given, and the net has the inputs {', '.join(self.inputs)}"
            )
        graph = self._at_sizes(
            {n: tuple(one.shape) for n, one in zip(self.inputs, given, strict=True)}
        )
        tops = dict(zip(self.inputs, given, strict=True))
        values: list[Tensor | None] = [None] * len(graph.all_shapes)
        for wired, names in zip(graph.wired, self._names, strict=True):
            layer = wired.layer
            if isinstance(layer, Input):
                made: Sequence[Tensor] = [tops[name] for name in layer.param.top]
            else:
                bottoms: list[Any] = [values[number] for number in wired.bottoms]
                blobs = [
                    getattr(self, name).view(tuple(spec.shape))
                    for name, spec in zip(names, layer.blobs, strict=True)
                ]
                made = layer.forward(bottoms, blobs)
            for number, top in zip(wired.tops, made, strict=True):
                values[number] = top
            for number in wired.used_up:
                values[number] = None
        return {name: values[number] for name, number in graph.output_numbers.items()}  # type: ignore[misc]

    def _at_sizes(self, shapes: Mapping[str, Shape]) -> NetGraph:
        """That of the last pass, or another one for inputs of other shapes."""
        if shapes != self._computed:
            net = type(self._net)()
            net.CopyFrom(self._net)
            for layer in net.layer:
                if layer.type == "Input":
                    del layer.input_param.shape[:]
                    for top in layer.top:
                        layer.input_param.shape.add().dim.extend(shapes[top])
            graph = NetGraph(net, "TEST", LayerContext("TEST"))
            for old, new in zip(self.graph.wired, graph.wired, strict=True):
                if [one.shape for one in old.layer.blobs] != [one.shape for one in new.layer.blobs]:
                    raise new.layer.refuse(
                        "needs other weights for inputs of these sizes: give those of the net"
                    )
            self.graph, self._computed = graph, dict(shapes)
        return self.graph
