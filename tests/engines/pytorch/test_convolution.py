"""Convolution, Deconvolution and Im2col against pycaffe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

PHASES = st.sampled_from(["TRAIN", "TEST"])


def _options(data: st.DataObject, axes: int) -> tuple[str, list[tuple[int, int, int, int]]]:
    """Text, and (kernel, stride, pad, dilation) of each spatial axis."""
    text, values = [], []
    for name, low, high in (
        ("kernel_size", 1, 3),
        ("stride", 1, 3),
        ("pad", 0, 2),
        ("dilation", 1, 2),
    ):
        size = st.integers(low, high)
        form = data.draw(st.sampled_from(["once", "each", "pair"]), label=name)
        if form == "pair" and axes == 2 and name != "dilation":
            given_ = [data.draw(size), data.draw(size)]
            stem = name.removesuffix("_size")
            text.append(f"{stem}_h: {given_[0]} {stem}_w: {given_[1]}")
        elif form == "each" and axes:
            given_ = [data.draw(size) for _ in range(axes)]
            text.extend(f"{name}: {value}" for value in given_)
        else:
            value = data.draw(size)
            given_ = [value] * axes
            text.append(f"{name}: {value}")
        values.append(given_)
    return " ".join(text), list(zip(*values, strict=True))


def _filters(data: st.DataObject, kind: str, axes: int, batch: tuple[int, ...]) -> None:
    group = data.draw(st.integers(1, 2), label="group")
    channels = group * data.draw(st.integers(1, 2))
    outputs = group * data.draw(st.integers(1, 2))
    text, windows = _options(data, axes)
    # Few places over many axes: the gradient of a bias is a sum over them, which may cancel.
    most = 6 if axes < 3 else 4
    spatial = tuple(data.draw(st.integers(3, most)) for _ in range(axes))
    for size, (kernel, stride, pad, dilation) in zip(spatial, windows, strict=True):
        extent = dilation * (kernel - 1) + 1
        if kind == "Deconvolution":
            assume(stride * (size - 1) + extent - 2 * pad > 0)
        else:
            assume(size + 2 * pad - extent > -stride)
    bias = str(data.draw(st.booleans())).lower()
    force = str(data.draw(st.booleans())).lower()
    bottoms = data.draw(st.integers(1, 2), label="bottoms")
    rng = np.random.default_rng(outputs)
    trial(
        f'tops: {bottoms}\ntype: "{kind}" convolution_param {{ num_output: {outputs} group: {group} {text} '
        f"bias_term: {bias} force_nd_im2col: {force} axis: {len(batch)} engine: CAFFE }}",
        [rng.normal(size=(*batch, channels, *spatial)) for _ in range(bottoms)],
        phase=data.draw(PHASES),
    )


@settings(max_examples=60)
@given(data=st.data())
def test_convolution_over_two_axes_is_pycaffes(data: st.DataObject) -> None:
    _filters(data, "Convolution", 2, (2,))


@settings(max_examples=60)
@given(data=st.data())
def test_deconvolution_over_two_axes_is_pycaffes(data: st.DataObject) -> None:
    _filters(data, "Deconvolution", 2, (2,))


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("batch", [(2,), (), (2, 2)])
@pytest.mark.parametrize("axes", [0, 1, 3])
@settings(max_examples=6)
@given(data=st.data())
def test_filters_over_other_axes_are_pycaffes(
    kind: str, batch: tuple[int, ...], axes: int, data: st.DataObject
) -> None:
    _filters(data, kind, axes, batch)


@settings(max_examples=8)
@given(data=st.data())
def test_convolution_over_four_axes_is_pycaffes(data: st.DataObject) -> None:
    _filters(data, "Convolution", 4, (2,))


STRIDED = """
import numpy as np
from tests.engines.pytorch.layer_trial import trial
for channels, outputs, size, stride in ((8, 16, 56, 2), (15, 3, 48, 2), (7, 12, 84, 3), (3, 128, 112, 2)):
    trial(
        f'type: "Convolution" convolution_param {{ num_output: {outputs} kernel_size: 1 stride: {stride} }}',
        [np.random.default_rng(channels).normal(size=(2, channels, size, size))],
        tolerance=1e-4,  # a gradient is a sum over thousands of places
    )
"""


def test_a_strided_1x1_convolution_of_few_channels_ends_no_process() -> None:
    """In a child: PyTorch 2.13 itself writes outside of its memory there."""
    root = Path(__file__).resolve().parents[3]
    child = subprocess.run(
        [sys.executable, "-c", STRIDED], cwd=root, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])


def test_a_kernel_somewhat_larger_than_its_bottom_counts_once_as_in_pycaffe() -> None:
    bottom = np.random.default_rng(0).normal(size=(2, 2, 3, 4))
    layer = 'type: "Convolution" convolution_param { num_output: 2 kernel_size: 5 stride: 3 }'
    ours, _ = trial(layer, [bottom])
    assert ours.tops[0].shape == (2, 2, 1, 1)


@pytest.mark.parametrize("axes", [1, 2, 3])
@settings(max_examples=10)
@given(data=st.data())
def test_im2col_is_pycaffes(axes: int, data: st.DataObject) -> None:
    text, windows = _options(data, axes)
    spatial = tuple(data.draw(st.integers(3, 6)) for _ in range(axes))
    for size, (kernel, stride, pad, dilation) in zip(spatial, windows, strict=True):
        assume(size + 2 * pad - dilation * (kernel - 1) - 1 > -stride)
    batch = data.draw(st.sampled_from([(2,), (), (2, 2)]))
    trial(
        f'type: "Im2col" convolution_param {{ {text} axis: {len(batch)} }}',
        [np.random.default_rng(axes).normal(size=(*batch, 2, *spatial))],
    )


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ('"Convolution" convolution_param { num_output: 4 }', "kernel_size 0 times"),
        (
            '"Convolution" convolution_param { num_output: 3 kernel_size: 1 group: 2 }',
            "group 2, which does not divide both its 4 channels and its num_output 3",
        ),
        (
            '"Convolution" convolution_param { num_output: 4 kernel_size: 9 }',
            "larger than its padded bottom",
        ),
        (
            '"Convolution" convolution_param { num_output: 4 kernel_size: 3 kernel_h: 3 }',
            "kernel_h or kernel_w",
        ),
        (
            '"Convolution" convolution_param { num_output: 4 kernel_size: 3 stride: 0 }',
            "stride 0: use 1 or more",
        ),
        ('"Convolution" convolution_param { kernel_size: 3 }', "num_output 0"),
        (
            '"Deconvolution" convolution_param { num_output: 4 kernel_size: 1 pad: 3 }',
            "use less pad",
        ),
        ('"Im2col" convolution_param { kernel_size: 2 axis: 3 }', "needs a spatial axis"),
    ],
)
def test_options_that_caffe_refuses_are_refused(layer: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        set_up(f"type: {layer}", [(2, 4, 5, 5)])


def test_deconvolution_over_four_axes_is_refused_with_a_remedy() -> None:
    layer = 'type: "Deconvolution" convolution_param { num_output: 1 kernel_size: 1 }'
    with pytest.raises(EngineError, match="up to 3 are computed here: use --engine caffe"):
        set_up(layer, [(1, 1, 2, 2, 2, 2)])
