"""PriorBox: the boxes that each place of a feature map judges. Liu et al. 2016, arXiv:1512.02325, section 2.2."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual
from caffenets.forms.torch_code import Code
from caffenets.layer import Layer, Shape
from caffenets.torch_later import Tensor, torch


class PriorBox(Layer):
    """(1, 2, 4 n): the n boxes, and the variances of their codes; both the same for all images of a batch.

    A place has for each min_size s and max_size t a box of s x s, one of sqrt(s t) squared, and one of s sqrt(r) x
    s / sqrt(r) for each aspect ratio r. The bottoms are a feature map and the image. SSD's layers/prior_box_layer.cpp.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (2, 2)
    by_shape = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.prior_box_param
        if any(len(shape) != 4 for shape in bottoms):
            raise self.refuse(
                "needs a feature map and an image, both of (num, channels, height, width)"
            )
        # As in SSD sizes are whole numbers.
        least, most = [int(size) for size in param.min_size], [int(size) for size in param.max_size]
        if not least or min(least) < 1:
            raise self.refuse(
                "has no min_size, or one below 1: give the sizes of its boxes in pixels"
            )
        if most and (
            len(most) != len(least) or any(t <= s for s, t in zip(least, most, strict=False))
        ):
            raise self.refuse(
                f"has min_size {least} and max_size {most}: give each min_size a larger max_size, or none"
            )
        if len(param.variance) not in (0, 1, 4) or any(value <= 0 for value in param.variance):
            raise self.refuse(f"has variance {list(param.variance)}: give one or four, above 0")
        variances = list(param.variance) or [0.1]
        self._variances = variances * 4 if len(variances) == 1 else variances
        self._sizes = _sizes(least, most, self._ratios())
        self._extents(bottoms)
        self._made_for: tuple[int, ...] = ()
        return [(1, 2, prod(bottoms[0][2:]) * len(self._sizes) * 4)]

    def _ratios(self) -> list[float]:
        param = self.param.prior_box_param
        ratios = [1.0]
        for ratio in param.aspect_ratio:
            if ratio <= 0:
                raise self.refuse(f"has aspect_ratio {ratio}: use one above 0")
            if all(abs(ratio - other) >= 1e-6 for other in ratios):
                ratios += [ratio, 1.0 / ratio] if param.flip else [ratio]
        return ratios[1:]

    def _extents(self, bottoms: Sequence[Shape]) -> tuple[tuple[float, float], tuple[float, float]]:
        """The image's height and width, and the step from one place to the next."""
        param = self.param.prior_box_param
        (rows, columns), image = bottoms[0][2:], self._pair("img", param.img_size, bottoms[1][2:])
        return image, self._pair("step", param.step, (image[0] / rows, image[1] / columns))

    def _at(self, bottoms: Sequence[Shape]) -> Tensor:
        param = self.param.prior_box_param
        (rows, columns), (image, step) = bottoms[0][2:], self._extents(bottoms)
        y = (torch.arange(rows) + param.offset) * step[0]
        x = (torch.arange(columns) + param.offset) * step[1]
        center = torch.stack([x[None].expand(rows, columns), y[:, None].expand(rows, columns)], -1)
        half = torch.tensor(self._sizes) / 2
        boxes = torch.cat([center[:, :, None] - half, center[:, :, None] + half], -1)
        boxes = boxes / torch.tensor([image[1], image[0], image[1], image[0]])
        if param.clip:
            boxes = boxes.clamp(0, 1)
        variances = torch.tensor(self._variances).expand(boxes.shape)
        return torch.stack([boxes.reshape(-1), variances.reshape(-1)])[None]

    def _pair(self, name: str, both: float, usual: Sequence[float]) -> tuple[float, float]:
        """(height, width) of an option: NAME_h and NAME_w, or one value for both."""
        param = self.param.prior_box_param
        whole = "img_size" if name == "img" else name
        pair = param.HasField(f"{name}_h"), param.HasField(f"{name}_w")
        if not any(pair) and not param.HasField(whole):
            return usual[0], usual[1]
        if any(pair) and (param.HasField(whole) or not all(pair)):
            raise self.refuse(f"has {name}_h or {name}_w: give both of them, and not {whole}")
        found = (
            (getattr(param, f"{name}_h"), getattr(param, f"{name}_w"))
            if all(pair)
            else (both, both)
        )
        if min(found) <= 0:
            raise self.refuse(f"has {name} {found}: use more than 0")
        return found

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        found = (*bottoms[0].shape[2:], *bottoms[1].shape[2:])
        if found != self._made_for:
            self._boxes, self._made_for = (
                self._at([tuple(bottom.shape) for bottom in bottoms]),
                found,
            )
        self._boxes = self._boxes.to(bottoms[0].device)
        return [self._boxes]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.constant(self.step.value)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        raise NoEqual(
            "has its boxes in no state dict: use --onnx, or leave the layer out of the net"
        )


def _sizes(
    least: Sequence[int], most: Sequence[int], ratios: Sequence[float]
) -> list[tuple[float, float]]:
    """(width, height) of the boxes of a place, in SSD's order."""
    sizes: list[tuple[float, float]] = []
    for at, small in enumerate(least):
        sizes.append((small, small))
        if most:
            sizes.append((sqrt(small * most[at]),) * 2)
        sizes += [(small * sqrt(ratio), small / sqrt(ratio)) for ratio in ratios]
    return sizes


LAYERS: Final = (PriorBox,)
