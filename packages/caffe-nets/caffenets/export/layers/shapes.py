"""Layers that join, cut, choose or reshape, and those that only hand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from caffenets.export.layer_export import Array, LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Dims, NoFreeBatch, Shape, axis_of, constant
from caffenets.export.torch_code import Code, listed


class Split(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [bottoms[0]] * len(self.step.tops)

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [bottoms[0]] * len(self.step.tops)


class Concat(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Concat", *bottoms, axis=self._axis())]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"torch.cat([{', '.join(bottoms)}], {self._axis()})"]

    def _axis(self) -> int:
        return _joined(self.param.concat_param, "concat_dim", self.step.bottoms[0])


class Slice(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        axis, parts = self._parts()
        given = [bottoms[0], graph.integers(*parts)]
        return graph.add_several("Split", given, len(parts), axis=axis)

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        axis, parts = self._parts()
        if len(parts) == 1:
            return [bottoms[0]]
        return [f"torch.split({bottoms[0]}, {list(parts)}, {axis})"]

    def _parts(self) -> tuple[int, Shape]:
        axis = _joined(self.param.slice_param, "slice_dim", self.step.bottoms[0])
        return axis, constant(tuple(top[axis] for top in self.step.tops), "parts")


class Crop(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        cuts = self._cuts()
        if not cuts:
            return [bottoms[0]]
        axes, starts, ends = zip(*cuts, strict=True)
        given = [graph.integers(*starts), graph.integers(*ends), graph.integers(*axes)]
        return [graph.add("Slice", bottoms[0], *given)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        ranges = {axis: f"{start}:{end}" for axis, start, end in self._cuts()}
        last = max(ranges, default=-1) + 1
        within = [ranges.get(axis, ":") for axis in range(last)]
        return [f"{bottoms[0]}[{', '.join(within)}]" if within else bottoms[0]]

    def _cuts(self) -> list[tuple[int, int, int]]:
        """Axis, begin and end of each axis that is cut."""
        param, (data, _), (top,) = self.param.crop_param, self.step.bottoms, self.step.tops
        first = axis_of(param.axis, data)
        offsets = list(param.offset) or [0]
        offsets = offsets * (len(data) - first) if len(offsets) == 1 else offsets
        cuts = []
        for axis, offset in enumerate(offsets, first):
            if data[axis] == top[axis] and not offset:
                continue
            (size,) = constant((top[axis],), "cropped sizes")
            cuts.append((axis, int(offset), int(offset) + size))
        return cuts


class Flatten(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        first, last = self._ends()
        if first == 1 and last == len(self.step.bottoms[0]) - 1:
            return [graph.add("Flatten", bottoms[0])]
        return [graph.reshaped(bottoms[0], self.step.tops[0])]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        first, last = self._ends()
        whole = last == len(self.step.bottoms[0]) - 1
        return [f"{bottoms[0]}.flatten({first}{'' if whole else f', {last}'})"]

    def _ends(self) -> tuple[int, int]:
        param, bottom = self.param.flatten_param, self.step.bottoms[0]
        return axis_of(param.axis, bottom), axis_of(param.end_axis, bottom)


class Reshape(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.reshaped(bottoms[0], self.step.tops[0])]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.reshape({self.sizes()})"]

    def sizes(self) -> str:
        top = self.step.tops[0]
        if top.count(None) > 1:
            raise NoFreeBatch("has a top with two sizes that depend on the batch")
        return listed([-1 if size is None else size for size in top])


class Tile(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Tile", bottoms[0], graph.integers(*self._repeats()))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.repeat({listed(self._repeats())})"]

    def _repeats(self) -> list[int]:
        param, bottom = self.param.tile_param, self.step.bottoms[0]
        repeats = [1] * len(bottom)
        repeats[axis_of(param.axis, bottom)] = int(param.tiles)
        return repeats


class BatchReindex(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Gather", bottoms[0], graph.add("Cast", bottoms[1], to=7))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.index_select(0, {bottoms[1]}.long())"]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        return np.arange(shape[0])[::-1] if at == 1 else None


class Filter(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        *data, selector = bottoms
        row = graph.add("Reshape", selector, graph.integers(-1))
        chosen = graph.add("Cast", row, to=9)
        return [graph.add("Compress", one, chosen, axis=0) for one in data]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        *data, selector = bottoms
        return [f"{one}[{selector}.reshape(-1) != 0]" for one in data]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        if at != len(self.step.bottoms) - 1:
            return None
        return np.reshape(np.arange(shape[0]) % 2 == 0, shape)


def _joined(param: Any, legacy: str, dims: Dims) -> int:
    """`axis`, or the older option named `legacy`."""
    return axis_of(getattr(param, legacy if param.HasField(legacy) else "axis"), dims)


EXPORTS: Final = (
    Split,
    Concat,
    Slice,
    Crop,
    Flatten,
    Reshape,
    Tile,
    BatchReindex,
    Filter,
)
