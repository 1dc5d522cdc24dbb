"""The boxes of a batch as an AnnotatedData layer gives them, (1, 1, n, 8).

A row is image, class, number in its class, xmin, ymin, xmax, ymax, difficult; the image -1 stands for none. SSD's
layers/annotated_data_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

ROW: Final = 8
TOP: Final = 1  # of the layer's tops the one with the boxes


def boxes_of(labels: Vector, images: Sequence[int]) -> Vector:
    """Those of these images of the batch, which are numbered from 0 then; a row of -1 if they have none."""
    rows = labels.reshape(-1, ROW)
    own = [rows[rows[:, 0] == image] for image in images]
    found = np.concatenate([np.full((1, ROW), -1.0, np.float32), *own])
    found[1:, 0] = np.repeat(np.arange(len(own)), [len(one) for one in own])
    return found[1 if len(found) > 1 else 0 :][None, None]
