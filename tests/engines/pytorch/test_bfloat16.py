"""Layers under bfloat16's autocast: what came from a convolution is taken, and sums stay in float32."""

from __future__ import annotations

import pytest

from tests.engines.pytorch.layer_trial import set_up

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

SHAPE = (4, 6, 5, 5)
LAYERS = [
    '"ReLU"',
    '"PReLU"',
    '"ELU"',
    '"Sigmoid"',
    '"TanH"',
    '"AbsVal"',
    '"BNLL"',
    '"Exp"',
    '"Power"',
    '"Swish"',
    '"Threshold"',
    '"BatchNorm"',
    '"Bias"',
    '"LRN"',
    '"Scale"',
    '"Scale" scale_param { bias_term: true }',
    '"Softmax"',
    '"Clip" clip_param { min: -1 max: 1 }',
    '"LRN" lrn_param { norm_region: WITHIN_CHANNEL }',
    '"Convolution" convolution_param { num_output: 2 kernel_size: 3 }',
    '"Deconvolution" convolution_param { num_output: 2 kernel_size: 3 }',
    '"Im2col" convolution_param { kernel_size: 3 }',
    '"InnerProduct" inner_product_param { num_output: 3 }',
    '"Pooling" pooling_param { kernel_size: 3 pad: 2 stride: 2 }',
    '"Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }',
    '"SPP" spp_param { pyramid_height: 2 }',
]


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_computes_in_bfloat16_what_it_does_in_float32(
    layer: str, memory_format: str
) -> None:
    import torch

    torch.manual_seed(0)
    made = set_up(f"type: {layer}", [SHAPE])
    bottom = torch.randn(SHAPE).bfloat16().float()
    bottom = bottom.to(memory_format=getattr(torch, memory_format))
    blobs = [torch.rand(spec.shape) + 0.5 for spec in made.blobs]
    for spec, blob in zip(made.blobs, blobs, strict=True):
        blob.requires_grad_(not spec.statistic)
    (exact,) = made.forward([bottom], [blob.clone() for blob in blobs])
    narrow = bottom.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        (top,) = made.forward([narrow], blobs)
    exact, found = exact.detach(), top.detach().float()
    assert float((found - exact).abs().max()) <= 0.02 * float(exact.abs().max())
    if made.param.type not in ("Softmax", "Exp", "Power"):  # whose sums and powers are float32
        assert top.dtype == torch.bfloat16
    if made.param.type == "Threshold":
        return
    top.backward(torch.randn_like(top))
    assert narrow.grad is not None
    assert all(blob.grad is not None for blob in blobs if blob.requires_grad)


def test_losses_and_accuracies_are_float32() -> None:
    import torch

    scores = torch.randn(3, 5).bfloat16().requires_grad_()
    labels = torch.tensor([0.0, 4.0, 2.0])
    with torch.autocast("cpu", torch.bfloat16):
        (loss,) = set_up('type: "SoftmaxWithLoss"', [(3, 5), (3,)]).forward([scores, labels], [])
        (part,) = set_up('type: "Accuracy"', [(3, 5), (3,)]).forward([scores, labels], [])
    assert (loss.dtype, part.dtype) == (torch.float32, torch.float32)
    expected = torch.nn.functional.cross_entropy(scores.float(), labels.long())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert scores.grad is not None
