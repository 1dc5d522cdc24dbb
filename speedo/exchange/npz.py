"""Weights as an .npz file of NumPy: one array for each blob, by its name and in its shape."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from caffenets.files import written_whole
from speedo.exchange.vector import Layout, Vector


def write_arrays(path: Path, layout: Layout, vector: Vector) -> None:
    """Whole or not at all; raises `OSError`. `numpy.savez` itself takes no array of the name `file`."""
    with written_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
        for blob, place in layout.slices():
            with archive.open(f"{blob.name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, vector[place].reshape(blob.shape))
