"""DummyData gives pycaffe's shapes, constants that stay, and fillers drawn anew by the seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.errors import EngineError
from tests.support.data_layers import assert_same, by_caffe, by_torch, source_of

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


def dummy_layer(param: str, tops: int = 2) -> str:
    named = " ".join(f'top: "top{at}"' for at in range(tops))
    return f'name: "dummy" type: "DummyData" {named} dummy_data_param {{ {param} }}'


@pytest.mark.parametrize(
    "param",
    [
        "shape { dim: 4 dim: 2 }",
        "shape { dim: 4 dim: 2 dim: 1 } shape { dim: 3 }",
        "num: 2 channels: 3 height: 1 width: 5",
        "num: 2 num: 7 channels: 3 height: 1 height: 2 width: 5",
        'shape { dim: 4 } data_filler { type: "constant" value: 0.1 }',
        'shape { dim: 4 } data_filler { value: 7 } data_filler { type: "constant" value: -3 }',
    ],
)
def test_shapes_and_constants_are_caffes(tmp_path: Path, param: str) -> None:
    assert_same(by_torch(dummy_layer(param), 2), by_caffe(dummy_layer(param), 2, tmp_path))


RANDOM = (
    'shape { dim: 50 dim: 40 } data_filler { type: "gaussian" mean: 3 std: 2 } '
    'data_filler { type: "constant" value: 4 }'
)


def test_random_tops_are_drawn_anew_by_the_seed_and_constant_ones_are_kept(tmp_path: Path) -> None:
    layer = dummy_layer(RANDOM)
    drawn = by_torch(layer, 3, seed=1)
    for batches in (drawn, by_caffe(layer, 3, tmp_path)):
        assert not np.array_equal(batches[0][0], batches[1][0])
        for top, constant in batches:
            # 2,000 draws: deviations of 0.045 and 0.032.
            assert abs(top.mean() - 3) < 0.25
            assert abs(top.std() - 2) < 0.2
            assert (constant == 4).all()
    assert_same(by_torch(layer, 3, seed=1), drawn)
    for other in ({"seed": 2}, {"seed": 1, "rank": 1, "count": 2}, {}):
        assert not np.array_equal(by_torch(layer, 1, **other)[0][0], drawn[0][0])
    source = source_of(layer, seed=1)
    source.setup([])
    kept = source.forward([], [])[1]
    assert source.forward([], [])[1] is kept


@pytest.mark.parametrize("ahead", [True, False])
def test_skipped_batches_draw_what_reading_draws(ahead: bool) -> None:
    layer = dummy_layer(RANDOM)
    source = source_of(layer, seed=1, ahead=ahead)
    source.setup([])
    assert source.samples == 50
    found = []
    for skipped in (0, 2, 1):
        source.skip(skipped)
        found.append([top.numpy() for top in source.forward([], [])])
    source.close()
    whole = by_torch(layer, 6, seed=1)
    assert_same(found, [whole[0], whole[3], whole[5]])


@pytest.mark.parametrize(
    ("param", "said"),
    [
        ("", "has 0 shapes for 3 tops"),
        ("shape { dim: 1 } shape { dim: 2 }", "has 2 shapes for 3 tops"),
        ("shape { dim: 1 } num: 2", "has both shape and num"),
        ("num: 2 channels: 3 height: 1", "has 0 shapes for 3 tops"),
        ("shape { dim: 1 } data_filler { } data_filler { }", "has 2 data_filler for 3 tops"),
        ('shape { dim: 1 } data_filler { type: "other" }', "cannot fill top 'top0': filler type"),
    ],
)
def test_counts_that_do_not_fit_are_refused(param: str, said: str) -> None:
    with pytest.raises(EngineError, match="layer 'dummy'") as error:
        source_of(dummy_layer(param, 3)).setup([])
    assert said in str(error.value)
