"""What a layer's `param` and `blobs` in the prototxt say of its parameters: names, rates, first values."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import Final

import torch
from torch import Tensor

from caffenets.layer import BlobSpec, Layer
from caffenets.pytorch.fillers import fill
from caffenets.weight_files.stored import shape_text

_PERMISSIVE: Final = 1  # ParamSpec.DimCheckMode


def note_multipliers(layer: Layer, number: int, said: dict[str, float]) -> None:
    """Note what is said of a shared blob; Caffe refuses two values (Caffe: net.cpp, AppendParam)."""
    spec = layer.param.param[number]
    for field in ("lr_mult", "decay_mult"):
        value = float(getattr(spec, field))
        if spec.HasField(field) and said.setdefault(field, value) != value:
            raise layer.refuse(
                f"shares the param {spec.name!r} with {field} {value:g}, and another layer with "
                f"{said[field]:g}: give both one value"
            )


def check_shared(layer: Layer, number: int, other: Layer, others: int) -> None:
    """Refuse a shared blob whose shape is not that of its owner (Caffe: net.cpp, AppendParam)."""
    theirs, ours = tuple(other.blobs[others].shape), tuple(layer.blobs[number].shape)
    spec = layer.param.param[number]
    if not (prod(theirs) == prod(ours) if spec.share_mode == _PERMISSIVE else theirs == ours):
        raise layer.refuse(
            f"shares the param {spec.name!r} of layer {other.name!r}, whose shape is {shape_text(theirs)}, "
            f"and needs {shape_text(ours)}: give them equal shapes, or the param another name"
        )


def lr_mult(layer: Layer, number: int) -> float:
    """The factor of its learning rate."""
    return float(layer.param.param[number].lr_mult) if number < len(layer.param.param) else 1.0


def first_values(leaf: Tensor, layer: Layer, number: int, spec: BlobSpec) -> None:
    """Draw them, or take those that the prototxt itself has (Caffe: layer.hpp)."""
    if layer.param.blobs:
        given = layer.param.blobs[number] if number < len(layer.param.blobs) else None
        values = [] if given is None else given.data or given.double_data
        if len(values) != leaf.numel():
            raise layer.refuse(
                f"has blobs of its own, and blob {number} has {len(values)} values instead of {leaf.numel()}: "
                "correct or remove blobs"
            )
        leaf.copy_(torch.tensor(values, dtype=torch.float32).view(leaf.shape))
    elif spec.filler is not None:
        with leaf.device if leaf.is_meta else nullcontext():  # else they are drawn on the CPU
            leaf.copy_(fill(spec.filler, tuple(spec.shape)))
