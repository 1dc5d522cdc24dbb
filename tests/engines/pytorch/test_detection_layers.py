"""SSD's boxes: tables of priors, codes, matches, suppression and precision that were worked by hand, and its loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from speedo.engines.average_precision import by_class
from speedo.errors import EngineError
from tests.engines.pytorch.formulas import check_gradients, layer_of, spread, tops_of

pytestmark = pytest.mark.torch

# One place in an image of 100 x 100: squares of 20 and of sqrt(20 x 45) = 30, and 20 sqrt(2) x 20 / sqrt(2) both ways.
PRIORS = """type: "PriorBox" prior_box_param { min_size: 20 max_size: 45 aspect_ratio: 2 clip: false
  variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }"""
WORKED_PRIORS = [
    [0.40, 0.40, 0.60, 0.60],
    [0.35, 0.35, 0.65, 0.65],
    [0.3586, 0.4293, 0.6414, 0.5707],
    [0.4293, 0.3586, 0.5707, 0.6414],
]


def test_the_priors_of_a_place_are_those_worked_by_hand() -> None:
    (top,) = tops_of(PRIORS, [np.zeros((1, 8, 1, 1)), np.zeros((1, 3, 100, 100))])
    assert top.shape == (1, 2, 16)
    np.testing.assert_allclose(top[0, 0].reshape(4, 4), WORKED_PRIORS, atol=1e-4)
    np.testing.assert_allclose(top[0, 1].reshape(4, 4), [[0.1, 0.1, 0.2, 0.2]] * 4)


def test_priors_go_row_by_row_and_are_cut_where_asked() -> None:
    text = 'type: "PriorBox" prior_box_param { min_size: 40 clip: %s }'
    (top,) = tops_of(text % "false", [np.zeros((1, 8, 2, 2)), np.zeros((1, 3, 50, 100))])
    boxes = top[0, 0].reshape(4, 4)
    # Centers at 25 and 75 of the width, 12.5 and 37.5 of the height; 40 pixels are 0.4 and 0.8.
    expected = [
        [0.05, -0.15, 0.45, 0.65],
        [0.55, -0.15, 0.95, 0.65],
        [0.05, 0.35, 0.45, 1.15],
        [0.55, 0.35, 0.95, 1.15],
    ]
    np.testing.assert_allclose(boxes, expected, atol=1e-6)
    (cut,) = tops_of(text % "true", [np.zeros((1, 8, 2, 2)), np.zeros((1, 3, 50, 100))])
    np.testing.assert_allclose(cut[0, 0].reshape(4, 4), np.clip(expected, 0, 1), atol=1e-6)
    np.testing.assert_allclose(cut[0, 1], 0.1)


@pytest.mark.parametrize(
    "offset", ["step: 50 offset: 0", "step_h: 50 step_w: 50 img_size: 100 offset: 0"]
)
def test_priors_take_step_and_offset(offset: str) -> None:
    text = f'type: "PriorBox" prior_box_param {{ min_size: 40 {offset} }}'
    (top,) = tops_of(text, [np.zeros((1, 8, 2, 2)), np.zeros((1, 3, 100, 100))])
    np.testing.assert_allclose(top[0, 0].reshape(4, 4)[3], [0.3, 0.3, 0.7, 0.7], atol=1e-6)


CODES = {
    # The prior is 0.2 x 0.2 around (0.5, 0.5), the box 0.4 x 0.1 around (0.6, 0.45).
    "CORNER": [-0.0, 0.0, 0.2, -0.1],
    "CENTER_SIZE": [0.5, -0.25, math.log(2), math.log(0.5)],
    "CORNER_SIZE": [-0.0, 0.0, 1.0, -0.5],
}


@pytest.mark.parametrize("code", CODES)
def test_codes_are_those_worked_by_hand_and_mean_the_box(code: Any) -> None:
    import torch

    from caffenets.layers.boxes import decoded, encoded

    prior, box = torch.tensor([[0.4, 0.4, 0.6, 0.6]]), torch.tensor([[0.4, 0.4, 0.8, 0.5]])
    variance = torch.tensor([[0.1, 0.1, 0.2, 0.2]])
    plain = encoded(box, prior, None, code)
    np.testing.assert_allclose(plain[0], CODES[code], atol=1e-5)
    scaled = encoded(box, prior, variance, code)
    np.testing.assert_allclose(scaled, plain / variance, atol=1e-4)
    np.testing.assert_allclose(decoded(plain, prior, None, code), box, atol=1e-6)
    np.testing.assert_allclose(decoded(scaled, prior, variance, code), box, atol=1e-6)


def test_matches_are_those_worked_by_hand() -> None:
    import torch

    from caffenets.layers.boxes import matches, overlaps

    # Two squares of 2 that share half: 2 of 6. One of 1 in one of 2: 1 of 4.
    boxes = torch.tensor([[0.0, 0, 2, 2], [1, 0, 3, 2], [0, 0, 1, 1], [5, 5, 6, 6]])
    table = overlaps(boxes, boxes[:3])
    expected = [[1, 1 / 3, 1 / 4], [1 / 3, 1, 0], [1 / 4, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(table, expected, atol=1e-6)

    #                  true 0  true 1
    overlap = torch.tensor([[0.6, 0.7], [0.8, 0.3], [0.55, 0.2], [0.1, 0.1], [0.0, 0.0]])
    # The largest, 0.8, gives box 1 to true 0; true 1 has 0.7 of box 0 left. Box 2 has 0.55 of true 0, above 0.5.
    assert matches(overlap, 0.5).tolist() == [1, 0, 0, -1, -1]
    assert matches(overlap, None).tolist() == [1, 0, -1, -1, -1]
    # Each true box is given one, however small its overlap.
    assert matches(torch.tensor([[0.05], [0.01]]), 0.5).tolist() == [0, -1]
    assert matches(torch.zeros(3, 0), 0.5).tolist() == [-1, -1, -1]


def test_suppression_leaves_the_best_of_those_that_overlap() -> None:
    import torch

    from caffenets.layers.boxes import kept

    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 4], [20, 20, 30, 30]])
    scores = torch.tensor([0.5, 0.9, 0.8, 0.1])
    # Box 0 overlaps the best, box 1, by 0.9; box 2 overlaps it by 4 / 9.
    assert kept(boxes, scores, 0.5, -1).tolist() == [1, 2, 3]
    assert kept(boxes, scores, 0.4, -1).tolist() == [1, 3]
    assert kept(boxes, scores, 0.5, 2).tolist() == [1, 2]
    # 0.95 keeps all but falls to 0.855 after the first, below the 0.9 of box 0.
    assert kept(boxes, scores, 0.95, -1).tolist() == [1, 2, 0, 3]
    assert kept(boxes, scores, 0.95, -1, eta=0.9).tolist() == [1, 2, 3]


def loss_bottoms(seed: int = 0, images: int = 2) -> list[Any]:
    """Four priors, three classes; image 0 has a box on prior 0 and one half over prior 2, image 1 has none."""
    priors = np.array(
        [[0.0, 0, 0.4, 0.4], [0.5, 0, 0.9, 0.4], [0, 0.5, 0.4, 0.9], [0.5, 0.5, 0.9, 0.9]]
    )
    variances = np.tile([0.1, 0.1, 0.2, 0.2], (4, 1))
    labels = [[0, 1, 0, 0.0, 0.0, 0.4, 0.4, 0], [0, 2, 0, 0.1, 0.5, 0.5, 0.9, 0]]
    return [
        spread((images, 16), seed), spread((images, 12), seed + 1),
        np.stack([priors.ravel(), variances.ravel()])[None], np.array(labels)[None, None],
    ]  # fmt: skip


LOSS = 'type: "MultiBoxLoss" multibox_loss_param {{ num_classes: 3 code_type: CENTER_SIZE {} }} {}'


def test_the_loss_is_that_worked_by_hand() -> None:
    locations, confidences, priors, labels = loss_bottoms()
    # Box 0 is prior 0. Box 1 overlaps prior 2 by 0.12 / 0.20 = 0.6. So two match; mining takes both negatives that
    # are left in image 0, and none in image 1, which has no box.
    codes = np.array([[0, 0, 0, 0], [0.1 / 0.4 / 0.1, 0, 0, 0]])
    x = locations[0].reshape(4, 4)[[0, 2]] - codes
    smooth = np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5).sum()
    scores = confidences[0].reshape(4, 3)
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    wanted = -(log_p[0, 1] + log_p[1, 0] + log_p[2, 2] + log_p[3, 0])
    bottoms = [locations, confidences, priors, labels]
    (loss,) = tops_of(LOSS.format("", ""), bottoms)
    assert float(loss) == pytest.approx((smooth + wanted) / 2, rel=1e-5)

    (half,) = tops_of(LOSS.format("neg_pos_ratio: 0.5", ""), bottoms)
    harder = max(-log_p[1, 0], -log_p[3, 0])
    assert float(half) == pytest.approx((smooth - log_p[0, 1] - log_p[2, 2] + harder) / 2, rel=1e-5)

    both = confidences.reshape(8, 3)
    log_all = both - np.log(np.exp(both).sum(1, keepdims=True))
    every = -(log_all[0, 1] + log_all[2, 2] + log_all[[1, 3, 4, 5, 6, 7], 0].sum())
    weighted = LOSS.format(
        "mining_type: NONE loc_weight: 3 loc_loss_type: L2", "loss_param { normalization: NONE }"
    )
    (plain,) = tops_of(weighted, bottoms)
    assert float(plain) == pytest.approx(3 * (x * x).sum() / 2 + every, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    ["", "loc_loss_type: L2 conf_loss_type: LOGISTIC", "match_type: BIPARTITE mining_type: NONE", "neg_pos_ratio: 1",
     "encode_variance_in_target: true", "use_prior_for_matching: true ignore_cross_boundary_bbox: true",
     "share_location: false mining_type: NONE"],
)  # fmt: skip
def test_the_gradients_of_the_loss_are_its_differences(options: str) -> None:
    bottoms = loss_bottoms()
    if "share_location: false" in options:
        bottoms[0] = spread((2, 48), 5)
    check_gradients(LOSS.format(options, ""), bottoms, constant=[2, 3])


def test_a_batch_without_boxes_has_a_loss_and_a_gradient_of_zero() -> None:
    import torch

    bottoms = [torch.tensor(one, dtype=torch.float32) for one in loss_bottoms()]
    bottoms[3] = torch.full((1, 1, 1, 8), -1.0)
    layer, _ = layer_of(LOSS.format("", ""), [tuple(one.shape) for one in bottoms])
    bottoms[1].requires_grad_(True)
    (loss,) = layer.forward(bottoms, [])
    loss.backward()
    assert loss.item() == 0
    assert bottoms[1].grad.abs().sum().item() == 0


def test_difficult_boxes_count_only_where_asked_and_a_class_that_is_none_is_an_error() -> None:
    bottoms = loss_bottoms()
    without = [*bottoms[:3], bottoms[3][:, :, :1]]
    bottoms[3][0, 0, 1, 7] = 1
    text = LOSS.format("use_difficult_gt: false", "")
    assert tops_of(text, bottoms)[0] == tops_of(text, without)[0]
    bottoms[3][0, 0, 1, 1] = 3
    with pytest.raises(EngineError, match="read a box of class 3, but has num_classes 3"):
        tops_of(text, bottoms)


@pytest.mark.parametrize(
    ("options", "words"),
    [("mining_type: HARD_EXAMPLE", "use MAX_NEGATIVE or NONE"), ("bp_inside: true", "remove it"),
     ("map_object_to_agnostic: true", "use 2")],
)  # fmt: skip
def test_what_the_loss_does_not_have_is_refused(options: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        layer_of(LOSS.format(options, ""), [np.shape(one) for one in loss_bottoms()])


def test_detection_output_decodes_suppresses_and_keeps_the_best() -> None:
    priors = np.array([[0.0, 0, 0.4, 0.4], [0.0, 0, 0.4, 0.36], [0.5, 0.5, 0.9, 0.9]])
    prior_top = np.stack([priors.ravel(), np.full(12, 0.1)])[None]
    confidences = np.array([[[0.1, 0.7, 0.2], [0.2, 0.6, 0.2], [0.3, 0.1, 0.6]], [[1, 0, 0]] * 3])
    options = "num_classes: 3 code_type: CENTER_SIZE nms_param { nms_threshold: 0.5 top_k: 3 }"
    text = f'type: "DetectionOutput" detection_output_param {{ {options} confidence_threshold: 0.15 %s }}'
    locations = np.zeros((2, 12))
    locations[0, 8:10] = 1.0  # the third box moves by 0.1 x 0.4 both ways
    bottoms = [locations, confidences.reshape(2, 9), prior_top]
    (top,) = tops_of(text % "keep_top_k: 10", bottoms)
    expected = [
        [0, 1, 0.7, 0, 0, 0.4, 0.4],
        [0, 2, 0.6, 0.54, 0.54, 0.94, 0.94],
        [0, 2, 0.2, 0, 0, 0.4, 0.4],
        [1, -1, -1, -1, -1, -1, -1],
    ]
    np.testing.assert_allclose(top[0, 0], expected, atol=1e-6)
    (two,) = tops_of(text % "keep_top_k: 2", bottoms)
    np.testing.assert_allclose(two[0, 0], [expected[0], expected[1], expected[3]], atol=1e-6)


# Regions of two images of 32 x 64; the third has none.
REGIONS = [[0.0, 0, 0, 15, 15], [0, 2, 0, 17, 15], [1, 16, 16, 31, 31]]
SCORES = [[0.1, 0.9, 0.02], [0.1, 0.8, 0.3], [0.4, 0.01, 0.6]]
OF_REGIONS = """type: "DetectionOutput" detection_output_param { num_classes: 3 code_type: CENTER_SIZE
  normalized_bbox: false clip: true confidence_threshold: 0.05 nms_param { nms_threshold: 0.3 } %s }"""
# As published the boxes end behind their last row and column, and are cut at the last row and column of the image.
FOUND = [
    [0, 1, 0.9, 16, 0, 32, 16],
    [0, 2, 0.3, 2, 0, 18, 16],
    [1, 2, 0.6, 0, 16, 56, 31],
    [2, -1, -1, -1, -1, -1, -1],
]


def codes_of_regions() -> Any:
    """(3 regions, 3 classes, 4): not yet divided by the deviations 0.1, 0.1, 0.2, 0.2."""
    codes = np.zeros((3, 3, 4))
    codes[0, 1, 0] = 1.0  # one width, 16, to the right
    codes[1, 1, 0] = 14 / 16  # to the same place, and goes: its score is lower
    codes[2, 2, 2] = math.log(4)  # from 16 to 31 to 64 wide around 24
    return codes


@pytest.mark.parametrize("encoded", [False, True])
def test_detection_output_decodes_the_regions_of_faster_rcnn(encoded: bool) -> None:
    codes, images = codes_of_regions(), np.zeros((3, 3, 32, 64))
    if not encoded:
        codes /= [0.1, 0.1, 0.2, 0.2]
    text = OF_REGIONS % f"share_location: false variance_encoded_in_target: {str(encoded).lower()}"
    (top,) = tops_of(text, [codes.reshape(3, 12), SCORES, REGIONS, images])
    np.testing.assert_allclose(top[0, 0], FOUND, atol=1e-4)
    (top,) = tops_of(text, [codes.reshape(3, 12), SCORES, REGIONS, [[32.0, 64.0, 1.0]] * 3])
    np.testing.assert_allclose(top[0, 0], FOUND, atol=1e-4)


def test_detection_output_takes_the_boxes_of_any_class_that_r_fcn_makes() -> None:
    codes = np.zeros((3, 8, 1, 1))
    codes[0, 4] = 10.0
    bottoms = [codes, np.reshape(SCORES, (3, 3, 1, 1)), REGIONS, np.zeros((2, 3, 32, 64))]
    (top,) = tops_of(OF_REGIONS % "share_location: true", bottoms)
    expected = [FOUND[0], [0, 1, 0.8, 2, 0, 18, 16], FOUND[1], [1, 2, 0.6, 16, 16, 32, 31]]
    np.testing.assert_allclose(top[0, 0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "bottoms", "words"),
    [
        ("", "", 3, "as fourth bottom"),
        ("CENTER_SIZE", "CORNER", 4, "set code_type: CENTER_SIZE"),
        ("num_classes: 3", "num_classes: 4", 4, "3 rows of 5 need 16 and 4 values each"),
        ("normalized_bbox: false", "", 4, "set normalized_bbox: false"),
    ],
)
def test_regions_that_do_not_fit_are_refused(old: str, new: str, bottoms: int, words: str) -> None:
    text = (OF_REGIONS % "share_location: false").replace(old, new)
    with pytest.raises(EngineError, match=words):
        layer_of(text, [(3, 12), (3, 3), (3, 5), (3, 3, 32, 64)][:bottoms], "TEST")


def test_detection_evaluate_compares_boxes_in_pixels_with_parts_of_the_image() -> None:
    labels = [[0, 1, 0, 16 / 64, 0, 33 / 64, 17 / 32, 0], [1, 2, 0, 0, 16 / 32, 30 / 64, 1, 0]]
    text = 'type: "DetectionEvaluate" detection_evaluate_param { num_classes: 3 }'
    bottoms = [np.reshape(FOUND, (1, 1, -1, 7)), np.reshape(labels, (1, 1, -1, 8))]
    (top,) = tops_of(text, [*bottoms, np.zeros((3, 3, 32, 64))], phase="TEST")
    # The last is 57 x 16 pixels, of which the label has 30 x 16: 0.53.
    expected = [
        [-1, 1, 1, -1, -1],
        [-1, 2, 1, -1, -1],
        [0, 1, 0.9, 1, 0],
        [0, 2, 0.3, 0, 1],
        [1, 2, 0.6, 1, 0],
    ]
    np.testing.assert_allclose(top[0, 0], expected, atol=1e-6)
    with pytest.raises(EngineError, match="as third bottom"):
        tops_of(text, bottoms, phase="TEST")


def test_detection_evaluate_judges_each_box_once_and_the_precision_is_that_worked_by_hand() -> None:
    labels = [
        [0, 1, 0, 0.0, 0.0, 0.4, 0.4, 0], [0, 1, 1, 0.5, 0.5, 0.9, 0.9, 0], [1, 2, 0, 0.1, 0.1, 0.5, 0.5, 1],
    ]  # fmt: skip
    found = [
        [0, 1, 0.9, 0.0, 0.0, 0.4, 0.4],  # right
        [0, 1, 0.8, 0.0, 0.0, 0.4, 0.38],  # the same object once more
        [0, 1, 0.7, 0.5, 0.5, 0.9, 0.9],  # right
        [1, 2, 0.6, 0.1, 0.1, 0.5, 0.5],
        [1, -1, -1, -1, -1, -1, -1],
    ]
    text = 'type: "DetectionEvaluate" detection_evaluate_param {{ num_classes: 3 evaluate_difficult_gt: {} }}'

    def rows(difficult: str) -> list[list[float]]:
        import torch

        bottoms = [torch.tensor(one, dtype=torch.float32)[None, None] for one in (found, labels)]
        layer, _ = layer_of(text.format(difficult), [tuple(one.shape) for one in bottoms], "TEST")
        made: list[list[float]] = layer.forward(bottoms, [])[0].reshape(-1, 5).tolist()
        return made

    np.testing.assert_allclose(
        rows("true"),
        [[-1, 1, 2, -1, -1], [-1, 2, 1, -1, -1], [0, 1, 0.9, 1, 0], [0, 1, 0.8, 0, 1], [0, 1, 0.7, 1, 0],
         [1, 2, 0.6, 1, 0]],
        atol=1e-6,
    )  # fmt: skip
    assert rows("false")[1] == [-1, 2, -1, -1, -1]
    np.testing.assert_allclose(rows("false")[-1], [1, 2, 0.6, 0, 0], atol=1e-6)
    # Class 1: precision 1 at recall 1/2, then 1/2, then 2/3 at recall 1.
    assert by_class([rows("true")])[1] == pytest.approx(1 / 2 + 2 / 3 / 2)
    assert by_class([rows("true")], "MaxIntegral")[1] == pytest.approx(1 / 2 + 2 / 3 / 2)
    assert by_class([rows("true")], "11point")[1] == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    assert by_class([rows("true"), rows("true")])[2] == 1.0
    assert set(by_class([rows("false")])) == {1}


def test_precision_of_parts_is_that_of_the_whole() -> None:
    """A test that several processes share is judged once, over the rows of all."""
    from speedo.engines.evaluation import combined

    chance = np.random.default_rng(0)
    rows = [
        [0, 1, float(score), int(right), int(not right)]
        for score, right in zip(chance.random(40), chance.random(40) < 0.6, strict=True)
    ]
    counts = [[-1, 1, 20, -1, -1], [-1, 2, -1, -1, -1]]

    def part(some: list[list[float]]) -> Any:
        return [
            ({"mAP": {"form": "Integral", "each": True, "rows": counts + some}, "loss": 2.0}, 1)
        ]

    whole = combined(
        [[({"mAP": {"form": "Integral", "each": True, "rows": counts * 2 + rows}, "loss": 4.0}, 2)]]
    )
    assert combined([part(rows[:13]), part(rows[13:])]) == whole
    assert whole["mAP"] == whole["mAP/1"]
    assert 0 < whole["mAP"] < 1
    assert whole["loss"] == 2.0
