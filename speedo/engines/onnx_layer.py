"""An ONNX file as a layer of pycaffe, which imports this module by its name; PyTorch's is in `caffenets/layers/`."""

from __future__ import annotations

from typing import Any

from caffenets import onnx_session
from caffenets.onnx_session import Shape
from speedo.engines.caffe_import import load_caffe

caffe = load_caffe()


class OnnxNet(caffe.Layer):  # type: ignore[misc, name-defined]
    """Runs the file that param_str describes; see `caffenets.onnx_session`."""

    def setup(self, bottom: Any, top: Any) -> None:
        self._net = onnx_session.OnnxNet(self.param_str)
        self._shapes: list[Shape] = []

    def reshape(self, bottom: Any, top: Any) -> None:
        # Their vectors can be asked for a blob by its number, and not iterated.
        shapes = [tuple(bottom[at].data.shape) for at in range(len(bottom))]
        if shapes != self._shapes:
            for at, shape in enumerate(self._net.shapes(shapes)):
                top[at].reshape(*shape)
            self._shapes = shapes

    def forward(self, bottom: Any, top: Any) -> None:
        given = [bottom[at].data for at in range(len(bottom))]
        for at, values in enumerate(self._net(given)):
            top[at].data[...] = values

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        """Nothing: test nets have no backward pass."""
