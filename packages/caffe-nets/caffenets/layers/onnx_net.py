"""An ONNX file as a layer of a test net; it has no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from caffenets import onnx_session
from caffenets.layer import Layer, Shape
from caffenets.torch_later import Tensor, torch


class OnnxNet(Layer):
    """Runs the file that param_str describes in ONNX Runtime, on the CPU; see `caffenets.onnx_session`."""

    bottoms: ClassVar[tuple[int, int | None]] = (1, None)
    tops: ClassVar[tuple[int, int | None]] = (1, None)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self._net = onnx_session.OnnxNet(str(self.param.python_param.param_str))
        return [tuple(shape) for shape in self._net.shapes(bottoms)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        tops = self._net([bottom.detach().cpu().numpy() for bottom in bottoms])
        return [torch.from_numpy(top).to(bottoms[0].device) for top in tops]


LAYERS: Final = (OnnxNet,)
