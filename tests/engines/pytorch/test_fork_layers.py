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
