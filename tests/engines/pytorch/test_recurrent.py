"""LSTM, RNN and LSTMUnit against pycaffe, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

few = settings(max_examples=8, deadline=None)
FILLERS = 'weight_filler { type: "uniform" min: -0.5 max: 0.5 } bias_filler { type: "constant" value: 0.1 }'


def filled(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=tuple(shape)).astype(np.float32)


def marks(steps: int, sequences: int, seed: int = 9) -> np.ndarray:
    """Where sequences go on; some begin amid a batch, some go on from the batch before."""
    return (np.random.default_rng(seed).random((steps, sequences)) < 0.7).astype(np.float32)


@few
@given(
    steps=st.integers(1, 4),
    sequences=st.integers(1, 3),
    inputs=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    size=st.integers(1, 4),
    static=st.sampled_from([None, (3,), (2, 2)]),
    passes=st.integers(1, 3),
)
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_a_batch_goes_on_where_the_one_before_ended(
    kind: str,
    phase: str,
    steps: int,
    sequences: int,
    inputs: list[int],
    size: int,
    static: tuple[int, ...] | None,
    passes: int,
) -> None:
    bottoms = [filled((steps, sequences, *inputs)), marks(steps, sequences)]
    if static is not None:
        bottoms.append(filled((sequences, *static), 1))
    trial(
        f'type: "{kind}" recurrent_param {{ num_output: {size} {FILLERS} }}',
        bottoms,
        phase=phase,
        constant=[1],
        passes=passes,
    )


@few
@given(steps=st.integers(1, 3), sequences=st.integers(1, 3), static=st.booleans())
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_exposed_states_come_from_below_and_get_no_gradient(
    kind: str, steps: int, sequences: int, static: bool
) -> None:
    states = 2 if kind == "LSTM" else 1
    bottoms = [filled((steps, sequences, 2)), marks(steps, sequences)]
    if static:
        bottoms.append(filled((sequences, 3), 1))
    bottoms += [filled((1, sequences, 4), 2 + state) for state in range(states)]
    trial(
        f'tops: {1 + states}\ntype: "{kind}" '
        f"recurrent_param {{ num_output: 4 expose_hidden: true {FILLERS} }}",
        bottoms,
        constant=[1, *range(len(bottoms) - states, len(bottoms))],
        top_diffs=[0.5, *[None] * states],
    )


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_the_gradient_of_an_exposed_state_is_dropped(kind: str) -> None:
    states = 2 if kind == "LSTM" else 1
    bottoms = [filled((2, 2, 3)), marks(2, 2)]
    bottoms += [filled((1, 2, 4), 2 + state) for state in range(states)]
    trial(
        f'tops: {1 + states}\ntype: "{kind}" '
        f"recurrent_param {{ num_output: 4 expose_hidden: true {FILLERS} }}",
        bottoms,
        constant=[1],
        top_diffs=[0.5, *[2.0] * states],
    )


@few
@given(sequences=st.integers(1, 4), size=st.integers(1, 5))
def test_a_step_with_a_mark_between_0_and_1_has_pycaffes_gradient(
    sequences: int, size: int
) -> None:
    cell, gates = filled((1, sequences, size)), filled((1, sequences, 4 * size), 1)
    trial(
        'tops: 2\ntype: "LSTMUnit"',
        [cell, gates, np.linspace(0, 1, sequences)[None]],
        constant=[2],
    )
