"""The mean image for a net's `mean_file`: summed while the database is written, saved in Caffe's format."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caffenets.files import written_whole
from speedo.data.base import MEAN_FILE
from speedo.data.manifest import Mean
from speedo.data.wire import mean_to_bytes


class MeanImage:
    """The mean of uint8 images of one shape, summed in integers so that the order cannot matter."""

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.int64] | None = None
        self._count = 0

    def add(self, image: npt.NDArray[np.uint8]) -> None:
        """Count one image of shape (channels, height, width)."""
        if self._sum is None:
            self._sum = np.zeros(image.shape, dtype=np.int64)
        self._sum += image
        self._count += 1

    def value(self) -> npt.NDArray[np.float32]:
        """The mean, float32, of the shape of the images; raises ValueError before the first."""
        if self._sum is None:
            raise ValueError("no image was added")
        return (self._sum / self._count).astype(np.float32)


def write_mean(folder: Path, database: str, mean: MeanImage) -> Mean:
    """Write the mean of a database's images into the folder as `mean.binaryproto`."""
    content = mean_to_bytes(mean.value())
    with written_whole(folder / MEAN_FILE) as stream:
        stream.write(content)
    return Mean(MEAN_FILE, database, hashlib.sha256(content).hexdigest(), len(content))
