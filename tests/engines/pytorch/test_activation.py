"""Layers that compute each element by itself, against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.pytorch.layer_trial import compare, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


@pytest.mark.parametrize("slope", [0.0, 0.25, -0.5])
def test_relu_and_its_gradient_at_zero_are_pycaffes(slope: float) -> None:
    bottom = np.array([[-2.0, -0.0, 0.0, 3.0]])
    trial(f'type: "ReLU" relu_param {{ negative_slope: {slope} }}', [bottom])


def test_a_layer_that_differs_is_found() -> None:
    bottom = np.array([[-2.0, 0.5]])
    ours, theirs = trial('type: "ReLU"', [bottom])
    ours.tops[0] *= 1.001
    with pytest.raises(AssertionError, match=r"tops\[0\]: differs by 0.001"):
        compare(ours, theirs)
