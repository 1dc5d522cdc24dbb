"""Faster R-CNN's layers: its table of anchors, codes worked by hand, and what is proposed and trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from speedo.errors import EngineError
from tests.engines.pytorch.formulas import layer_of, tops_of

pytestmark = pytest.mark.torch

# That of py-faster-rcnn's generate_anchors.py, which counts from 0.
ANCHORS = [
    [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
    [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
    [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
]  # fmt: skip
SMALL = "ratio: 1 scale: 1"  # one anchor of 16 x 16: 0, 0, 15, 15


def test_the_anchors_are_those_published() -> None:
    from caffenets.layers.proposals import anchors_of

    assert anchors_of(16, (0.5, 1, 2), (8, 16, 32)).tolist() == ANCHORS


def test_codes_of_pixels_are_those_worked_by_hand() -> None:
    import torch

    from caffenets.layers.proposals import codes_of, moved

    # 16 x 16 around (8, 8) to 32 x 16 around (24, 8): one width to the right, twice as wide.
    box, true = torch.tensor([[0.0, 0, 15, 15]]), torch.tensor([[8.0, 0, 39, 15]])
    np.testing.assert_allclose(codes_of(box, true), [[1, 0, np.log(2), 0]], atol=1e-6)
    # As published, the inverse does not take the last pixel off again.
    np.testing.assert_allclose(moved(box, codes_of(box, true)), [[8, 0, 40, 16]], atol=1e-5)


def proposal_bottoms() -> list[Any]:
    scores = np.zeros((1, 2, 2, 3))
    scores[0, 1] = [[0.9, 0.2, 0.3], [0.8, 0.1, 0.7]]
    return [scores, np.zeros((1, 4, 2, 3)), [[32.0, 40.0, 1.0]]]


def test_proposals_are_cut_to_the_image_sorted_and_suppressed() -> None:
    text = f'type: "Proposal" proposal_param {{ {SMALL} nms_thresh: 0.7 min_size: 10 post_nms_topn: 4 }}'
    regions, scores = tops_of(text, proposal_bottoms(), phase="TEST", tops=2)
    # The third column is cut to x from 32 to 39: 8 wide, less than min_size.
    np.testing.assert_allclose(
        regions, [[0, 0, 0, 16, 16], [0, 0, 16, 16, 31], [0, 16, 0, 32, 16], [0, 16, 16, 32, 31]]
    )
    np.testing.assert_allclose(scores.ravel(), [0.9, 0.8, 0.2, 0.1], atol=1e-6)
    with_images = [*proposal_bottoms()[:2], np.zeros((1, 3, 32, 40))]
    np.testing.assert_array_equal(tops_of(text, with_images, phase="TEST")[0], regions)


def test_the_python_layer_of_that_name_is_the_same() -> None:
    python = """type: "Python" python_param { module: "rpn.proposal_layer" layer: "ProposalLayer"
      param_str: "{'feat_stride': 16, 'scales': [1], 'ratios': [1]}" }"""
    native = f'type: "Proposal" proposal_param {{ {SMALL} }}'
    bottoms = proposal_bottoms()
    np.testing.assert_array_equal(tops_of(python, bottoms)[0], tops_of(native, bottoms)[0])
    with pytest.raises(EngineError, match="no YAML of options"):
        layer_of(python.replace("{'feat", "{{'feat"), [np.shape(one) for one in bottoms])


def test_anchors_are_labelled_by_their_overlap() -> None:
    # Anchors of 16 x 16 at four places; the box is the second, and half over the third.
    scores, labels = np.zeros((1, 2, 1, 4)), [[18.0, 0, 33, 15, 1]]
    text = f'type: "AnchorTarget" proposal_param {{ {SMALL} }}'
    label, codes, inside, outside = tops_of(
        text, [scores, labels, [[16.0, 64.0, 1.0]], np.zeros((1, 3, 16, 64))], tops=4
    )
    # 14 of 18 columns are shared with the second: 0.78; 2 of 30 with the third.
    assert label.ravel().tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(codes[0, :, 0, 1], [2 / 16, 0, 0, 0], atol=1e-6)
    assert inside[0, :, 0].sum(0).tolist() == [0, 4, 0, 0]
    np.testing.assert_allclose(outside[0, 0, 0], [0.25] * 4)


def test_annotated_data_and_py_faster_rcnn_name_the_same_boxes() -> None:
    scores = np.zeros((1, 2, 1, 4))
    text = f'type: "AnchorTarget" proposal_param {{ {SMALL} }}'
    images, info = np.zeros((1, 3, 16, 64)), [[16.0, 64.0, 1.0]]
    rows = [[[[0, 1, 0, 18 / 64, 0, 34 / 64, 1, 0]]]]
    ours = tops_of(text, [scores, rows, info, images], tops=4)
    theirs = tops_of(text, [scores, [[18.0, 0, 33, 15, 1]], info, images], tops=4)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_at_most_256_anchors_count_half_of_them_on_objects() -> None:
    chance = np.random.default_rng(0)
    low = chance.uniform(0, 400, (60, 2))
    labels = np.concatenate([low, low + chance.uniform(20, 100, (60, 2)), np.ones((60, 1))], 1)
    text = 'type: "AnchorTarget" proposal_param { scale: 2 scale: 4 }'
    label, *_ = tops_of(
        text,
        [np.zeros((1, 12, 32, 32)), labels, [[512.0, 512.0, 1.0]], np.zeros((1, 3, 512, 512))],
        tops=4,
    )
    assert (label >= 0).sum() == 256
    assert 0 < (label == 1).sum() <= 128


def test_regions_are_chosen_with_class_and_codes() -> None:
    regions = [[0.0, 0, 0, 15, 15], [0, 100, 100, 120, 120], [0, 2, 0, 17, 15]]
    text = """type: "Python" python_param { module: "rpn.proposal_target_layer" layer: "ProposalTargetLayer"
      param_str: "'num_classes': 3" }"""
    chosen, label, codes, inside, outside = tops_of(text, [regions, [[0.0, 0, 15, 15, 2]]], tops=5)
    # The box itself is a region, too; the region far away is background.
    order = np.argsort(-label, kind="stable")
    assert sorted(label.tolist()) == [0, 2, 2, 2]
    assert inside.shape == (4, 12)
    assert inside[order[0]].tolist() == [0] * 8 + [1] * 4
    row = int(np.flatnonzero(chosen[:, 1] == 2)[0])
    np.testing.assert_allclose(codes[row, 8:], [-2 / 16 / 0.1, 0, 0, 0], atol=1e-5)
    assert (codes[label == 0] == 0).all()
    assert (outside == inside).all()
