"""BatchReindex, Filter, Embed and Parameter against pycaffe, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

few = settings(max_examples=12, deadline=None)
items = st.lists(st.integers(1, 3), min_size=0, max_size=3)


def filled(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@few
@given(item=items, indices=st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_batch_reindex_adds_the_gradients_of_repeated_items(
    item: list[int], indices: list[int]
) -> None:
    trial('type: "BatchReindex"', [filled((4, *item)), indices], constant=[1])


@few
@given(
    item=items,
    other=items,
    selector=st.lists(st.sampled_from([0, 1, -2, 0.5]), min_size=1, max_size=6).filter(any),
)
def test_filter_passes_chosen_items_and_gives_others_no_gradient(
    item: list[int], other: list[int], selector: list[float]
) -> None:
    batch = len(selector)
    mask = np.array(selector).reshape(batch, 1, 1)
    bottoms = [filled((batch, *item)), filled((batch, *other), 1), mask]
    trial('tops: 2\ntype: "Filter"', bottoms, constant=[2])


@few
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3), words=st.integers(1, 5))
@pytest.mark.parametrize("bias", ["true", "false"])
def test_embed_looks_up_rows(bias: str, shape: list[int], words: int) -> None:
    indices = np.random.default_rng(1).integers(0, words, shape)
    options = f"num_output: 3 input_dim: {words} bias_term: {bias}"
    trial(f'type: "Embed" embed_param {{ {options} }}', [indices], constant=[0])


def test_a_parameter_is_its_top() -> None:
    trial('type: "Parameter" parameter_param { shape { dim: 2 dim: 3 } }', [], backward=False)
