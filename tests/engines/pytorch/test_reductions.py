"""Eltwise, ArgMax, Reduction and MVN against pycaffe, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

few = settings(max_examples=12, deadline=None)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def filled(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=tuple(shape)).astype(np.float32)


def repeating(shape: Any, seed: int = 0) -> np.ndarray:
    """Values among which many are equal, and many 0."""
    return np.random.default_rng(seed).integers(-1, 2, tuple(shape)).astype(np.float32)


@few
@given(shape=shapes, bottoms=st.integers(2, 4), ties=st.booleans())
@pytest.mark.parametrize(
    "options",
    [
        "operation: SUM",
        "operation: PROD",
        "operation: MAX",
        "",
        "operation: PROD stable_prod_grad: false",
    ],
)
def test_eltwise_combines_as_pycaffe_does(
    options: str, shape: list[int], bottoms: int, ties: bool
) -> None:
    # Where a factor is 0, the unstable gradient of a product is NaN in both.
    make = repeating if ties else filled
    trial(
        f'type: "Eltwise" eltwise_param {{ {options} }}',
        [make(shape, seed) for seed in range(bottoms)],
    )


@pytest.mark.parametrize("coefficients", [(1, -1), (0.5, 2, -3), (0, 1)])
def test_eltwise_sums_with_coefficients(coefficients: tuple[float, ...]) -> None:
    written = " ".join(f"coeff: {coefficient}" for coefficient in coefficients)
    bottoms = [filled((2, 3, 4), seed) for seed in range(len(coefficients))]
    trial(f'type: "Eltwise" eltwise_param {{ operation: SUM {written} }}', bottoms)


@few
@given(shape=shapes, data=st.data(), values=st.booleans(), ties=st.booleans())
def test_argmax_along_an_axis(shape: list[int], data: Any, values: bool, ties: bool) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    top_k = data.draw(st.integers(1, shape[axis]))
    options = f"axis: {axis} top_k: {top_k} out_max_val: {str(values).lower()}"
    bottom = repeating(shape) if ties else filled(shape)
    trial(f'type: "ArgMax" argmax_param {{ {options} }}', [bottom], backward=False)


@few
@given(shape=shapes, data=st.data(), values=st.booleans(), ties=st.booleans())
def test_argmax_of_each_item(shape: list[int], data: Any, values: bool, ties: bool) -> None:
    top_k = data.draw(st.integers(1, int(np.prod(shape[1:]))))
    options = f"top_k: {top_k} out_max_val: {str(values).lower()}"
    bottom = repeating(shape) if ties else filled(shape)
    trial(f'type: "ArgMax" argmax_param {{ {options} }}', [bottom], backward=False)


@few
@given(shape=shapes, data=st.data(), coefficient=st.sampled_from([1.0, -0.5, 3.0]))
@pytest.mark.parametrize("operation", ["SUM", "ASUM", "SUMSQ", "MEAN"])
def test_reduction_of_the_last_axes(
    operation: str, shape: list[int], data: Any, coefficient: float
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    options = f"operation: {operation} axis: {axis} coeff: {coefficient}"
    # A large mean, so that sums do not cancel to noise; zeros too, for ASUM's gradient there.
    bottom = filled(shape) + 3 if operation in ("SUM", "MEAN") else repeating(shape) * 2
    trial(f'type: "Reduction" reduction_param {{ {options} }}', [bottom])


@few
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 2, *[st.integers(2, 6)] * 2),
    across=st.booleans(),
    epsilon=st.sampled_from([1e-9, 1e-2, 0.5]),
)
@pytest.mark.parametrize("normalize", ["true", "false"])
def test_mvn_normalizes_as_pycaffe_does(
    normalize: str, shape: tuple[int, ...], across: bool, epsilon: float
) -> None:
    options = (
        f"normalize_variance: {normalize} across_channels: {str(across).lower()} eps: {epsilon}"
    )
    trial(f'type: "MVN" mvn_param {{ {options} }}', [filled(shape)], tolerance=2e-5)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5)])
def test_mvn_gives_four_axes_whatever_its_bottom_has(shape: tuple[int, ...]) -> None:
    trial('type: "MVN" mvn_param { across_channels: true }', [filled(shape)], tolerance=2e-5)


def test_mvn_of_a_constant_channel_divides_by_epsilon() -> None:
    bottom = filled((2, 2, 3, 3))
    bottom[0, 1] = 0.5
    trial('type: "MVN" mvn_param { eps: 0.125 }', [bottom])
