"""Concat, Slice, Crop, Flatten, Reshape and Tile against pycaffe, forward and backward."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.pytorch.layer_trial import trial

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

few = settings(max_examples=15, deadline=None)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def filled(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=tuple(shape)).astype(np.float32)


@few
@given(shape=shapes, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), data=st.data())
def test_concat_joins_as_pycaffe_does(shape: list[int], sizes: list[int], data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    option = data.draw(st.sampled_from(["axis", "concat_dim"])) if axis >= 0 else "axis"
    bottoms = []
    for size in sizes:
        shape[axis] = size
        bottoms.append(filled(shape, len(bottoms)))
    trial(f'type: "Concat" concat_param {{ {option}: {axis} }}', bottoms)


def test_concat_joins_channels_by_default() -> None:
    trial('type: "Concat"', [filled((2, 1, 3)), filled((2, 4, 3), 1)])


@few
@given(shape=shapes, parts=st.lists(st.integers(1, 3), min_size=1, max_size=4), data=st.data())
def test_slice_cuts_at_its_points(shape: list[int], parts: list[int], data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    option = data.draw(st.sampled_from(["axis", "slice_dim"])) if axis >= 0 else "axis"
    shape[axis] = sum(parts)
    points = " ".join(f"slice_point: {sum(parts[: end + 1])}" for end in range(len(parts) - 1))
    text = f'type: "Slice" slice_param {{ {option}: {axis} {points} }}'
    trial(f"tops: {len(parts)}\n{text}", [filled(shape)])


@pytest.mark.parametrize("tops", [1, 2, 3])
def test_slice_without_points_cuts_equal_parts(tops: int) -> None:
    trial(f'tops: {tops}\ntype: "Slice"', [filled((2, 6, 3))])


@few
@given(shape=st.lists(st.integers(2, 5), min_size=2, max_size=4), data=st.data())
def test_crop_takes_the_second_bottoms_size_at_its_offsets(shape: list[int], data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = [data.draw(st.integers(1, length)) for length in shape]
    room = [length - part for length, part in zip(shape, size, strict=True)][axis:]
    offsets: list[int] = data.draw(
        st.sampled_from(["none", "one", "each"]).map(
            {"none": [], "one": [min(room)], "each": room}.__getitem__
        )
    )
    written = " ".join(f"offset: {offset}" for offset in offsets)
    trial(
        f'type: "Crop" crop_param {{ axis: {axis} {written} }}',
        [filled(shape), filled(size)],
        constant=[1],
    )


@few
@given(shape=shapes, data=st.data())
def test_flatten_joins_the_axes_between_its_ends(shape: list[int], data: Any) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    # An end one before the start puts a new axis of 1 there.
    end = data.draw(st.integers(max(axis - 1, 0), len(shape) - 1))
    axis -= data.draw(st.sampled_from([0, len(shape)]))
    trial(f'type: "Flatten" flatten_param {{ axis: {axis} end_axis: {end} }}', [filled(shape)])


def test_flatten_keeps_the_batch_by_default() -> None:
    trial('type: "Flatten"', [filled((2, 3, 4))])


@pytest.mark.parametrize(
    "options",
    [
        "shape { dim: 0 dim: -1 }",
        "shape { dim: 0 dim: 4 dim: -1 dim: 3 }",
        "shape { dim: 6 dim: 20 }",
        "shape { dim: 0 dim: 0 dim: 5 dim: 4 }",
        "shape { dim: 3 dim: -1 } axis: 1 num_axes: 2",
        "shape { dim: 1 } axis: 1 num_axes: 0",
        "shape { dim: 1 } axis: -1",
        "shape { dim: 5 dim: -1 } axis: -2",
        "shape { dim: -1 } axis: 0 num_axes: 2",
        "shape { }",
    ],
)
def test_reshape_copies_and_infers_sizes(options: str) -> None:
    if options == "shape { }":
        trial('type: "Reshape" reshape_param { axis: 1 num_axes: 0 }', [filled((2, 3, 4, 5))])
    else:
        trial(f'type: "Reshape" reshape_param {{ {options} }}', [filled((2, 3, 4, 5))])


@few
@given(shape=shapes, data=st.data())
def test_reshape_of_any_axes_is_pycaffes(shape: list[int], data: Any) -> None:
    start = data.draw(st.integers(0, len(shape)))
    replaced = data.draw(st.integers(0, len(shape) - start))
    values = prod(shape[start : start + replaced])
    first = data.draw(st.sampled_from([n for n in range(1, values + 1) if values % n == 0]))
    second = data.draw(st.sampled_from([-1, values // first]))
    text = f"axis: {start} num_axes: {replaced} shape {{ dim: {first} dim: {second} dim: 1 }}"
    trial(f'type: "Reshape" reshape_param {{ {text} }}', [filled(shape)])


@few
@given(shape=shapes, tiles=st.integers(1, 3), data=st.data())
def test_tile_repeats_and_adds_the_gradients(shape: list[int], tiles: int, data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    trial(f'type: "Tile" tile_param {{ axis: {axis} tiles: {tiles} }}', [filled(shape)])
