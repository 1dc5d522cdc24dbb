"""BatchNorm against pycaffe: both modes, the three blobs after several passes, the gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

# A batch of few values has a gradient near 0 by cancellation, whose rounding has no common size.
SHAPES = array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=4).map(lambda shape: (8, *shape))


@settings(max_examples=50)
@given(
    shape=SHAPES,
    options=st.sampled_from(
        [
            "",
            "moving_average_fraction: 0.9",
            "eps: 0.01",
            "use_global_stats: true",
            "use_global_stats: false",
        ]
    ),
    phase=st.sampled_from(["TRAIN", "TEST"]),
    passes=st.integers(1, 3),
    weight=st.sampled_from([0.0, 1.0, 999.5]),
)
def test_batch_norm_is_pycaffes(
    shape: tuple[int, ...], options: str, phase: str, passes: int, weight: float
) -> None:
    rng = np.random.default_rng(passes)
    channels = shape[1]
    blobs = [rng.normal(size=channels), rng.uniform(0.5, 2, channels), [weight]]
    blobs = [np.asarray(blob) * max(weight, 1) for blob in blobs[:2]] + [np.array([weight])]
    trial(
        f'type: "BatchNorm" batch_norm_param {{ {options} }}',
        [rng.normal(0.5, 2, shape)],
        phase=phase,
        passes=passes,
        blobs=blobs,
    )


def test_one_value_by_channel_has_no_unbiased_variance() -> None:
    ours, _ = trial('type: "BatchNorm"', [[[3.0, -4.0]]], blobs=[[0, 0], [0, 0], [0]])
    assert [blob.tolist() for blob in ours.blobs] == [[3, -4], [0, 0], [1]]


def test_its_blobs_are_statistics() -> None:
    layer = set_up('type: "BatchNorm"', [(2, 3, 4)])
    assert [(spec.shape, spec.statistic) for spec in layer.blobs] == [
        ((3,), True),
        ((3,), True),
        ((1,), True),
    ]


def test_a_learning_rate_for_statistics_is_refused() -> None:
    with pytest.raises(EngineError, match="its blobs are statistics"):
        set_up('type: "BatchNorm" param { lr_mult: 1 }', [(2, 3)])
