"""InnerProduct against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(
    "options",
    [
        "",
        "bias_term: false",
        "axis: 2",
        "axis: -1",
        "axis: 0",
        "transpose: true",
        "axis: 2 transpose: true",
    ],
)
def test_inner_product_multiplies_as_pycaffe_does(phase: str, options: str) -> None:
    bottom = np.random.default_rng(0).normal(size=(3, 2, 4, 5))
    trial(
        f'type: "InnerProduct" inner_product_param {{ num_output: 6 {options} }}',
        [bottom],
        phase=phase,
    )
