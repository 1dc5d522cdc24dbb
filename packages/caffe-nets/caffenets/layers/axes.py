"""Axes and counts of shapes, as Caffe's Blob counts them."""

from __future__ import annotations

from math import prod

from caffenets.layer import Layer, Shape


def canonical_axis(layer: Layer, axis: int, shape: Shape, what: str = "axis") -> int:
    """`axis` counted from the front; raises `EngineError` where `shape` has no such axis."""
    if not -len(shape) <= axis < len(shape):
        raise layer.refuse(
            f"has {what} {axis}, but its bottom has {len(shape)} axes: "
            f"use one of {-len(shape)} to {len(shape) - 1}"
        )
    return axis % len(shape)


def count(shape: Shape, first: int = 0, end: int | None = None) -> int:
    """The product of the sizes of the axes from `first` to before `end`."""
    return prod(shape[first:end])
