"""Softmax, Eltwise, ArgMax and Reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from caffenets.export.layer_export import LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Dims, axis_of, constant, option
from caffenets.export.torch_code import Code, listed

_ARG_MAX: Final = '''
def arg_max(x, axis, top_k):
    """The indices and values of the greatest along `axis`; of equal ones the greater index comes first, as in Caffe."""
    values, order = x.flip(axis).sort(dim=axis, descending=True, stable=True)
    return (x.shape[axis] - 1 - order.narrow(axis, 0, top_k)).float(), values.narrow(axis, 0, top_k)
'''


class Softmax(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Softmax", bottoms[0], axis=self._axis())]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"torch.softmax({bottoms[0]}, {self._axis()})"]

    def _axis(self) -> int:
        return axis_of(self.param.softmax_param.axis, self.step.bottoms[0])


class Eltwise(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        operation = option(self.param.eltwise_param, "operation")
        if operation == "MAX":
            return [graph.add("Max", *bottoms)]
        factors = list(self.param.eltwise_param.coeff) or [1.0] * len(bottoms)
        parts = [
            one if factor == 1 else graph.add("Mul", one, graph.constant(factor))
            for one, factor in zip(bottoms, factors, strict=True)
        ]
        top = parts[0]
        for part in parts[1:]:
            top = graph.add("Mul" if operation == "PROD" else "Add", top, part)
        return [top]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        operation = option(self.param.eltwise_param, "operation")
        if operation == "PROD":
            return [" * ".join(bottoms)]
        if operation == "MAX":
            top = bottoms[0]
            for other in bottoms[1:]:
                top = f"torch.maximum({top}, {other})"
            return [top]
        factors = list(self.param.eltwise_param.coeff) or [1.0] * len(bottoms)
        parts = [
            one if factor == 1 else f"{np.float32(factor)} * {one}"
            for one, factor in zip(bottoms, factors, strict=True)
        ]
        return [" + ".join(parts)]


class ArgMax(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        x, axis, size = bottoms[0], self._axis(), self._size()
        if not self._along:
            x = graph.add("Flatten", x)
        # From behind: TopK takes the smaller of equal ones' indices first, Caffe the greater.
        back = [graph.integers(-1), graph.integers(-(2**31)), graph.integers(axis)]
        turned = graph.add("Slice", x, *back, graph.integers(-1))
        given = [turned, graph.integers(self.param.argmax_param.top_k)]
        values, order = graph.add_several("TopK", given, 2, axis=axis)
        places = graph.add("Cast", graph.add("Sub", graph.integers(size - 1), order), to=1)
        wanted = self.param.argmax_param.out_max_val
        if self._along:
            return [values if wanted else places]
        both = graph.add("Concat", places, values, axis=1) if wanted else places
        return [graph.reshaped(both, self.step.tops[0])]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        code.helper(_ARG_MAX)
        x = bottoms[0] if self._along else f"{bottoms[0]}.flatten(1)"
        found = f"arg_max({x}, {self._axis()}, {self.param.argmax_param.top_k})"
        wanted = self.param.argmax_param.out_max_val
        if self._along:
            return [f"{found}[{int(wanted)}]"]
        both = f"torch.cat({found}, 1)" if wanted else f"{found}[0]"
        sizes = listed([-1 if size is None else size for size in self.step.tops[0]])
        return [f"{both}.reshape({sizes})"]

    @property
    def _along(self) -> bool:
        """Whether it is along an axis, not over all of each record."""
        return bool(self.param.argmax_param.HasField("axis"))

    def _axis(self) -> int:
        param = self.param.argmax_param
        return axis_of(param.axis, self.step.bottoms[0]) if self._along else 1

    def _size(self) -> int:
        bottom = self.step.bottoms[0]
        sizes: Dims = (bottom[self._axis()],) if self._along else bottom[1:]
        return int(np.prod(constant(sizes, "sizes")))


class Reduction(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, x, axes = self.param.reduction_param, bottoms[0], self._axes()
        operation = option(param, "operation")
        if operation == "SUM":
            top = graph.add("ReduceSum", x, graph.integers(*axes), keepdims=0)
        else:
            op = {"ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}[operation]
            top = graph.add(op, x, axes=axes, keepdims=0)
        return [top if param.coeff == 1 else graph.add("Mul", top, graph.constant(param.coeff))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, axes = self.param.reduction_param, tuple(self._axes())
        inside, call = {
            "SUM": ("{}", "sum"),
            "ASUM": ("{}.abs()", "sum"),
            "SUMSQ": ("{}.square()", "sum"),
            "MEAN": ("{}", "mean"),
        }[option(param, "operation")]
        top = f"{inside.format(bottoms[0])}.{call}({axes})"
        return [top if param.coeff == 1 else f"{top} * {np.float32(param.coeff)}"]

    def _axes(self) -> list[int]:
        bottom = self.step.bottoms[0]
        return list(range(axis_of(self.param.reduction_param.axis, bottom), len(bottom)))


EXPORTS: Final = (Softmax, Eltwise, ArgMax, Reduction)
