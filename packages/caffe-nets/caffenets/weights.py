"""The arrays of a file of trained weights by name, whichever format it has, and how two files differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from caffenets.errors import EngineError
from caffenets.weight_files.archives import is_npz, read_npz
from caffenets.weight_files.caffemodel import read_model
from caffenets.weight_files.onnx import read_initializers
from caffenets.weight_files.state_dict import read_state_dict
from caffenets.weight_files.stored import OTHER, Stored, reading, shape_text


def read_weights(path: Path | str) -> dict[str, Stored]:
    """The arrays of a file by name, none of which is read yet: `read()` gives one as float32 in its shape.

    A blob of Caffe's formats (`.caffemodel` of any age, `.caffemodel.h5`) is called LAYER/INDEX; an array of ONNX, of a
    PyTorch state dict or of NumPy's `.npz` has its own name. The content says which format it is; ONNX alone has to be
    named `.onnx`. Raises `EngineError` for a file that cannot be read, is damaged, or has none of floating point.
    """
    arrays = _arrays(Path(path))
    if not arrays:
        raise EngineError(f"{path} has no arrays of floating point: {OTHER}")
    return arrays


def _arrays(path: Path) -> dict[str, Stored]:
    if path.suffix == ".onnx":
        return read_initializers(path)[0]
    with reading(path, "trained weights") as file:
        begin = file.peek(2)[:2]
        if begin == b"PK" and is_npz(file):
            return read_npz(path)
    # An archive, or a pickle, as PyTorch wrote before 1.6.
    if begin == b"PK" or b"\x80\2" <= begin <= b"\x80\5":
        return read_state_dict(path)
    return {
        f"{layer.name}/{index}": blob
        for layer in read_model(path).layers
        for index, blob in enumerate(layer.blobs)
        if blob is not None
    }


@dataclass(frozen=True, slots=True)
class Difference:
    """How two files differ in the array called `name`: `text` says it to people.

    `apart` is the largest difference of two values, of the largest value of the first file's array; None where the
    array is in one file alone, or has two shapes.
    """

    name: str
    text: str
    apart: float | None = None


def differences(first: Mapping[str, Stored], second: Mapping[str, Stored]) -> Iterator[Difference]:
    """In the order of the first file, then what only the second has; nothing of arrays that are equal to the bit."""
    for name, one in first.items():
        other = second.get(name)
        if other is None:
            yield Difference(name, f"only in the first file, {shape_text(one.shape)}")
        elif one.shape != other.shape:
            shapes = f"{shape_text(one.shape)} and {shape_text(other.shape)}"
            yield Difference(name, f"has two shapes: {shapes}")
        else:
            found = _difference(name, one, other)
            if found is not None:
                yield found
    for name, other in second.items():
        if name not in first:
            yield Difference(name, f"only in the second file, {shape_text(other.shape)}")


def _difference(name: str, one: Stored, other: Stored) -> Difference | None:
    mine, theirs = one.read().reshape(-1), other.read().reshape(-1)
    differ = (mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs))
    count = int(differ.sum())
    if not count:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(mine).max())
        worst = float(np.abs(mine[differ].astype(np.float64) - theirs[differ]).max())
    apart = worst / largest if largest > 0.0 else worst
    return Difference(
        name,
        f"{count:,} of {mine.size:,} values differ, by up to {apart:.1e} of the largest",
        apart,
    )
