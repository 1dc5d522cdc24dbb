"""Weights as an .npz file of NumPy: one array for each blob, by its name and in its shape."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from caffenets.files import written_whole
from speedo.errors import ConfigError
from speedo.exchange.vector import Layout, Vector


def write_arrays(path: Path, layout: Layout, vector: Vector) -> None:
    """Whole or not at all; raises `OSError`."""
    write_named(path, {blob.name: vector[at].reshape(blob.shape) for blob, at in layout.slices()})


def write_named(path: Path, things: Mapping[str, Any]) -> None:
    """As `write_arrays`, of arrays or tensors. Raises `ConfigError` for what no .npz file holds."""
    try:  # `numpy.savez` itself takes no array of the name `file`
        with written_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, one in things.items():
                array = np.asarray(one.detach().cpu() if hasattr(one, "detach") else one)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path.name} cannot hold what it was given ({error}): an .npz file has numbers, arrays and tensors by "
            "their names; another suffix makes it a file of torch.save"
        ) from None
