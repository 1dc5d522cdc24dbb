"""Losses against pycaffe, forward and backward. SoftmaxWithLoss has a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedo.engines.caffe_import import load_caffe, prepare_environment
from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

few = settings(max_examples=12, deadline=None)
item_shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3)
batches = st.integers(1, 5)
NORMALIZATIONS = ["FULL", "VALID", "BATCH_SIZE", "NONE"]


def filled(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=tuple(shape)).astype(np.float32)


def whole(shape: Any, low: int, high: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, tuple(shape)).astype(np.float32)


def probabilities(shape: tuple[int, ...], axis: int = 1) -> np.ndarray:
    values = np.exp(filled(shape))
    return values / values.sum(axis, keepdims=True)


@few
@given(batch=batches, item=item_shapes, weight=st.sampled_from([1.0, -2.5]))
def test_euclidean_loss_trains_both_bottoms(batch: int, item: list[int], weight: float) -> None:
    bottoms = [filled((batch, *item)), filled((batch, *item), 1)]
    trial('type: "EuclideanLoss"', bottoms, top_diffs=[weight])


def test_euclidean_loss_takes_equally_many_values_of_another_shape() -> None:
    trial('type: "EuclideanLoss"', [filled((3, 2, 2)), filled((3, 4), 1)])


@few
@given(batch=batches, item=item_shapes, kinks=st.booleans(), weight=st.sampled_from([1.0, 0.5]))
@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_hinge_loss_has_no_gradient_at_its_kink(
    norm: str, batch: int, item: list[int], kinks: bool, weight: float
) -> None:
    shape = (batch, *item)
    scores = whole(shape, -2, 3) if kinks else filled(shape)
    labels = whole((batch,), 0, int(np.prod(item)), 1)
    trial(
        f'type: "HingeLoss" hinge_loss_param {{ norm: {norm} }}',
        [scores, labels],
        constant=[1],
        top_diffs=[weight],
    )


@few
@given(
    batch=batches,
    size=st.integers(1, 5),
    # Whole numbers make distances of 0 and of exactly the margin.
    kinks=st.booleans(),
    margin=st.sampled_from([1.0, 2.0, 0.3]),
    axes=st.sampled_from([(), (1, 1)]),
)
@pytest.mark.parametrize("legacy", ["true", "false"])
def test_contrastive_loss_is_pycaffes_at_and_beside_its_margin(
    legacy: str, batch: int, size: int, kinks: bool, margin: float, axes: tuple[int, ...]
) -> None:
    shape = (batch, size, *axes)
    make = (lambda seed: whole(shape, 0, 2, seed)) if kinks else (lambda seed: filled(shape, seed))
    alike = whole((batch, *axes, 1)[: 1 + len(axes)], 0, 2, 2)
    options = f"margin: {margin} legacy_version: {legacy}"
    trial(
        f'type: "ContrastiveLoss" contrastive_loss_param {{ {options} }}',
        [make(0), make(1), alike],
        constant=[2],
        top_diffs=[1.5],
    )


@few
@given(
    outer=batches,
    classes=st.integers(1, 4),
    inner=st.lists(st.integers(1, 3), min_size=0, max_size=2),
    ignored=st.sampled_from([None, 0, -1]),
    axis_from_behind=st.booleans(),
    rows=st.sampled_from([None, 1, 2]),
)
@pytest.mark.parametrize("normalization", [*NORMALIZATIONS, None])
def test_infogain_loss_with_a_matrix_from_below(
    normalization: str | None,
    outer: int,
    classes: int,
    inner: list[int],
    ignored: int | None,
    axis_from_behind: bool,
    rows: int | None,
) -> None:
    between = [] if rows is None else [rows]
    scores = filled((outer, *between, classes, *inner))
    matrix = filled((1, 1, classes, classes), 1)
    labels = whole((outer, *between, *inner), -1 if ignored == -1 else 0, classes, 2)
    axis = 1 + len(between)
    axis -= scores.ndim if axis_from_behind else 0
    options = "" if normalization is None else f"normalization: {normalization} "
    options += "" if ignored is None else f"ignore_label: {ignored}"
    trial(
        f'tops: 2\ntype: "InfogainLoss" infogain_loss_param {{ axis: {axis} }} loss_param {{ {options} }}',
        [scores, labels, matrix],
        constant=[1, 2],
        top_diffs=[2.0, None],
    )


def test_infogain_loss_reads_its_matrix_from_a_file(tmp_path: Path) -> None:
    prepare_environment(1)
    blob = load_caffe().proto.caffe_pb2.BlobProto()
    blob.shape.dim.extend([3, 3])
    blob.data.extend(filled((9,), 1).tolist())
    path = tmp_path / "matrix.binaryproto"
    path.write_bytes(blob.SerializeToString())
    trial(
        f'type: "InfogainLoss" infogain_loss_param {{ source: "{path}" }}',
        [filled((4, 3)), [0, 1, 2, 1]],
        constant=[1],
    )


def test_infogain_loss_clips_the_logarithm_and_not_its_gradient() -> None:
    matrix = np.eye(2).reshape(1, 1, 2, 2)
    trial('type: "InfogainLoss"', [[[200.0, 0.0]], [1], matrix], constant=[1, 2])


@few
@given(batch=batches, classes=st.integers(1, 5), axes=st.sampled_from([(), (1, 1)]))
def test_multinomial_logistic_loss_of_probabilities(
    batch: int, classes: int, axes: tuple[int, ...]
) -> None:
    scores = probabilities((batch, classes, *axes))
    labels = whole((batch, *axes), 0, classes)
    trial('type: "MultinomialLogisticLoss"', [scores, labels], constant=[1], top_diffs=[3.0])


def test_multinomial_logistic_loss_has_a_gradient_at_probability_0() -> None:
    trial('type: "MultinomialLogisticLoss"', [[[0.0, 1.0], [0.25, 0.75]], [0, 0]], constant=[1])


@few
@given(
    batch=batches,
    item=item_shapes,
    # A target's whole part is compared with ignore_label: 0.5 is ignored with 0.
    ignored=st.sampled_from([None, -1, 0, 1]),
)
@pytest.mark.parametrize(
    "normalization",
    [
        *(f"normalization: {mode}" for mode in NORMALIZATIONS),
        "",
        "normalize: true",
        "normalize: false",
    ],
)
def test_sigmoid_cross_entropy_loss_ignores_and_normalizes(
    normalization: str, batch: int, item: list[int], ignored: int | None
) -> None:
    targets = whole((batch, *item), -1 if ignored == -1 else 0, 3, 1) / 2
    targets[targets < 0] = -1
    options = normalization + ("" if ignored is None else f" ignore_label: {ignored}")
    trial(
        f'type: "SigmoidCrossEntropyLoss" loss_param {{ {options} }}',
        [filled((batch, *item)) * 3, targets],
        constant=[1],
        top_diffs=[0.5],
    )


def test_sigmoid_cross_entropy_loss_is_finite_far_from_0() -> None:
    values = [[-200.0, -30.0, 0.0, -0.0, 30.0, 200.0]] * 2
    targets = [[0.0] * 6, [1.0] * 6]
    trial('type: "SigmoidCrossEntropyLoss"', [values, targets], constant=[1])
