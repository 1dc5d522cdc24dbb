"""InnerProduct against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


@settings(max_examples=40)
@given(
    data=st.data(),
    shape=array_shapes(min_dims=1, max_dims=5, max_side=4),
    outputs=st.integers(1, 5),
    bias=st.booleans(),
    transpose=st.booleans(),
    phase=st.sampled_from(["TRAIN", "TEST"]),
)
def test_inner_product_is_pycaffes(
    data: st.DataObject,
    shape: tuple[int, ...],
    outputs: int,
    bias: bool,
    transpose: bool,
    phase: str,
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    options = f"axis: {axis} bias_term: {str(bias).lower()} transpose: {str(transpose).lower()}"
    bottom = np.random.default_rng(outputs).normal(size=shape)
    trial(
        f'type: "InnerProduct" inner_product_param {{ num_output: {outputs} {options} }}',
        [bottom],
        phase=phase,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("num_output: 2 axis: 2", "axis 2, but its bottom has 2 axes: use one of -2 to 1"),
        ("", "num_output 0: use 1 or more"),
    ],
)
def test_options_that_caffe_refuses_are_refused(options: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        set_up(f'type: "InnerProduct" inner_product_param {{ {options} }}', [(3, 4)])
