"""Scale and Bias against pycaffe, with a blob and with a second bottom."""

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
SHAPES = array_shapes(min_dims=1, max_dims=4, max_side=4)


@pytest.mark.parametrize(
    ("kind", "extra"), [("Scale", ""), ("Scale", "bias_term: true"), ("Bias", "")]
)
@settings(max_examples=25)
@given(data=st.data(), shape=SHAPES, phase=PHASES, learned=st.booleans())
def test_the_operand_covers_the_axes_that_pycaffe_covers(
    kind: str, extra: str, data: st.DataObject, shape: tuple[int, ...], phase: str, learned: bool
) -> None:
    rng = np.random.default_rng(len(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    first = axis % len(shape)
    axes = data.draw(st.integers(-1 if learned else 0, len(shape) - first))
    options = f"axis: {axis} {extra}" + (f" num_axes: {axes}" if learned else "")
    bottoms = [rng.normal(size=shape)]
    if not learned:
        bottoms.append(rng.normal(size=shape[first : first + axes]))
    # The gradient of one number is a sum of up to 256 terms, which may cancel to less than their rounding allows.
    tolerance = (
        1e-4 if np.prod(shape[first : first + axes] if axes >= 0 else shape[first:]) == 1 else 1e-5
    )
    layer = f'type: "{kind}" {kind.lower()}_param {{ {options} }}'
    trial(layer, bottoms, phase=phase, tolerance=tolerance)


def test_a_scale_begins_with_ones_and_its_bias_with_zeros() -> None:
    scale, bias = set_up('type: "Scale" scale_param { bias_term: true }', [(2, 3)]).blobs
    assert (scale.filler.type, scale.filler.value) == ("constant", 1)
    assert (bias.filler.type, bias.filler.value) == ("constant", 0)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ("num_axes: 3", [(2, 3, 4)]),
        ("num_axes: -2", [(2, 3, 4)]),
        ("", [(2, 3, 4), (4,)]),
        ("axis: 2", [(2, 3, 4), (4, 4)]),
    ],
)
@pytest.mark.parametrize("kind", ["Scale", "Bias"])
def test_operands_that_do_not_fit_are_refused(
    kind: str, options: str, shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(EngineError, match="num_axes"):
        set_up(f'type: "{kind}" {kind.lower()}_param {{ {options} }}', shapes)
