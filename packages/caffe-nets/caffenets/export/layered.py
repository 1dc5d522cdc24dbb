"""A deploy net with its weights as exporters take it: its layers, values, inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from caffenets.errors import SolverError
from caffenets.export.transform import Transform
from caffenets.export.trials import Arrays
from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import (
    Dims,
    NoEqual,
    NoFreeBatch,
    Shape,
    Step,
    identifiers,
    owners_of,
    with_own_names,
)
from caffenets.forms.torch_code import Code
from caffenets.graph import NetGraph
from caffenets.known_types import type_here
from caffenets.layer import Layer, LayerContext, Values
from caffenets.layers import LAYERS
from caffenets.prototxt.text import line_of_layer
from caffenets.weight_files.caffemodel import Model, matched


class FixedBatchError(SolverError):
    """Layers that cannot be expressed while the batch is free."""


_CONTEXT: Final = LayerContext("TEST")


@dataclass(frozen=True, slots=True)
class Layered:
    """`dims` are the shapes between the layers; `values` the parameters by the keys of those that own them."""

    name: str
    origin: str
    layers: tuple[Layer, ...]
    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]
    values: Mapping[str, Values]

    @property
    def owners(self) -> dict[str, str]:
        """Of each key of a state dict the one whose values it has."""
        steps = [layer.step for layer in self.layers]
        return {key: owner for s in steps for key, owner in zip(s.keys, s.owners, strict=True)}

    @property
    def found(self) -> frozenset[str]:
        """The outputs that have a row for each thing that was found."""
        return found_in((layer.param for layer in self.layers), self.outputs)

    def as_onnx(self) -> bytes:
        """An ONNX file. Raises `SolverError` with each layer without an equal, `FixedBatchError`."""
        graph = Graph(self.values)
        present: dict[str, str] = {name: name for name in self.inputs}
        last = {top: at for at, layer in enumerate(self.layers) for top in layer.param.top}
        problems: list[tuple[Layer, NoEqual]] = []
        for at, layer in enumerate(self.layers):
            graph.begin(layer.step)
            try:
                made = layer.onnx(graph, [present.get(name, name) for name in layer.param.bottom])
            except NoEqual as error:
                problems.append((layer, error))
                continue
            names = {}
            for value, top in zip(made, layer.param.top, strict=False):
                # Only the last value of a name that layers write in place has it.
                is_last = last[top] == at and top not in self.inputs
                names[value] = top if is_last else f"{top}@{layer.param.name}"
            named = graph.end(names)
            present.update(
                (top, named[value]) for value, top in zip(made, layer.param.top, strict=False)
            )
        self._check(problems)
        outputs = {name: (present[name], dims) for name, dims in self.outputs.items()}
        return graph.model(self.name, self.inputs, outputs, self.found)

    def as_torch(self, title: str) -> str:
        """The text of a Python module. Raises `SolverError` with each layer without an equal, `FixedBatchError`."""
        blobs = [*self.inputs, *(top for layer in self.layers for top in layer.param.top)]
        code = Code(blobs)
        problems: list[tuple[Layer, NoEqual]] = []
        for layer in self.layers:
            code.begin(layer.step)
            try:
                self._check_shared(layer.step)
                bottoms = [code.variables[name] for name in layer.param.bottom]
                code.assign(layer.param.top, layer.source(code, bottoms))
            except NoEqual as error:
                problems.append((layer, error))
        self._check(problems)
        return code.text(title, self.inputs, self.outputs)

    def _check_shared(self, step: Step) -> None:
        for owner, shape in zip(step.owners, step.blobs, strict=True):
            if self.values[owner].shape != shape:
                raise NoEqual(f"shares {owner!r} in another shape, which a module cannot")

    def _check(self, problems: Sequence[tuple[Layer, NoEqual]]) -> None:
        """Raises `SolverError` with these problems, `FixedBatchError` if one is the free batch."""
        said = []
        for layer, error in problems:
            name, kind = layer.param.name, layer.param.type
            place = f"{self.origin}{line_of_layer(self.origin, name)}"
            said.append(f"{place}: layer {name!r} ({kind}) {error}")
        if said:
            of_batch = any(isinstance(error, NoFreeBatch) for _, error in problems)
            raise (FixedBatchError if of_batch else SolverError)(said)


def draw_inputs(net: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Random values for the inputs of a deploy net, such as its layers take."""
    drawn = {
        str(top): rng.random(tuple(shape.dim), np.float32) * 2 - 0.5
        for layer in net.layer
        if layer.type == "Input"
        for top, shape in zip(layer.top, layer.input_param.shape, strict=True)
    }
    for layer in net.layer:
        for at, name in enumerate(layer.bottom):
            if name in drawn and layer.type in LAYERS:
                made = LAYERS[layer.type](layer, _CONTEXT)
                values = made.draw(at, drawn[name].shape, rng)
                if values is not None:
                    drawn[name] = np.ascontiguousarray(values, np.float32)
    return drawn


def found_in(layers: Iterable[Any], outputs: Collection[str]) -> frozenset[str]:
    """Those of these outputs that have a row for each thing that one of the layers has found."""
    searching = [one for one in layers if one.type in LAYERS and LAYERS[one.type].searches]
    return frozenset(str(top) for one in searching for top in one.top).intersection(outputs)


def layered(
    net: Any,
    origin: str,
    dims: Mapping[str, Dims],
    outputs: Arrays,
    blobs: Mapping[str, Sequence[Shape]],
    model: Model | None,
    transforms: Mapping[str, Transform] | None = None,
    constants: Mapping[str, Sequence[Any]] | None = None,
) -> Layered:
    """The layers of a deploy net, and before them those of `transforms`, by inputs.

    Raises `SolverError` with each layer that no exporter knows.
    """
    net = with_own_names(net)
    transforms = transforms or {}
    before = [f"transform of {name}" for name in transforms]
    names = identifiers([*(str(layer.name) for layer in net.layer), *before])
    owners = owners_of(net, blobs)
    if problems := list(_unknown(net, origin)):
        raise SolverError(problems)
    layers = []
    for layer in NetGraph(net, "TEST", _CONTEXT).layers:
        if layer.param.type not in ("Input", "Silence"):
            shapes = tuple(blobs.get(layer.name, ()))
            layer.step = _step(
                layer.param, names, owners, dims, shapes, net, blobs, constants or {}
            )
            layers.append(layer)
    inputs = {str(top): dims[top] for one in net.layer if one.type == "Input" for top in one.top}
    keys = {
        (layer.param.name, at): key for layer in layers for at, key in enumerate(layer.step.keys)
    }
    values: dict[str, Values] = {}
    if model is not None:
        wanted = [
            (name, at, tuple(one)) for name, own in blobs.items() for at, one in enumerate(own)
        ]
        shared = {key for key, owner in owners.items() if key != owner}
        found = matched(model, wanted, layers=[str(one.name) for one in net.layer], shared=shared)
        for key, one in found.items():
            owner = owners[key]
            values[keys[owner]] = one.read().reshape(tuple(blobs[owner[0]][owner[1]]))
    first = []
    for name, transform in transforms.items():
        for layer, own in transform.layers(name, names[f"transform of {name}"], dims[name]):
            first.append(layer)
            values |= own
    layers = [*first, *layers]
    ends = {name: dims[name] for name in dims if name in outputs}
    return Layered(str(net.name), origin, tuple(layers), inputs, ends, values)


def _unknown(net: Any, origin: str) -> Iterator[str]:
    """A sentence about each layer of a type that no file has."""
    for layer in net.layer:
        if type_here(layer) not in LAYERS:
            yield (
                f"{origin}{line_of_layer(origin, layer.name)}: layer {layer.name!r} has the type {layer.type!r}, which "
                "no file of caffenets/layers has: remove the layer, or use --deploy alone"
            )


def _step(
    layer: Any,
    names: Mapping[str, str],
    owners: Mapping[tuple[str, int], tuple[str, int]],
    dims: Mapping[str, Dims],
    shapes: tuple[Shape, ...],
    net: Any,
    blobs: Mapping[str, Sequence[Shape]],
    constants: Mapping[str, Sequence[Any]],
) -> Step:
    params = {str(one.name): one for one in net.layer}

    def key(place: tuple[str, int]) -> str:
        owner = params[place[0]]
        count = len(blobs[place[0]])
        return f"{names[place[0]]}.{LAYERS[type_here(owner)].names(owner, count)[place[1]]}"

    places = [(str(layer.name), at) for at in range(len(shapes))]
    return Step(
        layer,
        names[layer.name],
        tuple(dims[name] for name in layer.bottom),
        tuple(dims[name] for name in layer.top),
        shapes,
        tuple(key(place) for place in places),
        tuple(key(owners[place]) for place in places),
        constants.get(layer.top[0]) if layer.top else None,
    )


def file_title(name: str, origin: str) -> str:
    """The first line of a module."""
    return f"{name or Path(origin).stem}, a net of Caffe, in PyTorch."
