"""AnnotatedData: boxes stay on what they mark, whatever is done to the image, and records can be skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from speedo.errors import EngineError
from tests.support.detection import SIDE, make_databases

pytestmark = pytest.mark.torch

LAYER = """name: "data" type: "AnnotatedData" top: "data" top: "label"
  data_param {{ source: "data/train_lmdb" backend: LMDB batch_size: 4 }} {}"""
ALL = f"""transform_param {{ mirror: true resize_param {{ height: {SIDE} width: {SIDE} }} mean_value: 100
    expand_param {{ prob: 0.5 max_expand_ratio: 2 }} emit_constraint {{ emit_type: CENTER }}
    distort_param {{ brightness_prob: 0.5 brightness_delta: 16 contrast_prob: 0.5 contrast_lower: 0.8
      contrast_upper: 1.2 hue_prob: 0.3 hue_delta: 9 saturation_prob: 0.3 saturation_lower: 0.8
      saturation_upper: 1.2 }} }}
  annotated_data_param {{ batch_sampler {{ max_sample: 1 max_trials: 1 }} batch_sampler {{
    sampler {{ min_scale: 0.6 max_scale: 1 min_aspect_ratio: 0.7 max_aspect_ratio: 1.4 }}
    sample_constraint {{ min_object_coverage: 0.9 }} max_sample: 1 max_trials: 30 }} }}"""


def layer_in(folder: Path, options: str, seed: int = 5) -> Any:
    from caffenets.layer import LayerContext
    from speedo.engines.pytorch.data.annotated import AnnotatedData

    param = text_format.Parse(LAYER.format(options), caffe_pb2.LayerParameter())
    return AnnotatedData(param, LayerContext("TRAIN", seed=seed, folder=folder), ahead=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("boxes")
    make_databases(made, train=24, test=1)
    return made


def test_boxes_stay_on_the_shapes_that_they_mark(folder: Path) -> None:
    """A square is 140 apart in red and blue, the noise around it 40 at most."""
    layer = layer_in(folder, ALL)
    assert layer.setup([]) == [(4, 3, SIDE, SIDE), (1, 1, 1, 8)]
    seen = 0
    for _ in range(12):
        images, labels = layer.forward([], [])
        for image, kind, _, *corners, difficult in labels.reshape(-1, 8).tolist():
            left, top, right, bottom = (round(one * SIDE) for one in corners)
            assert 0 <= left < right <= SIDE
            assert 0 <= top < bottom <= SIDE
            assert difficult == 0
            if kind != 2 or min(right - left, bottom - top) < 8:
                continue
            pixels = images[int(image)].numpy()
            inside = np.abs(pixels[2] - pixels[0])[top + 2 : bottom - 2, left + 2 : right - 2]
            assert np.median(inside) > 70, (corners, np.median(inside))
            seen += 1
    layer.close()
    assert seen > 10


def test_skipped_batches_leave_the_next_one_as_it_was(folder: Path) -> None:
    whole, skipping = layer_in(folder, ALL), layer_in(folder, ALL)
    for layer in (whole, skipping):
        layer.setup([])
    batches = [whole.forward([], []) for _ in range(8)]
    skipping.skip(7)
    for expected, found in zip(batches[7], skipping.forward([], []), strict=True):
        np.testing.assert_array_equal(found, expected)
    other = layer_in(folder, ALL, seed=6)
    other.setup([])
    assert not np.array_equal(other.forward([], [])[0], batches[0][0])
    for layer in (whole, skipping, other):
        layer.close()


@pytest.mark.parametrize(
    "field", ["crop_h: 4", "resize_param { height: 9 }", "noise_param { }", "distort_param { }"]
)
def test_ssds_transforms_are_refused_in_other_data_layers(folder: Path, field: str) -> None:
    """They would have no effect there."""
    from caffenets.layer import LayerContext
    from speedo.engines.pytorch.data import SOURCES

    text = LAYER.format(f"transform_param {{ {field} }}").replace("AnnotatedData", "Data")
    param = text_format.Parse(text, caffe_pb2.LayerParameter())
    layer = SOURCES["Data"](param, LayerContext(folder=folder))
    with pytest.raises(EngineError, match=f"has {field.split()[0].strip(':')}, which .* alone"):
        layer.setup([])
    layer.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("transform_param { crop_size: 8 }", "use resize_param"),
        ("transform_param { noise_param { prob: 0.5 } }", "noise_param"),
        ("transform_param { resize_param { height: 8 width: 8 resize_mode: FIT_SMALL_SIZE } }", "use WARP"),
        ("annotated_data_param { batch_sampler { use_original_image: false } }", "use_original_image"),
    ],
)  # fmt: skip
def test_what_it_does_not_do_is_refused(folder: Path, options: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        layer_in(folder, options).setup([])
