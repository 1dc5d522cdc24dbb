"""Pooling and SPP against pycaffe: rounding, clipped windows, divisors, ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

PHASES = st.sampled_from(["TRAIN", "TEST"])


def _drawn(data: st.DataObject, method: str) -> tuple[str, tuple[int, ...]]:
    """Options of windows that Caffe takes, and a bottom's shape."""
    size = [data.draw(st.integers(2, 9), label="size") for _ in range(2)]
    kernel = [data.draw(st.integers(1, 5), label="kernel") for _ in range(2)]
    stride = [data.draw(st.integers(1, 4), label="stride") for _ in range(2)]
    pad = [data.draw(st.integers(0, kernel[axis] - 1), label="pad") for axis in range(2)]
    rounding = data.draw(st.sampled_from(["CEIL", "FLOOR"]))
    for s, k, step, p in zip(size, kernel, stride, pad, strict=True):
        room = s + 2 * p - k
        count = (-(-room // step) if rounding == "CEIL" else room // step) + 1
        assume(count >= 1)
        inside = (count - 1) * step < s + p
        assume(inside or any(pad))
        assume(inside or not any(pad) or (count - 2) * step < s + p)
        assume(not (any(pad) and not inside and count == 1))
    text = (
        f"pool: {method} round_mode: {rounding} kernel_h: {kernel[0]} kernel_w: {kernel[1]} "
        f"stride_h: {stride[0]} stride_w: {stride[1]} pad_h: {pad[0]} pad_w: {pad[1]}"
    )
    return text, (2, 2, *size)


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 99), tied=st.booleans(), phase=PHASES)
def test_max_pooling_is_pycaffes_and_its_ties_too(
    data: st.DataObject, seed: int, tied: bool, phase: str
) -> None:
    text, shape = _drawn(data, "MAX")
    bottom = np.random.default_rng(seed).normal(size=shape)
    bottom = bottom.round() if tied else bottom
    trial(f'type: "Pooling" pooling_param {{ {text} }}', [bottom], phase=phase)
    ours, _ = trial(
        f'tops: 2\ntype: "Pooling" pooling_param {{ {text} }}', [bottom], top_diffs=[1.0, None]
    )
    places = ours.tops[1].astype(int).reshape(2, 2, -1)  # of each largest element
    there = np.take_along_axis(bottom.astype(np.float32).reshape(2, 2, -1), places, 2)
    assert np.array_equal(there, ours.tops[0].reshape(2, 2, -1))


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 99), phase=PHASES)
def test_average_pooling_is_pycaffes(data: st.DataObject, seed: int, phase: str) -> None:
    text, shape = _drawn(data, "AVE")
    bottom = np.random.default_rng(seed).normal(size=shape)
    trial(f'type: "Pooling" pooling_param {{ {text} }}', [bottom], phase=phase)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(
    "options",
    [
        "global_pooling: true",
        "kernel_size: 3 stride: 2",
        "kernel_size: 3 stride: 2 pad: 1",
        "kernel_size: 2",
    ],
)
def test_options_given_once_are_pycaffes(method: str, options: str) -> None:
    bottom = np.random.default_rng(0).normal(size=(2, 3, 6, 7))
    trial(f'type: "Pooling" pooling_param {{ pool: {method} {options} }}', [bottom])


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("height", "size"), [(1, (5, 6)), (2, (5, 6)), (3, (8, 9)), (3, (12, 12))])
def test_a_pyramid_of_windows_is_pycaffes(method: str, height: int, size: tuple[int, int]) -> None:
    bottom = np.random.default_rng(0).normal(size=(2, 3, *size))
    trial(f'type: "SPP" spp_param {{ pyramid_height: {height} pool: {method} }}', [bottom])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("kernel_size: 2 pool: STOCHASTIC", "STOCHASTIC, which Caffe has for GPUs only"),
        ("kernel_size: 1 stride: 2", "begin behind the end of its bottom.*use round_mode: FLOOR"),
        ("pool: AVE kernel_size: 1 stride: 2", "begin behind the end of its bottom"),
        ("kernel_size: 2 pad: 2", "pad by less than the kernel"),
        ("kernel_size: 9", "larger than its padded bottom"),
        ("kernel_size: 2 global_pooling: true", "global_pooling and a kernel"),
        ("global_pooling: true stride: 2", "takes no pad and no stride"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2", "use one form"),
        ("kernel_h: 2", "give both of them"),
        ("kernel_size: 2 stride: 2 stride_h: 1 stride_w: 1", "give both of them, and not stride"),
        ("", "use 1 or more"),
    ],
)
def test_options_that_caffe_refuses_are_refused(options: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        set_up(f'type: "Pooling" pooling_param {{ {options} }}', [(1, 1, 4, 4)])


def test_a_second_top_of_averages_is_refused() -> None:
    with pytest.raises(EngineError, match="a second top, which AVE does not fill"):
        set_up(
            'tops: 2\ntype: "Pooling" pooling_param { pool: AVE kernel_size: 2 }', [(1, 1, 4, 4)]
        )


def test_a_pyramid_that_pads_by_a_whole_window_is_refused_as_in_caffe() -> None:
    with pytest.raises(EngineError, match="pad by less than the kernel"):
        set_up('type: "SPP" spp_param { pyramid_height: 3 }', [(1, 1, 2, 2)])
