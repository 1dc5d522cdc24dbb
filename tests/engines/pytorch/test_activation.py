"""Layers that compute each element by itself, against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import compare, set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

SEEDS = st.integers(0, 2**16)
PHASES = st.sampled_from(["TRAIN", "TEST"])
LAYERS = {
    "ReLU": ["", "relu_param { negative_slope: 0.25 }", "relu_param { negative_slope: -0.5 }"],
    "ELU": ["", "elu_param { alpha: 0.3 }"],
    "Sigmoid": [""],
    "TanH": [""],
    "AbsVal": [""],
    "BNLL": [""],
    "Swish": ["", "swish_param { beta: -1.5 }", "swish_param { beta: 0 }"],
    "Clip": ["clip_param { min: -0.5 max: 1 }"],
    "Exp": [
        "",
        "exp_param { base: 2 }",
        "exp_param { base: 0.5 scale: -2 shift: 1.5 }",
        "exp_param { shift: -1 scale: 0.3 }",
    ],
    "Power": [
        "",
        "power_param { scale: -2 shift: 0.5 }",
        "power_param { power: 2 scale: 0.5 shift: -1 }",
        "power_param { power: 3 }",
        "power_param { power: -1 scale: 2 }",
        "power_param { power: 0 shift: 3 }",
        "power_param { power: 2.5 scale: 0 shift: 3 }",
    ],
}


@pytest.mark.parametrize(
    ("kind", "options"), [(kind, options) for kind in LAYERS for options in LAYERS[kind]]
)
@settings(max_examples=6)
@given(shape=array_shapes(min_dims=1, max_dims=5, max_side=4), seed=SEEDS, phase=PHASES)
def test_each_element_and_its_gradient_are_pycaffes(
    kind: str, options: str, shape: tuple[int, ...], seed: int, phase: str
) -> None:
    bottom = np.random.default_rng(seed).normal(0, 2, shape)
    trial(f'type: "{kind}" {options}', [bottom], phase=phase, seed=seed)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Log", ""),
        ("Log", "log_param { base: 10 }"),
        ("Log", "log_param { base: 0.5 scale: 3 shift: 1 }"),
        ("Power", "power_param { power: 0.5 }"),
        ("Power", "power_param { power: -1.7 scale: 0.5 shift: 0.25 }"),
    ],
)
@settings(max_examples=6)
@given(shape=array_shapes(max_dims=4, max_side=4), seed=SEEDS)
def test_logarithms_and_roots_of_what_is_above_zero_are_pycaffes(
    kind: str, options: str, shape: tuple[int, ...], seed: int
) -> None:
    bottom = np.random.default_rng(seed).uniform(0.1, 3, shape)
    trial(f'type: "{kind}" {options}', [bottom], seed=seed)


@pytest.mark.parametrize("slope", [0.0, 0.25, -0.5])
def test_relu_and_its_gradient_at_zero_are_pycaffes(slope: float) -> None:
    trial(f'type: "ReLU" relu_param {{ negative_slope: {slope} }}', [[[-2.0, -0.0, 0.0, 3.0]]])


@pytest.mark.parametrize(
    ("layer", "bottom"),
    [
        ('"ELU" elu_param { alpha: 0.5 }', [-1.0, -0.0, 0.0, 1.0]),
        ('"AbsVal"', [-1.0, -0.0, 0.0, 1.0]),
        ('"Clip" clip_param { min: -1 max: 2 }', [-1.5, -1.0, 0.0, 2.0, 2.5]),
        ('"BNLL"', [-200.0, -60.0, -20.0, 0.0, 20.0, 49.0, 51.0, 60.0, 200.0]),
        ('"Sigmoid"', [-100.0, 0.0, 100.0]),
    ],
)
def test_gradients_at_kinks_and_far_away_are_pycaffes(layer: str, bottom: list[float]) -> None:
    trial(f"type: {layer}", [bottom])


def test_threshold_is_pycaffes_and_gives_no_gradient() -> None:
    bottom = np.array([[-1.0, 0.5, 0.5001, 2.0]])
    ours, _ = trial(
        'type: "Threshold" threshold_param { threshold: 0.5 }', [bottom], backward=False
    )
    assert ours.tops[0].tolist() == [[0, 0, 1, 1]]


@settings(max_examples=20)
@given(
    shape=array_shapes(min_dims=2, max_dims=4, max_side=4),
    seed=SEEDS,
    shared=st.booleans(),
    phase=PHASES,
)
def test_prelu_learns_slopes_as_pycaffe_does(
    shape: tuple[int, ...], seed: int, shared: bool, phase: str
) -> None:
    bottom = np.random.default_rng(seed).normal(size=shape).round(1)  # with zeros
    layer = f'type: "PReLU" prelu_param {{ channel_shared: {str(shared).lower()} }}'
    # A shared slope's gradient is a sum of up to 256 terms, which may cancel to less than their rounding allows.
    trial(layer, [bottom], seed=seed, phase=phase, tolerance=1e-4 if shared else 1e-5)


def test_prelu_begins_with_a_quarter() -> None:
    (spec,) = set_up('type: "PReLU"', [(2, 3)]).blobs
    assert (spec.shape, spec.filler.type, spec.filler.value) == ((3,), "constant", 0.25)


def test_dropout_zeroes_its_ratio_and_scales_what_it_keeps() -> None:
    import torch

    layer = set_up('type: "Dropout" dropout_param { dropout_ratio: 0.3 }', [(400, 500)])
    torch.manual_seed(3)
    bottom = torch.rand(400, 500).add_(0.5).requires_grad_()
    (top,) = layer.forward([bottom], [])
    kept = top != 0
    # 200,000 draws: 0.005 is almost five standard deviations.
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.005)
    torch.testing.assert_close(top[kept], bottom[kept] / 0.7)
    top.sum().backward()
    torch.testing.assert_close(bottom.grad, kept.float() / 0.7)  # the same mask
    assert not torch.equal(layer.forward([bottom], [])[0] != 0, kept)  # drawn again


def test_dropout_in_tests_is_the_identity() -> None:
    trial('type: "Dropout"', [np.arange(6.0)], phase="TEST")


def test_a_layer_that_differs_is_found() -> None:
    ours, theirs = trial('type: "ReLU"', [[[-2.0, 0.5]]])
    ours.tops[0] *= 1.001
    with pytest.raises(AssertionError, match=r"tops\[0\]: differs by 0.001"):
        compare(ours, theirs)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ('"Dropout" dropout_param { dropout_ratio: 1 }', "dropout_ratio 1.0: use 0 or more"),
        ('"Exp" exp_param { base: -2 }', "base -2.0: use a base above 0"),
        ('"Log" log_param { base: 1 }', "base 1, to which there is no logarithm"),
        ('"PReLU"', "2 axes or more"),
    ],
)
def test_options_that_caffe_refuses_are_refused(layer: str, said: str) -> None:
    with pytest.raises(EngineError, match=f"^layer 'tried' .*{said}"):
        set_up(f"type: {layer}", [(5,)])
