"""Recurrent layers: LSTM, RNN, and LSTM's inner LSTMUnit.

Bottoms are x (T, N, ...) and the continuation marks `cont` (T, N): 0 where a sequence begins. A static input (N, ...)
may follow, and with `expose_hidden` the state before the first step. Without `expose_hidden` a batch continues from the
last step of the one before. No gradient passes from batch to batch, nor through exposed states.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import constant
from caffenets.forms.torch_code import Code, listed
from caffenets.layer import Array, BlobSpec, Layer, LayerContext, Shape
from caffenets.layers.axes import count
from caffenets.torch_later import Function, Tensor, functional, torch

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


class LSTMUnit(Layer):
    """One step of an LSTM: from cell, the gates' inputs (i, f, o, g) and `cont` to cell and hidden state.

    Caffe: layers/lstm_unit_layer.cpp.
    """

    bottoms = (3, 3)
    tops = (2, 2)
    constant: ClassVar[Mapping[int, str]] = {2: "continuation marks"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        cell, gates, marks = bottoms
        if len(cell) != 3 or gates != (*cell[:2], 4 * cell[2]) or marks != cell[:2] or cell[0] != 1:
            raise self.refuse(
                f"has bottoms of shapes {cell}, {gates} and {marks}: needs (1, N, D), (1, N, 4 D) "
                "and (1, N)"
            )
        return [cell, cell]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        cell, gates, marks = bottoms
        return list(_Unit.apply(cell.float(), gates.float(), marks.detach()[..., None]))  # type: ignore[no-untyped-call]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        cell, gates, cont = bottoms
        mark = graph.add("Unsqueeze", cont, graph.integers(2))
        return list(_unit(graph, gates, mark, cell))

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        code.helper(_UNIT)
        cell, gates, cont = bottoms
        return [f"lstm_unit({cell}, {gates}, {cont}[..., None])"]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        return rng.integers(0, 2, shape) if at == 2 else None


class _Unit(Function):
    """Cell and hidden state after a step. The forget gate is f = cont sigmoid(x), its gradient Caffe's f (1 - f)."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, gates: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = gates.chunk(4, -1)
        i, f, o, g = i.sigmoid(), marks * f.sigmoid(), o.sigmoid(), g.tanh()
        cell = f * before + i * g
        squashed = cell.tanh()
        ctx.save_for_backward(before, i, f, o, g, squashed)
        return cell, o * squashed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        before, i, f, o, g, squashed = ctx.saved_tensors
        by_cell, by_hidden = gradients
        by_cell = by_cell + by_hidden * o * (1 - squashed * squashed)
        by_gates = [
            by_cell * g * i * (1 - i),
            by_cell * before * f * (1 - f),
            by_hidden * squashed * o * (1 - o),
            by_cell * i * (1 - g * g),
        ]
        return by_cell * f, torch.cat(by_gates, -1), None


class Recurrent(Layer):
    """What LSTM and RNN share: bottoms, tops and the state between batches. Caffe: layers/recurrent_layer.cpp."""

    bottoms = (2, 5)
    tops = (1, 3)
    constant: ClassVar[Mapping[int, str]] = {1: "continuation marks"}
    states = 1  # tensors of (1, N, D) that pass from step to step
    gates = 1  # times D: rows of the weight for x

    def __init__(self, param: Any, place: LayerContext) -> None:
        super().__init__(param, place)
        self._state: list[Tensor] = []

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.recurrent_param
        self._exposed, self._size = param.expose_hidden, param.num_output
        exposed = self.states if self._exposed else 0
        self._static = len(bottoms) == 3 + exposed
        if self._size < 1:
            raise self.refuse(f"has num_output {self._size}: set 1 or more")
        if len(bottoms) not in (2 + exposed, 3 + exposed) or len(self.param.top) != 1 + exposed:
            raise self.refuse(
                f"has {len(bottoms)} bottoms and {len(self.param.top)} tops: with expose_hidden: "
                f"{str(self._exposed).lower()} it needs {2 + exposed} bottoms, or one more for a "
                f"static input, and {1 + exposed} tops"
            )
        x, marks = bottoms[:2]
        if len(x) < 3 or marks != x[:2]:
            raise self.refuse(
                f"has bottoms of shapes {x} and {marks}: needs (T, N, ...) and (T, N), "
                "T steps of N sequences"
            )
        if self._static and (len(bottoms[2]) < 2 or bottoms[2][0] != x[1]):
            raise self.refuse(f"has a static input of shape {bottoms[2]}: needs ({x[1]}, ...)")
        state = (1, x[1], self._size)
        if any(shape != state for shape in bottoms[len(bottoms) - exposed :]):
            raise self.refuse(f"needs states of shape {state}, has {bottoms[-exposed:]}")
        rows = self.gates * self._size
        shapes = [(rows, count(x, 2)), (rows,)]
        if self._static:
            shapes.append((rows, count(bottoms[2], 1)))
        shapes += [(rows, self._size), *self.output_blobs(self._size)]
        self.blobs = [
            BlobSpec(shape, param.weight_filler if len(shape) > 1 else param.bias_filler)
            for shape in shapes
        ]
        return [(*x[:2], self._size), *[state] * exposed]

    def output_blobs(self, size: int) -> list[Shape]:
        """Shapes of further blobs."""
        return []

    @abstractmethod
    def advance(
        self, inputs: Tensor, marks: Tensor, state: list[Tensor], blobs: Sequence[Tensor]
    ) -> list[Tensor]:
        """The state after a step; `inputs` is what x adds to the gates, `blobs` begin with the recurrent weight."""

    def outputs(self, hidden: Tensor, blobs: Sequence[Tensor]) -> Tensor:
        """The top from all steps' hidden states."""
        return hidden

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = bottoms[0]
        marks = bottoms[1].detach()[..., None]
        inputs = functional.linear(x.flatten(2), blobs[0], blobs[1])
        if self._static:
            inputs = inputs + functional.linear(bottoms[2].flatten(1), blobs[2])
        recurrent = blobs[3 if self._static else 2 :]
        state = self._begin(bottoms)
        hidden = []
        for step in range(x.shape[0]):
            part = slice(step, step + 1)
            state = self.advance(inputs[part].float(), marks[part], state, recurrent)
            hidden.append(state[0])
        self._state = [tensor.detach() for tensor in state]
        top = self.outputs(torch.cat(hidden), recurrent)
        return [top, *(self._state if self._exposed else ())]

    def _begin(self, bottoms: Sequence[Tensor]) -> list[Tensor]:
        if self._exposed:
            return [tensor.detach() for tensor in bottoms[-self.states :]]
        shape = (1, bottoms[0].shape[1], self._size)
        if [tuple(tensor.shape) for tensor in self._state] != [shape] * self.states:
            return [bottoms[0].new_zeros(shape, dtype=torch.float32)] * self.states
        return self._state

    call: ClassVar[str]

    helpers: ClassVar[tuple[str, ...]]

    own: ClassVar[tuple[str, ...]] = ()  # blobs behind the recurrent weight

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        static = ("weight_static",) if count > 3 + len(cls.own) else ()
        return ("weight_x", "bias", *static, "weight_h", *cls.own)

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        (steps,) = constant(self.step.bottoms[0][:1], "numbers of steps")
        x = bottoms[0]
        if len(self.step.bottoms[0]) != 3:
            x = graph.add("Reshape", x, graph.integers(0, 0, -1))
        inputs = graph.add("Add", _product(graph, x, 0), graph.blob(1))
        if self._static:
            rows = graph.add("Flatten", bottoms[2])
            inputs = graph.add("Add", inputs, _product(graph, rows, 2))
        marks = graph.add("Unsqueeze", bottoms[1], graph.integers(2))
        state = list(bottoms[len(bottoms) - self.states :]) if self._exposed else []
        hidden = []
        given = zip(_cut(graph, inputs, steps), _cut(graph, marks, steps), strict=True)
        for part, mark in given:
            if state:
                before = graph.add("Mul", state[0], mark)
                index = 3 if self._static else 2
                part = graph.add("Add", part, _product(graph, before, index))
            state = self.stepped(graph, part, mark, state)
            hidden.append(state[0])
        top = graph.add("Concat", *hidden, axis=0) if steps > 1 else hidden[0]
        return [self.onnx_outputs(graph, top), *(state if self._exposed else ())]

    @abstractmethod
    def stepped(self, graph: Graph, gates: str, mark: str, state: list[str]) -> list[str]:
        """The state after a step; an empty one is 0."""

    def onnx_outputs(self, graph: Graph, hidden: str) -> str:
        """The value of the top."""
        return hidden

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        for helper in self.helpers:
            code.helper(helper)
        code.parameters()
        given = list(bottoms[:2])
        if self._static:
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


class LSTM(Recurrent):
    """h_t, c_t = LSTMUnit(c_{t-1}, W_hc (cont h_{t-1}) + W_xc x_t + b_c [+ W_static x_static]); states are h and c.

    Blobs: W_xc (4D, x), b_c (4D), with a static input its weight (4D, x_static), W_hc (4D, D); gates in the order
    i, f, o, g. Caffe: layers/lstm_layer.cpp.
    """

    states = 2
    gates = 4

    def advance(
        self, inputs: Tensor, marks: Tensor, state: list[Tensor], blobs: Sequence[Tensor]
    ) -> list[Tensor]:
        hidden, cell = state
        gates = inputs + functional.linear(hidden * marks, blobs[0])
        cell, hidden = _Unit.apply(cell, gates.float(), marks)  # type: ignore[no-untyped-call]
        return [hidden, cell]

    call, helpers = "lstm", (_UNIT, _LSTM)

    def stepped(self, graph: Graph, gates: str, mark: str, state: list[str]) -> list[str]:
        cell, hidden = _unit(graph, gates, mark, state[1] if state else None)
        return [hidden, cell]


class RNN(Recurrent):
    """h_t = tanh(W_hh (cont h_{t-1}) + W_xh x_t + b_h [+ W_static x_static]), top tanh(W_ho h_t + b_o).

    Blobs: W_xh (D, x), b_h (D), with a static input its weight (D, x_static), W_hh (D, D), W_ho (D, D), b_o (D).
    Caffe: layers/rnn_layer.cpp.
    """

    def output_blobs(self, size: int) -> list[Shape]:
        return [(size, size), (size,)]

    def advance(
        self, inputs: Tensor, marks: Tensor, state: list[Tensor], blobs: Sequence[Tensor]
    ) -> list[Tensor]:
        return [(inputs + functional.linear(state[0] * marks, blobs[0])).tanh()]

    def outputs(self, hidden: Tensor, blobs: Sequence[Tensor]) -> Tensor:
        return functional.linear(hidden, blobs[1], blobs[2]).tanh()

    call, helpers, own = "rnn", (_RNN,), ("weight_o", "bias_o")

    def stepped(self, graph: Graph, gates: str, mark: str, state: list[str]) -> list[str]:
        return [graph.add("Tanh", gates)]

    def onnx_outputs(self, graph: Graph, hidden: str) -> str:
        last = len(self.step.blobs)
        product = _product(graph, hidden, last - 2)
        return graph.add("Tanh", graph.add("Add", product, graph.blob(last - 1)))


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


LAYERS: Final = (LSTMUnit, LSTM, RNN)
