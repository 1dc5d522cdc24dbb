"""LRN against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@settings(max_examples=40)
@given(
    shape=array_shapes(min_dims=4, max_dims=4, max_side=7),
    size=st.sampled_from([1, 3, 5, 7]),
    alpha=st.sampled_from([1e-4, 0.5, 2.0]),
    beta=st.sampled_from([0.75, 0.5, 1.0, 0.3]),
    k=st.sampled_from([1.0, 2.0]),
    phase=st.sampled_from(["TRAIN", "TEST"]),
)
def test_lrn_and_its_gradient_are_pycaffes(
    region: str,
    shape: tuple[int, ...],
    size: int,
    alpha: float,
    beta: float,
    k: float,
    phase: str,
) -> None:
    trial(
        f'type: "LRN" lrn_param {{ norm_region: {region} local_size: {size} alpha: {alpha} beta: {beta} k: {k} }}',
        [np.random.default_rng(size).normal(0, 2, shape)],
        phase=phase,
    )


def test_a_batch_in_several_slices_is_pycaffes(monkeypatch: pytest.MonkeyPatch) -> None:
    from caffenets.layers import lrn

    monkeypatch.setattr(lrn, "_SLICE_BYTES", 4 * 2 * 6 * 3 * 3)  # two images
    trial('type: "LRN"', [np.random.default_rng(0).normal(size=(5, 6, 3, 3))])


def test_an_even_size_is_refused() -> None:
    with pytest.raises(EngineError, match="local_size 4: use an odd number"):
        set_up('type: "LRN" lrn_param { local_size: 4 }', [(1, 5, 2, 2)])
