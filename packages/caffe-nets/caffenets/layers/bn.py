"""BN: batch normalization with a learned scale and shift, in the forms of SegNet's and of PSPNet's Caffe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual
from caffenets.forms.torch_code import Code, number
from caffenets.layer import BlobSpec, Layer, LayerContext, Shape
from caffenets.torch_later import Tensor, torch

_EPS: Final = 1e-9  # SegNet's


class BN(Layer):
    """scale x + shift, where x is normalized by channel unless `bn_mode` is INFERENCE; or as PSPNet has it.

    With any of `scale_filler`, `shift_filler` and `bn_mode` it is SegNet's: blobs (1, channels, 1, 1) of scale and
    shift, and LEARN takes the statistics of each batch, in tests too. Otherwise it is PSPNet's: blobs (1, channels) of
    slope, bias, mean and variance; tests and `frozen` take these, a training pass moves them by 1 - `momentum` towards
    the batch's. A variance has the number of values in its divisor. layers/bn_layer.cpp of SegNet's Caffe
    (Badrinarayanan et al. 2015, arXiv:1511.00561) and of PSPNet's (Zhao et al. 2016, arXiv:1612.01105).
    """

    in_place = True
    blob_names = ("weight", "bias", "mean", "variance")

    def __init__(self, param: Any, place: LayerContext) -> None:
        super().__init__(param, place)
        given = param.bn_param
        self._segnet = any(map(given.HasField, ("scale_filler", "shift_filler", "bn_mode")))
        self._learns = given.bn_mode == given.LEARN if self._segnet else place.phase == "TRAIN"
        self._learns &= not given.frozen

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        (bottom,) = bottoms
        param = self.param.bn_param
        other = [one for one in ("slope_filler", "bias_filler", "frozen") if param.HasField(one)]
        if self._segnet and other:
            raise self.refuse(
                f"has {other[0]}, which PSPNet's BN has, beside fields of SegNet's: leave out those of one of them"
            )
        if len(bottom) < 2:
            raise self.refuse("needs a bottom with 2 axes or more, the second of them channels")
        names = (
            ("scale_filler", "shift_filler") if self._segnet else ("slope_filler", "bias_filler")
        )
        shape = (1, bottom[1], 1, 1) if self._segnet else (1, bottom[1])
        self.blobs = [BlobSpec(shape, getattr(param, name)) for name in names]
        if not self._segnet:
            self.blobs += [BlobSpec(shape, None, True)] * 2
        return [bottom]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = bottoms[0]
        weight, bias, *stored = (blob.reshape(-1) for blob in blobs)
        if self.param.bn_param.frozen:
            weight, bias = weight.detach(), bias.detach()
        if not self._learns and not stored:
            behind = [1] * (x.dim() - 2)
            return [x * weight.view(-1, *behind) + bias.view(-1, *behind)]
        eps = _EPS if self._segnet else self.param.bn_param.eps
        if not self._learns:
            mean, variance = (one.detach() for one in stored)
            return [torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)]
        top = torch.batch_norm(x, weight, bias, None, None, True, 0.0, eps, False)
        if stored:
            with torch.no_grad():
                axes = [axis for axis in range(x.dim()) if axis != 1]
                batch = torch.var_mean(x, axes, correction=0)
                for blob, one in zip(blobs[2:], reversed(batch), strict=True):
                    blob.lerp_(one.view(blob.shape).to(blob), 1 - self.param.bn_param.momentum)
        return [top]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        self._check_stored()
        if self._segnet:
            shape = (self.step.blobs[0][1], *(1,) * (len(self.step.bottoms[0]) - 2))
            top = graph.add("Mul", bottoms[0], graph.blob(0, shape))
            return [graph.add("Add", top, graph.blob(1, shape))]
        given = [graph.blob(at, self.step.blobs[0][1:]) for at in range(4)]
        eps = float(self.param.bn_param.eps)
        return [graph.add("BatchNormalization", bottoms[0], *given, epsilon=eps)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        self._check_stored()
        x, (weight, bias, *stored) = bottoms[0], code.parameters()
        if self._segnet:
            shape = ", ".join(["-1", *["1"] * (len(self.step.bottoms[0]) - 2)])
            return [f"{x} * {weight}.view({shape}) + {bias}.view({shape})"]
        flat = ", ".join(f"{one}[0]" for one in (*stored, weight, bias))
        return [f"F.batch_norm({x}, {flat}, eps={number(self.param.bn_param.eps)})"]

    def _check_stored(self) -> None:
        if self._learns:
            raise NoEqual(
                "normalizes by the statistics of each batch: set bn_mode: INFERENCE, with weights made for it"
            )


LAYERS: Final = (BN,)
