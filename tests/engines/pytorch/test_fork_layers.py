"""Layers of other Caffes than BVLC's, against their published formulas in NumPy and by finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedo.errors import EngineError
from tests.engines.pytorch.formulas import check_gradients, layer_of, spread, tops_of

pytestmark = pytest.mark.torch

few = settings(max_examples=20, deadline=None)
corner = st.integers(-3, 30)


def c_round(value: float) -> int:
    return int(math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1))


def roi_pooled(features: Any, regions: Any, bins: tuple[int, int], scale: float) -> Any:
    """Fast R-CNN's loops."""
    _, channels, height, width = features.shape
    top = np.zeros((len(regions), channels, *bins), np.float32)
    for n, (image, *corners) in enumerate(regions):
        x1, y1, x2, y2 = (c_round(float(np.float32(one) * np.float32(scale))) for one in corners)
        tall, wide = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i in range(bins[0]):
            for j in range(bins[1]):
                rows = [
                    math.floor(i * tall / bins[0]) + y1,
                    math.ceil((i + 1) * tall / bins[0]) + y1,
                ]
                columns = [
                    math.floor(j * wide / bins[1]) + x1,
                    math.ceil((j + 1) * wide / bins[1]) + x1,
                ]
                rows, columns = np.clip(rows, 0, height), np.clip(columns, 0, width)
                part = features[int(image), :, rows[0] : rows[1], columns[0] : columns[1]]
                if part.size:
                    top[n, :, i, j] = part.max((1, 2))
    return top


@few
@given(
    regions=st.lists(
        st.tuples(st.integers(0, 1), corner, corner, corner, corner), min_size=1, max_size=4
    ),
    bins=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    scale=st.sampled_from([1.0, 0.25, 0.0625]),
)
def test_roi_pooling_is_the_largest_of_each_part(
    regions: Any, bins: tuple[int, int], scale: float
) -> None:
    features = spread((2, 3, 7, 9)).astype(np.float32)
    text = f'type: "ROIPooling" roi_pooling_param {{ pooled_h: {bins[0]} pooled_w: {bins[1]} spatial_scale: {scale} }}'
    (top,) = tops_of(text, [features, regions])
    np.testing.assert_array_equal(
        top, roi_pooled(features, np.array(regions, np.float32), bins, scale)
    )


def test_roi_pooling_sends_its_gradient_to_the_largest() -> None:
    regions = [[0, 0, 0, 5, 4], [1, 2, 1, 30, 30], [0, 4, 4, 1, 1]]
    check_gradients(
        'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 3 }',
        [spread((2, 2, 5, 6)), regions],
        constant=[1],
    )


def test_a_region_of_an_image_that_is_not_there_is_an_error() -> None:
    text = 'type: "ROIPooling" roi_pooling_param { pooled_h: 1 pooled_w: 1 }'
    with pytest.raises(EngineError, match="region of image 2, and its bottom has 2"):
        tops_of(text, [np.zeros((2, 1, 3, 3)), [[2, 0, 0, 1, 1]]])


def psroi_pooled(features: Any, regions: Any, dim: int, bins: int, scale: float) -> Any:
    """R-FCN's loops, in float32 as there."""
    _, _, height, width = features.shape
    one = np.float32
    top = np.zeros((len(regions), dim, bins, bins), np.float32)
    for n, (image, *corners) in enumerate(regions):
        x1, y1 = (one(c_round(float(value))) * one(scale) for value in corners[:2])
        x2, y2 = (one(c_round(float(value)) + 1) * one(scale) for value in corners[2:])
        step = [max(y2 - y1, one(0.1)) / one(bins), max(x2 - x1, one(0.1)) / one(bins)]
        for i in range(bins):
            for j in range(bins):
                rows = np.clip(
                    [math.floor(one(i) * step[0] + y1), math.ceil(one(i + 1) * step[0] + y1)],
                    0,
                    height,
                )
                columns = np.clip(
                    [math.floor(one(j) * step[1] + x1), math.ceil(one(j + 1) * step[1] + x1)],
                    0,
                    width,
                )
                for c in range(dim):
                    channel = (c * bins + i) * bins + j
                    part = features[int(image), channel, rows[0] : rows[1], columns[0] : columns[1]]
                    top[n, c, i, j] = part.mean() if part.size else 0
    return top


@few
@given(
    regions=st.lists(
        st.tuples(st.integers(0, 1), corner, corner, corner, corner), min_size=1, max_size=4
    ),
    bins=st.integers(1, 3),
    scale=st.sampled_from([1.0, 0.25, 0.0625]),
)
def test_psroi_pooling_is_the_mean_of_each_part_in_channels_of_its_own(
    regions: Any, bins: int, scale: float
) -> None:
    features = spread((2, 2 * bins * bins, 7, 9)).astype(np.float32)
    text = f'type: "PSROIPooling" psroi_pooling_param {{ output_dim: 2 group_size: {bins} spatial_scale: {scale} }}'
    (top,) = tops_of(text, [features, regions])
    expected = psroi_pooled(features, np.array(regions, np.float32), 2, bins, scale)
    np.testing.assert_allclose(top, expected, atol=1e-5)


def test_psroi_pooling_divides_its_gradient_evenly() -> None:
    regions = [[0, 0, 0, 5, 4], [1, 2, 1, 30, 30]]
    text = 'type: "PSROIPooling" psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 }'
    check_gradients(text, [spread((2, 8, 5, 6)), regions], constant=[1])


@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_smooth_l1_is_a_parabola_between_lines(sigma: float) -> None:
    first, second = spread((2, 5)), spread((2, 5), 1)
    inside, outside = np.abs(spread((2, 5), 2)), np.abs(spread((2, 5), 3))
    x = inside * (first - second)
    edge = 1 / sigma**2
    losses = np.where(np.abs(x) < edge, (sigma * x) ** 2 / 2, np.abs(x) - edge / 2)
    text = f'type: "SmoothL1Loss" smooth_l1_loss_param {{ sigma: {sigma} }}'
    bottoms = [first, second, inside, outside]
    (loss,) = tops_of(text, bottoms)
    np.testing.assert_allclose(loss, (outside * losses).sum() / 2, rtol=1e-5)
    check_gradients(text, bottoms, constant=[2, 3])


def test_smooth_l1_has_the_divisors_of_r_fcn() -> None:
    bottoms = [spread((2, 3, 4, 5)), spread((2, 3, 4, 5), 1)]
    text = 'type: "SmoothL1Loss" loss_param {{ normalization: {} }}'
    losses = {
        one: float(tops_of(text.format(one), bottoms)[0])
        for one in ("NONE", "BATCH_SIZE", "FULL", "VALID")
    }
    assert losses["NONE"] / losses["BATCH_SIZE"] == pytest.approx(2)
    assert losses["NONE"] / losses["FULL"] == pytest.approx(40)
    assert losses["VALID"] == losses["FULL"]


def interpolated(values: Any, size: tuple[int, int]) -> Any:
    """Bilinear with the corners in place."""
    height, width = values.shape[2:]
    made = np.zeros((*values.shape[:2], *size))
    for i in range(size[0]):
        for j in range(size[1]):
            y = i * (height - 1) / (size[0] - 1) if size[0] > 1 else 0.0
            x = j * (width - 1) / (size[1] - 1) if size[1] > 1 else 0.0
            top, left = int(y), int(x)
            down, right = min(top + 1, height - 1), min(left + 1, width - 1)
            upper = values[:, :, top, left] * (1 - x + left) + values[:, :, top, right] * (x - left)
            lower = values[:, :, down, left] * (1 - x + left) + values[:, :, down, right] * (
                x - left
            )
            made[:, :, i, j] = upper * (1 - y + top) + lower * (y - top)
    return made


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("height: 7 width: 3", (7, 3)), ("height: 1 width: 1", (1, 1)), ("zoom_factor: 3", (13, 16)),
        ("shrink_factor: 2", (3, 3)), ("zoom_factor: 2 shrink_factor: 2", (5, 5)),
    ],
)  # fmt: skip
def test_interp_is_bilinear_between_the_corners(options: str, size: tuple[int, int]) -> None:
    values = spread((2, 2, 5, 6))
    text = f'type: "Interp" interp_param {{ {options} }}'
    (top,) = tops_of(text, [values])
    np.testing.assert_allclose(top, interpolated(values, size), atol=1e-5)
    check_gradients(text, [values])


def test_interp_cuts_first_and_takes_the_size_of_a_second_bottom() -> None:
    values = spread((1, 2, 6, 6))
    (top,) = tops_of(
        'type: "Interp" interp_param { pad_beg: -1 pad_end: -2 height: 5 width: 5 }', [values]
    )
    np.testing.assert_allclose(top, interpolated(values[:, :, 1:-2, 1:-2], (5, 5)), atol=1e-5)
    (top,) = tops_of('type: "Interp"', [values, np.zeros((1, 9, 4, 8))])
    np.testing.assert_allclose(top, interpolated(values, (4, 8)), atol=1e-5)


def test_upsample_puts_values_back_where_pooling_took_them() -> None:
    values = spread((2, 3, 5, 6)).astype(np.float32)
    pooled, places = tops_of(
        'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }', [values], tops=2
    )
    (top,) = tops_of(
        'type: "Upsample" upsample_param { upsample_h: 5 upsample_w: 6 }', [pooled, places]
    )
    taken = top != 0
    assert taken.sum() == pooled.size
    np.testing.assert_array_equal(top[taken], values[taken])
    text = 'type: "Upsample" upsample_param { scale: 2 pad_out_h: true }'
    assert tops_of(text, [pooled, places])[0].shape == (2, 3, 5, 6)
    check_gradients(text, [pooled, places], constant=[1])
    with pytest.raises(EngineError, match="read the place"):
        tops_of('type: "Upsample" upsample_param { upsample_h: 2 upsample_w: 2 }', [pooled, places])


def test_upsample_with_one_bottom_repeats() -> None:
    values = spread((1, 2, 2, 3))
    text = 'type: "Upsample" upsample_param { scale: 2 }'
    (top,) = tops_of(text, [values])
    np.testing.assert_allclose(top, values.repeat(2, 2).repeat(2, 3), atol=1e-6)
    check_gradients(text, [values])


def test_permute_names_the_first_axes() -> None:
    values = spread((2, 3, 4, 5))
    (top,) = tops_of('type: "Permute" permute_param { order: 0 order: 2 }', [values])
    np.testing.assert_allclose(top, values.transpose(0, 2, 1, 3).astype(np.float32))
    check_gradients('type: "Permute" permute_param { order: 3 order: 1 }', [values])
    with pytest.raises(EngineError, match=r"has the order \[0, 0\]"):
        layer_of('type: "Permute" permute_param { order: 0 order: 0 }', [(2, 3)])


def test_shuffle_channel_deals_the_groups_out() -> None:
    values = np.arange(6.0).reshape(1, 6, 1, 1)
    (top,) = tops_of('type: "ShuffleChannel" shuffle_channel_param { group: 2 }', [values])
    assert top.ravel().tolist() == [0, 3, 1, 4, 2, 5]
    check_gradients(
        'type: "ShuffleChannel" shuffle_channel_param { group: 3 }', [spread((2, 6, 2, 2))]
    )
    with pytest.raises(EngineError, match="use a divisor"):
        layer_of('type: "ShuffleChannel" shuffle_channel_param { group: 4 }', [(1, 6, 1, 1)])


def test_axpy_scales_each_channel_and_adds() -> None:
    scale, first, second = spread((2, 3, 1, 1)), spread((2, 3, 2, 2), 1), spread((2, 3, 2, 2), 2)
    (top,) = tops_of('type: "Axpy"', [scale, first, second])
    np.testing.assert_allclose(top, scale * first + second, atol=1e-5)
    check_gradients('type: "Axpy"', [scale, first, second])


def test_relu6_stops_at_six() -> None:
    (top,) = tops_of('type: "ReLU6"', [[-1.0, 0.0, 2.5, 6.0, 7.0]])
    assert top.tolist() == [0, 0, 2.5, 6, 6]
    check_gradients('type: "ReLU6"', [spread((3, 4)) * 5])


@pytest.mark.parametrize("across", ["true", "false"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_normalize_divides_by_the_norm(across: str, shared: str) -> None:
    values = spread((2, 3, 4, 5))
    scale = np.array(20.0) if shared == "true" else np.array([1.0, 2.0, 3.0])
    text = f'type: "Normalize" norm_param {{ across_spatial: {across} channel_shared: {shared} }}'
    norm = np.sqrt((values**2).sum((1, 2, 3) if across == "true" else 1, keepdims=True) + 1e-10)
    (top,) = tops_of(text, [values], [scale])
    np.testing.assert_allclose(
        top, values / norm * scale.reshape(1, -1, 1, 1), rtol=1e-4, atol=1e-5
    )
    check_gradients(text, [values], [scale])


@pytest.mark.parametrize("kind", ["ConvolutionDepthwise", "DepthwiseConvolution"])
@pytest.mark.parametrize(
    "said", ["num_output: 6", "num_output: 6 group: 3", "num_output: 6 group: 1"]
)
def test_a_depthwise_convolution_is_one_with_a_group_for_each_channel(kind: str, said: str) -> None:
    values, weights, bias = spread((2, 3, 5, 6)), spread((6, 1, 3, 3), 1), spread((6,), 2)
    options = "kernel_size: 3 pad: 1 stride: 2"
    (top,) = tops_of(
        f'type: "{kind}" convolution_param {{ {said} {options} }}', [values], [weights, bias]
    )
    plain = f'type: "Convolution" convolution_param {{ num_output: 6 group: 3 {options} }}'
    np.testing.assert_array_equal(top, tops_of(plain, [values], [weights, bias])[0])
    with pytest.raises(EngineError, match="has group 2 and 3 channels"):
        layer_of(
            f'type: "{kind}" convolution_param {{ num_output: 6 group: 2 {options} }}',
            [(1, 3, 5, 6)],
        )


BATCH = spread((4, 3, 2, 5)).astype(np.float32)
SCALE, SHIFT = np.array([0.5, 2, -1], np.float32), np.array([1, 0, 3], np.float32)


def by_channel(values: Any) -> Any:
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def test_bn_of_segnet_normalizes_or_only_scales() -> None:
    blobs = [SCALE.reshape(1, 3, 1, 1), SHIFT.reshape(1, 3, 1, 1)]
    text = 'type: "BN" bn_param { scale_filler { type: "constant" value: 1 } bn_mode: %s }'
    for phase in ("TRAIN", "TEST"):
        (top,) = tops_of(text % "INFERENCE", [BATCH], blobs, phase=phase)
        np.testing.assert_allclose(top, BATCH * by_channel(SCALE) + by_channel(SHIFT), rtol=1e-6)
        (top,) = tops_of(text % "LEARN", [BATCH], blobs, phase=phase)
        mean, variance = BATCH.mean((0, 2, 3)), BATCH.var((0, 2, 3))
        normal = (BATCH - by_channel(mean)) / np.sqrt(by_channel(variance) + 1e-9)
        np.testing.assert_allclose(
            top, normal * by_channel(SCALE) + by_channel(SHIFT), rtol=1e-4, atol=1e-5
        )
    for mode in ("LEARN", "INFERENCE"):
        check_gradients(text % mode, [BATCH], blobs)
    layer, _ = layer_of(text % "LEARN", [(4, 3, 2, 5)])
    assert [spec.shape for spec in layer.blobs] == [(1, 3, 1, 1)] * 2


def test_bn_of_pspnet_keeps_moving_averages() -> None:
    import torch

    text = 'type: "BN" bn_param { slope_filler { type: "constant" value: 1 } momentum: 0.75 eps: 0.5 %s }'
    old = [np.array([1, 2, 3], np.float32), np.array([0.5, 1, 4], np.float32)]
    blobs = [torch.from_numpy(one.copy()).view(1, 3) for one in (SCALE, SHIFT, *old)]
    batch = [BATCH.mean((0, 2, 3)), BATCH.var((0, 2, 3))]

    def expected(mean: Any, variance: Any) -> Any:
        normal = (BATCH - by_channel(mean)) / np.sqrt(by_channel(variance) + 0.5)
        return normal * by_channel(SCALE) + by_channel(SHIFT)

    for phase, more, used in (
        ("TEST", "", old),
        ("TRAIN", "frozen: true", old),
        ("TRAIN", "", batch),
    ):
        layer, _ = layer_of(text % more, [BATCH.shape], phase)
        (top,) = layer.forward([torch.from_numpy(BATCH)], blobs)
        np.testing.assert_allclose(top.numpy(), expected(*used), rtol=1e-4, atol=1e-5)
        moved = (
            [0.75 * one + 0.25 * now for one, now in zip(old, batch, strict=True)]
            if used is batch
            else old
        )
        for blob, one in zip(blobs[2:], moved, strict=True):
            np.testing.assert_allclose(blob.view(-1), one, rtol=1e-5)
    assert [(spec.shape, spec.statistic) for spec in layer.blobs] == [
        ((1, 3), at > 1) for at in range(4)
    ]
    frozen, _ = layer_of(text % "frozen: true", [BATCH.shape])
    assert not frozen.forward([torch.from_numpy(BATCH)], [b.requires_grad_() for b in blobs])[
        0
    ].requires_grad
    with pytest.raises(
        EngineError, match="has frozen, which PSPNet's BN has, beside fields of SegNet's"
    ):
        layer_of('type: "BN" bn_param { bn_mode: LEARN frozen: true }', [BATCH.shape])


def test_transpose_and_reverse_turn_axes() -> None:
    values = spread((2, 3, 4))
    (top,) = tops_of('type: "Transpose" transpose_param { dim: 2 dim: 0 dim: 1 }', [values])
    np.testing.assert_array_equal(top, values.astype(np.float32).transpose(2, 0, 1))
    (top,) = tops_of('type: "Reverse" reverse_param { axis: 1 }', [values])
    np.testing.assert_array_equal(top, values.astype(np.float32)[:, ::-1])
    check_gradients('type: "Reverse"', [values])
    with pytest.raises(EngineError, match="name each of its 3 axes, 0 to 2, once"):
        layer_of('type: "Transpose" transpose_param { dim: 2 dim: 0 }', [(2, 3, 4)])


def darknets_reorg(bottom: Any, stride: int) -> Any:
    """reorg_cpu of Darknet's blas.c, forward 0, over its memory."""
    channels, height, width = bottom.shape
    less, flat, top = channels // stride**2, bottom.reshape(-1), np.zeros(bottom.size, bottom.dtype)
    for k in range(channels):
        for j in range(height):
            for i in range(width):
                w = i * stride + k // less % stride
                h = j * stride + k // less // stride
                top[i + width * (j + height * k)] = flat[
                    w + width * stride * (h + height * stride * (k % less))
                ]
    return top


def test_reorg_moves_values_as_darknet_does_and_back() -> None:
    values = spread((2, 8, 4, 6)).astype(np.float32)
    (top,) = tops_of('type: "Reorg" reorg_param { stride: 2 }', [values])
    assert top.shape == (2, 32, 2, 3)
    np.testing.assert_array_equal(top.reshape(2, -1), [darknets_reorg(one, 2) for one in values])
    (large,) = tops_of('type: "Reorg" reorg_param { stride: 2 reverse: true }', [values])
    assert large.shape == (2, 2, 8, 12)
    np.testing.assert_array_equal(
        [darknets_reorg(one.reshape(8, 4, 6), 2) for one in large], values.reshape(2, -1)
    )
    check_gradients('type: "Reorg"', [values])
    with pytest.raises(EngineError, match="which does not divide 3 x 6"):
        layer_of('type: "Reorg"', [(2, 8, 3, 6)])


def test_center_loss_moves_a_center_by_the_mean_of_its_class() -> None:
    import torch

    x = torch.tensor([[1.0, 2], [3, 4], [5, 9]], requires_grad=True)
    centers = torch.tensor([[0.0, 0], [1, 1], [7, 7]], requires_grad=True)
    layer, _ = layer_of('type: "CenterLoss" center_loss_param { num_output: 3 }', [(3, 2), (3,)])
    (loss,) = layer.forward([x, torch.tensor([1.0, 1, 0])], [centers])
    assert loss.item() == (0 + 1 + 4 + 9 + 25 + 81) / 6
    (2 * loss).backward()
    assert x.grad.tolist() == pytest.approx(np.array([[0, 1], [2, 3], [5, 9]]) * 2 / 3)
    assert centers.grad.tolist() == pytest.approx(
        np.array([[-2.5, -4.5], [-2 / 3, -4 / 3], [0, 0]])
    )
    with pytest.raises(EngineError, match="give the number of classes, and each item one label"):
        layer_of('type: "CenterLoss"', [(3, 2), (3,)])


def test_dropout_of_other_caffes_scales_in_tests_or_draws_there() -> None:
    values = np.ones((40, 50), np.float32)
    unscaled = 'type: "Dropout" dropout_param { scale_train: false dropout_ratio: 0.25 }'
    assert tops_of(unscaled, [values], phase="TEST")[0] == pytest.approx(np.full((40, 50), 0.75))
    assert set(np.unique(tops_of(unscaled, [values])[0])) == {0, 1}
    drawn = 'type: "Dropout" dropout_param { sample_weights_test: true }'
    assert set(np.unique(tops_of(drawn, [values], phase="TEST")[0])) == {0, 2}


def test_the_softmax_loss_of_segnet_weighs_each_label() -> None:
    scores, labels = spread((2, 3, 4)), np.array([[0, 1, 2, 2], [1, 0, 0, 1]])
    weights = np.array([0.5, 2, 3])
    text = """type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true ignore_label: 1
        class_weighting: 0.5 class_weighting: 2 class_weighting: 3 }"""
    soft = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    losses = -np.log(np.take_along_axis(soft, labels[:, None], 1)[:, 0]) * weights[labels]
    (loss,) = tops_of(text, [scores, labels])
    assert loss == pytest.approx(losses[labels != 1].sum() / 5, rel=1e-5)
    with pytest.raises(EngineError, match="has 0 class_weighting for 3 classes"):
        layer_of(
            'type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true }',
            [(2, 3, 4), (2, 4)],
        )
