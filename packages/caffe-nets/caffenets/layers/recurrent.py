"""Recurrent layers: LSTM, RNN, and LSTM's inner LSTMUnit.

Bottoms are x (T, N, ...) and the continuation marks `cont` (T, N): 0 where a sequence begins. A static input (N, ...)
may follow, and with `expose_hidden` the state before the first step. Without `expose_hidden` a batch continues from the
last step of the one before. No gradient passes from batch to batch, nor through exposed states.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from caffenets.layer import BlobSpec, Layer, LayerContext, Shape
from caffenets.layers.axes import count
from caffenets.torch_later import Function, Tensor, functional, torch


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
    def step(
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
            state = self.step(inputs[part].float(), marks[part], state, recurrent)
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


class LSTM(Recurrent):
    """h_t, c_t = LSTMUnit(c_{t-1}, W_hc (cont h_{t-1}) + W_xc x_t + b_c [+ W_static x_static]); states are h and c.

    Blobs: W_xc (4D, x), b_c (4D), with a static input its weight (4D, x_static), W_hc (4D, D); gates in the order
    i, f, o, g. Caffe: layers/lstm_layer.cpp.
    """

    states = 2
    gates = 4

    def step(
        self, inputs: Tensor, marks: Tensor, state: list[Tensor], blobs: Sequence[Tensor]
    ) -> list[Tensor]:
        hidden, cell = state
        gates = inputs + functional.linear(hidden * marks, blobs[0])
        cell, hidden = _Unit.apply(cell, gates.float(), marks)  # type: ignore[no-untyped-call]
        return [hidden, cell]


class RNN(Recurrent):
    """h_t = tanh(W_hh (cont h_{t-1}) + W_xh x_t + b_h [+ W_static x_static]), top tanh(W_ho h_t + b_o).

    Blobs: W_xh (D, x), b_h (D), with a static input its weight (D, x_static), W_hh (D, D), W_ho (D, D), b_o (D).
    Caffe: layers/rnn_layer.cpp.
    """

    def output_blobs(self, size: int) -> list[Shape]:
        return [(size, size), (size,)]

    def step(
        self, inputs: Tensor, marks: Tensor, state: list[Tensor], blobs: Sequence[Tensor]
    ) -> list[Tensor]:
        return [(inputs + functional.linear(state[0] * marks, blobs[0])).tanh()]

    def outputs(self, hidden: Tensor, blobs: Sequence[Tensor]) -> Tensor:
        return functional.linear(hidden, blobs[1], blobs[2]).tanh()


LAYERS: Final = (LSTMUnit, LSTM, RNN)
