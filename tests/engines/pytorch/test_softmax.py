"""Softmax, SoftmaxWithLoss and Accuracy against pycaffe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from speedo.errors import EngineError
from tests.engines.pytorch.layer_trial import set_up, trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

PHASES = st.sampled_from(["TRAIN", "TEST"])
SEEDS = st.integers(0, 2**16)


@settings(max_examples=25)
@given(data=st.data(), shape=array_shapes(max_dims=4, max_side=5), seed=SEEDS, phase=PHASES)
def test_softmax_is_pycaffes(
    data: st.DataObject, shape: tuple[int, ...], seed: int, phase: str
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    bottom = np.random.default_rng(seed).normal(size=shape)
    # The gradient of a single class is 0 but for rounding.
    backward = shape[axis] > 1
    trial(
        f'type: "Softmax" softmax_param {{ axis: {axis} }}',
        [bottom],
        phase=phase,
        backward=backward,
    )


def _labelled(data: st.DataObject, shape: tuple[int, ...], seed: int, first: int = 0) -> tuple:
    """An axis, scores and labels."""
    axis = data.draw(st.integers(first, len(shape) - 1), label="axis")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, shape[axis], (*shape[:axis], *shape[axis + 1 :]))
    return axis, rng.normal(0, 2, shape), labels


@settings(max_examples=80)
@given(
    data=st.data(),
    shape=array_shapes(min_dims=2, max_dims=4, min_side=2, max_side=5),
    seed=SEEDS,
    normalization=st.sampled_from(
        [
            "",
            "normalization: FULL",
            "normalization: VALID",
            "normalization: BATCH_SIZE",
            "normalization: NONE",
            "normalize: true",
            "normalize: false",
            "normalize: false normalization: FULL",
        ]
    ),
    ignored=st.sampled_from([None, 0, 1]),
    weight=st.sampled_from([1.0, 0.3]),
    phase=PHASES,
)
def test_the_softmax_loss_is_pycaffes(
    data: st.DataObject,
    shape: tuple[int, ...],
    seed: int,
    normalization: str,
    ignored: int | None,
    weight: float,
    phase: str,
) -> None:
    axis, scores, labels = _labelled(data, shape, seed, first=1)
    ignore = "" if ignored is None else f"ignore_label: {ignored}"
    trial(
        f'type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }} '
        f"loss_param {{ {normalization} {ignore} }}",
        [scores, labels],
        constant=[1],
        phase=phase,
        top_diffs=[weight],
    )


def test_a_second_top_of_the_loss_has_the_probabilities() -> None:
    """Caffe has it in its code, and a CHECK of loss weights that no net with it passes."""
    import torch

    layer = set_up('tops: 2\ntype: "SoftmaxWithLoss"', [(2, 3), (2,)])
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 5.0]], requires_grad=True)
    loss, probabilities = layer.forward([scores, torch.tensor([0.0, 2.0])], [])
    torch.testing.assert_close(probabilities, torch.softmax(scores, 1))
    assert loss.requires_grad
    assert not probabilities.requires_grad


def test_ignored_labels_need_be_no_classes() -> None:
    layer = 'type: "SoftmaxWithLoss" loss_param { ignore_label: 255 }'
    trial(layer, [np.eye(3), [0, 255, 2]], constant=[1])
    layer = 'type: "SoftmaxWithLoss" loss_param { ignore_label: -1 }'
    trial(layer, [np.eye(3), [-1, -1, -1]], constant=[1])


def test_a_loss_stops_at_the_least_float_and_its_gradient_does_not() -> None:
    scores = [[0.0, 200.0, 0.0], [0.0, 60.0, 0.0]]
    ours, _ = trial('type: "SoftmaxWithLoss"', [scores, [0, 0]], constant=[1])
    assert float(ours.tops[0]) == pytest.approx((87.3365 + 60) / 2, rel=1e-5)
    assert ours.bottom_diffs[0] is not None
    assert ours.bottom_diffs[0][0].tolist() == [-0.5, 0.5, 0]


@settings(max_examples=50)
@given(
    data=st.data(),
    shape=array_shapes(min_dims=1, max_dims=4, min_side=2, max_side=5),
    seed=SEEDS,
    ignored=st.sampled_from([None, 0, 1]),
    tied=st.booleans(),
    tops=st.integers(1, 2),
)
def test_accuracy_is_pycaffes(
    data: st.DataObject,
    shape: tuple[int, ...],
    seed: int,
    ignored: int | None,
    tied: bool,
    tops: int,
) -> None:
    axis, scores, labels = _labelled(data, shape, seed)
    top_k = data.draw(st.integers(1, shape[axis]), label="top_k")
    ignore = "" if ignored is None else f"ignore_label: {ignored}"
    trial(
        f'tops: {tops}\ntype: "Accuracy" accuracy_param {{ axis: {axis} top_k: {top_k} {ignore} }}',
        [scores.round() if tied else scores, labels],
        backward=False,
        phase="TEST",
    )


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy"])
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_is_no_class_is_named(kind: str, label: int) -> None:
    import torch

    layer = set_up(f'type: "{kind}"', [(2, 3), (2,)])
    with pytest.raises(
        EngineError, match=f"label {label}, but has 3 classes: labels go from 0 to 2"
    ):
        layer.forward([torch.zeros(2, 3), torch.tensor([0.0, label])], [])


@pytest.mark.parametrize(
    ("layer", "shapes", "said"),
    [
        ('"SoftmaxWithLoss"', [(2, 3), (4,)], "4 labels for 2 predictions"),
        ('"SoftmaxWithLoss"', [(2, 3, 4), (8,)], "their first axes must be equal"),
        ('"Accuracy" accuracy_param { top_k: 4 }', [(2, 3), (2,)], "top_k 4 of 3 classes"),
        ('"Softmax" softmax_param { axis: 2 }', [(2, 3)], "axis 2, but its bottom has 2 axes"),
    ],
)
def test_what_caffe_refuses_is_refused(
    layer: str, shapes: list[tuple[int, ...]], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        set_up(f"type: {layer}", shapes)
