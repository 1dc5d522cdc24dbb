"""LSTM, RNN and LSTMUnit: the steps one after another, because ONNX's recurrent operators have no continuation marks.

Each call begins with states of 0, or with those that the net is given (`expose_hidden`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from caffenets.export.layer_export import Array, LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Shape, constant
from caffenets.export.torch_code import Code, listed

_UNIT: Final = '''
def lstm_unit(cell, gates, marks):
    """A step of an LSTM as Caffe has it: gates in the order i, f, o, g; `marks` is 0 where a sequence begins."""
    i, f, o, g = gates.chunk(4, -1)
    cell = marks * torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return cell, torch.sigmoid(o) * torch.tanh(cell)
'''
_LSTM: Final = '''
def lstm(weights, x, cont, static=None, hidden=None, cell=None):
    """Caffe's LSTM: x (steps, batch, ...), cont (steps, batch); all hidden states, and the last ones."""
    marks = cont[..., None]
    inputs = F.linear(x.flatten(2), weights.weight_x, weights.bias)
    if static is not None:
        inputs = inputs + F.linear(static.flatten(1), weights.weight_static)
    if hidden is None:
        hidden = cell = x.new_zeros(1, x.shape[1], weights.weight_h.shape[1])
    states = []
    for step in range(len(x)):
        gates = inputs[step] + F.linear(hidden * marks[step], weights.weight_h)
        cell, hidden = lstm_unit(cell, gates, marks[step])
        states.append(hidden)
    return torch.cat(states), hidden, cell
'''
_RNN: Final = '''
def rnn(weights, x, cont, static=None, hidden=None):
    """Caffe's RNN: x (steps, batch, ...), cont (steps, batch); all outputs, and the last hidden state."""
    marks = cont[..., None]
    inputs = F.linear(x.flatten(2), weights.weight_x, weights.bias)
    if static is not None:
        inputs = inputs + F.linear(static.flatten(1), weights.weight_static)
    if hidden is None:
        hidden = x.new_zeros(1, x.shape[1], weights.weight_h.shape[1])
    states = []
    for step in range(len(x)):
        hidden = torch.tanh(inputs[step] + F.linear(hidden * marks[step], weights.weight_h))
        states.append(hidden)
    return torch.tanh(F.linear(torch.cat(states), weights.weight_o, weights.bias_o)), hidden
'''


class _Recurrent(LayerExport):
    states: ClassVar[int] = 1
    call: ClassVar[str]
    helpers: ClassVar[tuple[str, ...]]
    own: ClassVar[tuple[str, ...]] = ()  # blobs behind the recurrent weight

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        static = ("weight_static",) if count > 3 + len(cls.own) else ()
        return ("weight_x", "bias", *static, "weight_h", *cls.own)

    @property
    def _exposed(self) -> bool:
        return bool(self.param.recurrent_param.expose_hidden)

    def _static(self) -> bool:
        return len(self.step.blobs) > 3 + len(self.own)

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        (steps,) = constant(self.step.bottoms[0][:1], "numbers of steps")
        x = bottoms[0]
        if len(self.step.bottoms[0]) != 3:
            x = graph.add("Reshape", x, graph.integers(0, 0, -1))
        inputs = graph.add("Add", _product(graph, x, 0), graph.blob(1))
        if self._static():
            rows = graph.add("Flatten", bottoms[2])
            inputs = graph.add("Add", inputs, _product(graph, rows, 2))
        marks = graph.add("Unsqueeze", bottoms[1], graph.integers(2))
        state = list(bottoms[len(bottoms) - self.states :]) if self._exposed else []
        hidden = []
        given = zip(_cut(graph, inputs, steps), _cut(graph, marks, steps), strict=True)
        for part, mark in given:
            if state:
                before = graph.add("Mul", state[0], mark)
                index = 3 if self._static() else 2
                part = graph.add("Add", part, _product(graph, before, index))
            state = self.stepped(graph, part, mark, state)
            hidden.append(state[0])
        top = graph.add("Concat", *hidden, axis=0) if steps > 1 else hidden[0]
        return [self.outputs(graph, top), *(state if self._exposed else ())]

    @abstractmethod
    def stepped(self, graph: Graph, gates: str, mark: str, state: list[str]) -> list[str]:
        """The state after a step; an empty one is 0."""

    def outputs(self, graph: Graph, hidden: str) -> str:
        return hidden

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        for helper in self.helpers:
            code.helper(helper)
        code.parameters()
        given = list(bottoms[:2])
        if self._static():
            given.append(bottoms[2])
        if self._exposed:
            names = ("hidden", "cell")[: self.states]
            exposed = bottoms[len(bottoms) - self.states :]
            given += [f"{name}={one}" for name, one in zip(names, exposed, strict=True)]
        called = f"{self.call}(self.{self.step.name}, {listed(given)})"
        return [called if self._exposed else f"{called}[0]"]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        if at != 1:
            return None
        marks = rng.integers(0, 2, shape)
        marks[0] = 0  # the states of the batch before have no part in it
        return marks


class LSTM(_Recurrent):
    states, call, helpers = 2, "lstm", (_UNIT, _LSTM)

    def stepped(self, graph: Graph, gates: str, mark: str, state: list[str]) -> list[str]:
        cell, hidden = _unit(graph, gates, mark, state[1] if state else None)
        return [hidden, cell]


class RNN(_Recurrent):
    call, helpers, own = "rnn", (_RNN,), ("weight_o", "bias_o")

    def stepped(self, graph: Graph, gates: str, mark: str, state: list[str]) -> list[str]:
        return [graph.add("Tanh", gates)]

    def outputs(self, graph: Graph, hidden: str) -> str:
        last = len(self.step.blobs)
        product = _product(graph, hidden, last - 2)
        return graph.add("Tanh", graph.add("Add", product, graph.blob(last - 1)))


class LSTMUnit(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        cell, gates, cont = bottoms
        mark = graph.add("Unsqueeze", cont, graph.integers(2))
        return list(_unit(graph, gates, mark, cell))

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        code.helper(_UNIT)
        cell, gates, cont = bottoms
        return [f"lstm_unit({cell}, {gates}, {cont}[..., None])"]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        return rng.integers(0, 2, shape) if at == 2 else None


def _unit(graph: Graph, gates: str, mark: str, before: str | None) -> tuple[str, str]:
    """Cell and hidden state."""
    i, f, o, g = graph.add_several("Split", [gates], 4, axis=-1)
    cell = graph.add("Mul", graph.add("Sigmoid", i), graph.add("Tanh", g))
    if before is not None:
        kept = graph.add("Mul", graph.add("Mul", mark, graph.add("Sigmoid", f)), before)
        cell = graph.add("Add", kept, cell)
    return cell, graph.add("Mul", graph.add("Sigmoid", o), graph.add("Tanh", cell))


def _product(graph: Graph, x: str, index: int) -> str:
    """x W' with the layer's blob of this index."""
    weight = graph.add("Transpose", graph.blob(index), perm=[1, 0])
    return graph.add("MatMul", x, weight)


def _cut(graph: Graph, x: str, steps: int) -> list[str]:
    """The steps, each with an axis of 1 in front."""
    if steps == 1:
        return [x]
    return graph.add_several("Split", [x, graph.integers(*[1] * steps)], steps, axis=0)


EXPORTS: Final = (LSTM, RNN, LSTMUnit)
