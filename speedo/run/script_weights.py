"""The weights that the run of a script begins from, by `--weights`: arrays by the names of the model's parameters."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt

from speedo.errors import ConfigError, EngineError
from speedo.exchange.vector import Layout, Vector
from speedo.run.config.option_checks import weights_in
from speedo.run.remote_inputs import fetch_weights, located_weights

Arrays = Mapping[str, npt.NDArray[Any]]


def check_script_weights(weights: Path | None, note: Callable[[str], None]) -> None:
    """Fetch and read the file, before anything is started. Raises `ConfigError`, `DataError`."""
    for one in weights_in(weights):
        fetch_weights(one, note)
    first_arrays(weights)


def first_arrays(weights: Path | None) -> Arrays | None:
    """The arrays of the file of `--weights`, an .npz or a state dict of PyTorch's; raises `ConfigError`."""
    paths = located_weights(weights)
    if not paths:
        return None
    if len(paths) > 1:
        raise ConfigError(
            f"weights names {len(paths)} files: give one, with all the model's weights"
        )
    (path,) = paths
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start.startswith(b"PK") and _is_npz(path):
            return _read_npz(path)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
        raise ConfigError(f"weights names {path}, which cannot be read: {error}") from None
    try:
        from speedo.engines.pytorch.state_dict_file import read_state_dict
    except ImportError:
        raise ConfigError(
            f"weights names {path}, which is no .npz, and PyTorch is not installed, which reads others: "
            'give an .npz, or install it: pip install "speedo[torch]"'
        ) from None
    try:
        return read_state_dict(path)
    except EngineError as error:
        raise ConfigError(f"weights: {error}; or give the .npz of a run") from None


def weights_of(arrays: Arrays, layout: Layout, origin: object) -> Vector:
    """The model's weights from these arrays; raises `ConfigError` with all that does not fit."""
    vector, problems = layout.zeros(), list[str]()
    used = set[int]()
    for blob, place in layout.slices():
        array = arrays.get(blob.name)
        if array is None:
            problems.append(
                f"{origin} has no {blob.name}, which the model has in shape {blob.shape}"
            )
            continue
        used.add(id(array))
        if array.shape != blob.shape:
            problems.append(
                f"{origin} has {blob.name} in shape {array.shape}, the model in shape {blob.shape}"
            )
            continue
        with np.errstate(over="ignore"):
            vector[place] = array.reshape(-1)
        if not np.isfinite(vector[place]).all():
            problems.append(f"{origin} has numbers in {blob.name} that are not finite in float32")
    known = {blob.name for blob in layout.blobs}
    problems += [
        f"{origin} has {name} of shape {array.shape}, which the model does not have"
        for name, array in arrays.items()
        if name not in known and id(array) not in used  # a second name of shared weights
    ]
    if problems:
        raise ConfigError([*problems, "give --weights a file of this model"])
    return vector


def _is_npz(path: Path) -> bool:
    """PyTorch's files are archives, too."""
    with ZipFile(path) as archive:
        return all(name.endswith(".npy") for name in archive.namelist())


def _read_npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    other = [f"{name} ({array.dtype})" for name, array in arrays.items() if array.dtype.kind != "f"]
    if other:
        raise ValueError(f"it has arrays without floating point: {', '.join(other)}")
    return arrays
