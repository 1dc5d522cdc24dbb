"""Split and Silence against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


@pytest.mark.parametrize("tops", [1, 2, 3])
def test_split_adds_the_gradients_of_its_tops(tops: int) -> None:
    trial(f'tops: {tops}\ntype: "Split"', [np.arange(6.0).reshape(2, 3)])


def test_silence_takes_all_and_gives_no_gradient() -> None:
    ours, _ = trial('tops: 0\ntype: "Silence"', [np.ones((2, 3)), np.ones(4)])
    assert ours.tops == []
