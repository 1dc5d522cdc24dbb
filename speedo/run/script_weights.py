"""The weights that the run of a script begins from, by `--weights`: arrays by the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from caffenets.weight_files.archives import is_npz, read_npz
from caffenets.weight_files.state_dict import read_state_dict
from caffenets.weight_files.stored import Stored, reading
from speedo.errors import ConfigError, EngineError
from speedo.exchange.vector import Layout, Vector
from speedo.run.config.option_checks import weights_in
from speedo.run.remote_inputs import fetch_weights, located_weights

Arrays = Mapping[str, Stored]


def check_script_weights(weights: Path | None, note: Callable[[str], None]) -> None:
    """Fetch the file, and read what it holds, before anything is started. Raises `ConfigError`, `DataError`."""
    for one in weights_in(weights):
        fetch_weights(one, note)
    first_arrays(weights)


def first_arrays(weights: Path | None) -> Arrays | None:
    """What the file of `--weights` holds, an .npz or a state dict of PyTorch's, not read yet; raises `ConfigError`."""
    paths = located_weights(weights)
    if not paths:
        return None
    if len(paths) > 1:
        raise ConfigError(
            f"weights names {len(paths)} files: give one, with all the model's weights"
        )
    (path,) = paths
    try:
        with reading(path, "an archive") as file:
            is_archive = file.peek(2).startswith(b"PK") and is_npz(file)
        return read_npz(path) if is_archive else read_state_dict(path)
    except EngineError as error:
        raise ConfigError(f"weights: {error}; or give the .npz of a run") from None


def weights_of(arrays: Arrays, layout: Layout, origin: object) -> Vector:
    """The model's weights from these arrays; raises `ConfigError` with all that does not fit, and `EngineError`."""
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
        vector[place] = array.read().reshape(-1)
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
