"""Writes an ONNX file as a prototxt of plain BVLC layers and a `.caffemodel`, which compute as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from caffenets.declared import declared_in
from caffenets.errors import ConfigError, SolverError
from caffenets.export.differences import difference
from caffenets.export.exporting import write_files
from caffenets.export.layered import draw_inputs
from caffenets.export.trials import Trials
from caffenets.export.weights_back import check_model
from caffenets.forms.steps import Dims, Shape
from caffenets.from_onnx.constants import FOLDED, folded
from caffenets.from_onnx.graph_file import GraphFile, Node, read_graph
from caffenets.from_onnx.making import Blob, Net, NodeImport, NoLayer, Value
from caffenets.from_onnx.operators.convolution import with_zeros
from caffenets.prototxt.text import to_text
from caffenets.weight_files.caffemodel import write_model

_NONE: Final = "has no layer in BVLC's Caffe: leave it out of the net, or compute it outside"
_DAMAGE: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)


def import_net(
    file: Path, prototxt: Path, given: Mapping[str, Shape], trials: Trials | str, scratch: Path
) -> Iterator[str]:
    """Write the prototxt and beside it the `.caffemodel`; yields a line about each, and notes.

    `given` are shapes of inputs; `trials` computes both nets, or is a sentence why nothing does. Raises `ConfigError`,
    `EngineError`, with every node that Caffe has no layers for; then nothing is written.
    """
    model = prototxt.with_suffix(".caffemodel")
    for path in (model, prototxt):
        check_model(path)
    if file.suffix != ".onnx" or prototxt.suffix != ".prototxt":
        raise ConfigError(
            f"{file} --to {prototxt}: a net is read from a name that ends in .onnx, and written to one in .prototxt; "
            "for weights alone give --net"
        )
    graph = read_graph(file)
    net = _translated(graph, _input_shapes(graph, given))
    whole = net.finished()
    parts = {model: scratch / "net.caffemodel", prototxt: scratch / "net.prototxt"}
    parts[prototxt].write_text(to_text(whole), encoding="utf-8")
    with parts[model].open("wb") as out:
        write_model(out, graph.name, net.layers)
    compared = trials
    if not isinstance(trials, str):
        compared = _compared(whole, parts[model], file, prototxt, trials)
    write_files(parts)
    yield from net.notes
    sides = (graph.inputs, graph.outputs)
    ends = [", ".join(f"{name} {net.shapes[name]}" for name in names) for names in sides]
    yield f"{prototxt}: {len(net.layers):,} layers, {' -> '.join(ends)}"
    count = sum(one.size for _, weights in net.layers for one in weights)
    yield f"{model}: {count:,} values; {compared}"


def _input_shapes(graph: GraphFile, given: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes of the inputs; a free first axis is the batch, and becomes 1. Raises `SolverError`."""
    if not graph.inputs or not graph.inputs.keys() >= given.keys():
        names = ", ".join(map(repr, graph.inputs)) or "none"
        raise SolverError(f"{graph.path}: its inputs are {names}: name one of these in --shape")
    problems, found = [], {}
    for name, dims in graph.inputs.items():
        sizes = given.get(name) or _assumed(dims)
        pairs = zip(dims, sizes or (), strict=False)
        if (
            not sizes
            or len(dims) not in (0, len(sizes))
            or any(a not in (None, b) for a, b in pairs)
        ):
            known = ", ".join("?" if size is None else str(size) for size in dims)
            problems.append(
                f"{graph.path}: the input {name!r} has the sizes ({known}): give all of them, as in "
                f"--shape {name}=1x3x224x224"
            )
        found[name] = sizes or ()
    if problems:
        raise SolverError(problems)
    return found


def _assumed(dims: Dims) -> Shape | None:
    """These sizes, with a batch of 1 where the first is free; None where another is."""
    sizes = (dims[0] or 1, *dims[1:]) if dims else (None,)
    fixed = tuple(size for size in sizes if size is not None)
    return fixed if len(fixed) == len(sizes) else None


@cache
def _operators() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for declared in declared_in("caffenets.from_onnx.operators", "OPERATORS"):
        found |= declared
    return found


def _translated(graph: GraphFile, inputs: Mapping[str, Shape]) -> Net:
    """The layers. Raises `SolverError` with every node that Caffe has none for."""
    net = Net(graph, inputs)
    problems = []
    for node in _needed(graph):
        try:
            made = _made(net, node)
        except (NoLayer, *_DAMAGE) as error:
            damage = f"cannot be read ({error!s:.200}): export it again"
            said = error if isinstance(error, NoLayer) else damage
            problems.append(f"{graph.path}: node {node.name!r} ({node.op}) {said}")
            shapes = {name: _assumed(graph.known.get(name, ())) for name in node.outputs}
            # So that what is behind it is looked at, too.
            made = [None if one is None else Blob(name, one) for name, one in shapes.items()]
        net.values.update(zip(node.outputs, made, strict=False))
    try:
        for name in () if problems else graph.outputs:
            one = net.values.get(name)
            if not isinstance(one, Blob):
                raise NoLayer("does not depend on the inputs: leave it out")
            net.values[name] = with_zeros(NodeImport(net, Node("", name, (), (), {})), one)
    except NoLayer as error:
        problems.append(f"{graph.path}: the output {name!r} {error}")
    if problems:
        raise SolverError(problems)
    return net


def _made(net: Net, node: Node) -> Sequence[Value]:
    """What a node makes, in the order of its outputs. Raises `NoLayer`."""
    work, operator = NodeImport(net, node), _operators().get(node.op)
    if operator is None and node.op not in FOLDED:
        raise NoLayer(_NONE)
    if lost := [name for name in node.inputs if name and name not in net.values]:
        raise NoLayer(f"reads {lost[0]!r}, which no node before it makes: export it again")
    given = {name: net.values[name] for name in node.inputs if name}
    if any(one is None for one in given.values()):  # what should make it is among the problems
        return [None] * len(node.outputs)
    found = folded(work)
    if found is not None:
        return found
    if operator is None:
        raise NoLayer(f"of what depends on the input: {_NONE}")
    for name, one in given.items():
        if node.op != "Conv" and isinstance(one, Blob):
            net.values[name] = with_zeros(work, one)
    made: Sequence[Value] = operator(work)
    return made


def _needed(graph: GraphFile) -> list[Node]:
    """The nodes that an output depends on."""
    wanted, found = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            found.append(node)
    return found[::-1]


def _compared(net: Any, model: Path, file: Path, prototxt: Path, trials: Trials) -> str:
    """How far the two nets are apart. Raises `EngineError` where that is too far."""
    drawn = draw_inputs(net, np.random.default_rng(1))
    try:
        (theirs,) = trials.onnx(file, [drawn])
    except Exception as error:  # of any class of ONNX Runtime
        return f"not compared, because ONNX Runtime does not compute {file} ({error!s:.200})"
    (ours,) = trials.engine([(net, drawn)], model)
    worst = difference(ours.outputs, theirs, str(prototxt), "ONNX Runtime")
    return f"differs from ONNX Runtime by at most {worst:.1e} on random records"
