"""Layers that join, cut or reshape: Concat, Slice, Crop, Flatten, Reshape, Tile.

Shapes of a forward pass are those of its bottoms: a Filter below may have changed the first axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoFreeBatch, constant
from caffenets.forms.torch_code import Code, listed
from caffenets.layer import Layer, Shape
from caffenets.layers.axes import canonical_axis, count
from caffenets.torch_later import Tensor, torch


class Concat(Layer):
    """The bottoms one behind the other along `axis` (or `concat_dim`). Caffe: layers/concat_layer.cpp."""

    in_place = True

    bottoms = (1, None)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self._axis = _joined_axis(self, self.param.concat_param, "concat_dim", bottoms[0])
        others = {(*shape[: self._axis], *shape[self._axis + 1 :]) for shape in bottoms}
        if len(others) > 1 or len({len(shape) for shape in bottoms}) > 1:
            raise self.refuse(
                f"joins bottoms of shapes {_listed(bottoms)} along axis {self._axis}: "
                "they must be equal in all other axes"
            )
        top = list(bottoms[0])
        top[self._axis] = sum(shape[self._axis] for shape in bottoms)
        return [tuple(top)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0] if len(bottoms) == 1 else torch.cat(list(bottoms), self._axis)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Concat", *bottoms, axis=self._axis)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"torch.cat([{', '.join(bottoms)}], {self._axis})"]


class Slice(Layer):
    """A top for each part of `axis` (or `slice_dim`): parts end at `slice_point`, or are equal.

    Caffe: layers/slice_layer.cpp.
    """

    in_place = True

    tops = (1, None)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.slice_param
        (bottom,) = bottoms
        self._axis = _joined_axis(self, param, "slice_dim", bottom)
        parts = self._parts(bottom[self._axis])
        return [(*bottom[: self._axis], part, *bottom[self._axis + 1 :]) for part in parts]

    def _parts(self, size: int) -> list[int]:
        """The sizes of the parts of an axis of `size`."""
        tops, points = len(self.param.top), list(self.param.slice_param.slice_point)
        if points:
            ends = [0, *points, size]
            if len(points) != tops - 1 or any(end <= start for start, end in pairwise(ends)):
                raise self.refuse(
                    f"has {tops} tops and slice_point {points} of an axis of {size}: give one "
                    "point fewer than tops, rising, each inside the axis"
                )
            return [end - start for start, end in pairwise(ends)]
        if size % tops:
            raise self.refuse(
                f"cuts an axis of {size} into {tops} equal parts: {size} is no multiple "
                f"of {tops}; set slice_point"
            )
        return [size // tops] * tops

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        (bottom,) = bottoms
        return list(torch.split(bottom, self._parts(bottom.shape[self._axis]), self._axis))

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        axis, parts = self._cut()
        given = [bottoms[0], graph.integers(*parts)]
        return graph.add_several("Split", given, len(parts), axis=axis)

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        axis, parts = self._cut()
        if len(parts) == 1:
            return [bottoms[0]]
        return [f"torch.split({bottoms[0]}, {list(parts)}, {axis})"]

    def _cut(self) -> tuple[int, Shape]:
        axis = self._axis
        return axis, constant(tuple(top[axis] for top in self.step.tops), "parts")


def _joined_axis(layer: Layer, param: Any, legacy: str, shape: Shape) -> int:
    """`axis`, or the older unsigned option named `legacy`."""
    if not param.HasField(legacy):
        return canonical_axis(layer, param.axis, shape)
    if param.HasField("axis"):
        raise layer.refuse(f"has both axis and {legacy}: remove {legacy}")
    return canonical_axis(layer, getattr(param, legacy), shape, legacy)


def _listed(shapes: Sequence[Shape]) -> str:
    return " and ".join("x".join(map(str, shape)) or "()" for shape in shapes)


class Crop(Layer):
    """The part of the first bottom that has the second's size from `axis` on, beginning at `offset`.

    The second bottom gets no gradient. Caffe: layers/crop_layer.cpp.
    """

    bottoms = (2, 2)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.crop_param
        data, size = bottoms
        self._axis = canonical_axis(self, param.axis, data)
        cropped = len(data) - self._axis
        if len(param.offset) not in (0, 1, cropped):
            raise self.refuse(
                f"has {len(param.offset)} offsets for the {cropped} axes from axis {self._axis} "
                f"on: give none, one or {cropped}"
            )
        if len(size) < len(data):
            raise self.refuse(
                f"needs a second bottom of at least {len(data)} axes, it has {len(size)}"
            )
        offsets = list(param.offset) or [0]
        self._offsets = offsets * cropped if len(offsets) == 1 else offsets
        for axis, offset in enumerate(self._offsets, self._axis):
            if data[axis] < offset + size[axis]:
                raise self.refuse(
                    f"crops {size[axis]} at offset {offset} out of axis {axis}, which has "
                    f"only {data[axis]}: use a smaller offset or size"
                )
        return [(*data[: self._axis], *size[self._axis : len(data)])]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        data, size = bottoms
        for axis, offset in enumerate(self._offsets, self._axis):
            data = data.narrow(axis, offset, size.shape[axis])
        return [data]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        cuts = self._cuts()
        if not cuts:
            return [bottoms[0]]
        axes, starts, ends = zip(*cuts, strict=True)
        given = [graph.integers(*starts), graph.integers(*ends), graph.integers(*axes)]
        return [graph.add("Slice", bottoms[0], *given)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        ranges = {axis: f"{start}:{end}" for axis, start, end in self._cuts()}
        last = max(ranges, default=-1) + 1
        within = [ranges.get(axis, ":") for axis in range(last)]
        return [f"{bottoms[0]}[{', '.join(within)}]" if within else bottoms[0]]

    def _cuts(self) -> list[tuple[int, int, int]]:
        """Axis, begin and end of each axis that is cut."""
        (data, _), (top,) = self.step.bottoms, self.step.tops
        cuts = []
        for axis, offset in enumerate(self._offsets, self._axis):
            if data[axis] == top[axis] and not offset:
                continue
            (size,) = constant((top[axis],), "cropped sizes")
            cuts.append((axis, int(offset), int(offset) + size))
        return cuts


class Flatten(Layer):
    """The axes from `axis` to `end_axis` as one. Caffe: layers/flatten_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.flatten_param
        (bottom,) = bottoms
        self._start = canonical_axis(self, param.axis, bottom)
        self._end = canonical_axis(self, param.end_axis, bottom, "end_axis") + 1
        if self._start > self._end:
            raise self.refuse(
                f"has axis {param.axis} behind end_axis {param.end_axis}: exchange them"
            )
        return [self._flat(bottom)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0].reshape(self._flat(tuple(bottoms[0].shape)))]

    def _flat(self, shape: Shape) -> Shape:
        return (*shape[: self._start], prod(shape[self._start : self._end]), *shape[self._end :])

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        first, last = self._start, self._end - 1
        if first == 1 and last == len(self.step.bottoms[0]) - 1:
            return [graph.add("Flatten", bottoms[0])]
        return [graph.reshaped(bottoms[0], self.step.tops[0])]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        first, last = self._start, self._end - 1
        whole = last == len(self.step.bottoms[0]) - 1
        return [f"{bottoms[0]}.flatten({first}{'' if whole else f', {last}'})"]


class Reshape(Layer):
    """The `num_axes` axes from `axis` on as `shape`, where 0 copies a size and -1 is what remains.

    Caffe: layers/reshape_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        return [self._shape(bottoms[0])]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0].reshape(self._shape(tuple(bottoms[0].shape)))]

    def _shape(self, bottom: Shape) -> Shape:
        param = self.param.reshape_param
        # Unlike other layers' axes, -1 stands behind the last axis.
        start = param.axis if param.axis >= 0 else len(bottom) + param.axis + 1
        end = len(bottom) if param.num_axes == -1 else start + param.num_axes
        if not 0 <= start <= len(bottom) or not start <= end <= len(bottom):
            raise self.refuse(
                f"has axis {param.axis} and num_axes {param.num_axes}, "
                f"but its bottom has {len(bottom)} axes"
            )
        sizes = list(param.shape.dim)
        if sizes.count(-1) > 1:
            raise self.refuse("has -1 more than once in its shape: one size can be inferred")
        for index, size in enumerate(sizes):
            if size == 0:
                if start + index >= len(bottom):
                    raise self.refuse(
                        f"copies axis {start + index} by a 0 in its shape, but its bottom has "
                        f"{len(bottom)} axes"
                    )
                sizes[index] = bottom[start + index]
        if -1 in sizes:
            known = prod(size for size in sizes if size != -1)
            known *= count(bottom, 0, start) * count(bottom, end)
            if not known or count(bottom) % known:
                raise self.refuse(
                    f"infers a size of {count(bottom)} values over {known}: it does not divide them"
                )
            sizes[sizes.index(-1)] = count(bottom) // known
        top = (*bottom[:start], *sizes, *bottom[end:])
        if count(top) != count(bottom):
            raise self.refuse(f"makes {count(top)} values of {count(bottom)}: correct its shape")
        return top

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.reshaped(bottoms[0], self.step.tops[0])]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.reshape({self.sizes()})"]

    def sizes(self) -> str:
        top = self.step.tops[0]
        if top.count(None) > 1:
            raise NoFreeBatch("has a top with two sizes that depend on the batch")
        return listed([-1 if size is None else size for size in top])


class Tile(Layer):
    """`tiles` copies along `axis`. Caffe: layers/tile_layer.cpp."""

    in_place = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        (bottom,) = bottoms
        self._axis = canonical_axis(self, self.param.tile_param.axis, bottom)
        self._tiles = self.param.tile_param.tiles
        if self._tiles < 1:
            raise self.refuse(f"has tiles {self._tiles}: set 1 or more")
        top = list(bottom)
        top[self._axis] *= self._tiles
        return [tuple(top)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0].repeat(self._repeats(bottoms[0].ndim))]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [
            graph.add("Tile", bottoms[0], graph.integers(*self._repeats(len(self.step.bottoms[0]))))
        ]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.repeat({listed(self._repeats(len(self.step.bottoms[0])))})"]

    def _repeats(self, axes: int) -> list[int]:
        repeats = [1] * axes
        repeats[self._axis] = self._tiles
        return repeats


LAYERS: Final = (Concat, Slice, Crop, Flatten, Reshape, Tile)
