"""Caffe's TransformationParameter: window, mean, scale and mirror, in float32 and in Caffe's order of operations.

Caffe: data_transformer.cpp. Without random draws the values are those of Caffe to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from caffenets.caffe_schema.caffe_pb2 import BlobProto
from speedo.errors import EngineError

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Floats = npt.NDArray[np.float32]
Size = tuple[int, int, int]
"""Channels, height, width."""

# Random numbers of one record: mirror, row and column of the window; a record that needs fewer leaves the rest.
_DRAWS: Final = 3
# Fields of SSD's that only AnnotatedData takes, in its own way (`speedo.engines.pytorch.data.augmentation`).
OF_BOXES: Final = (
    "resize_param", "noise_param", "emit_constraint", "crop_h", "crop_w", "distort_param", "expand_param"
)  # fmt: skip


class Transform:
    """The transformation of one layer.

    `param` is its TransformationParameter, `refuse` makes its errors, `mean` is the path of the mean file, if it has
    one. `draws` gives the random numbers: as many for every record, whatever its size, so that records can be skipped.
    """

    def __init__(
        self,
        param: Any,
        phase: str,
        refuse: Callable[[str], EngineError],
        draws: np.random.Generator,
        mean: Path | None,
    ) -> None:
        if others := [field.name for field, _ in param.ListFields() if field.name in OF_BOXES]:
            raise refuse(
                f"has {', '.join(others)}, which this engine has in AnnotatedData layers alone: remove it"
            )
        self.crop = int(param.crop_size)
        self._scale = np.float32(param.scale)
        self._mirror = bool(param.mirror)
        self._moves = bool(self.crop) and phase == "TRAIN"
        self._refuse = refuse
        self._draws = draws
        if param.force_color and param.force_gray:
            raise refuse("has both force_color and force_gray: keep one")
        self._values = np.array(param.mean_value, np.float32).reshape(-1, 1, 1)
        if mean is not None and len(self._values):
            raise refuse("has both mean_file and mean_value: keep one")
        self._mean: Floats | None = None if mean is None else self._mean_of(mean)

    @property
    def mean_shape(self) -> Size | None:
        """Shape of the mean file's image, which every record must have."""
        return None if self._mean is None else self._mean.shape

    def window(self, shape: Size) -> Size:
        """The shape of a transformed record; raises `EngineError` if the mean values are not for these channels."""
        channels, height, width = shape
        if len(self._values) not in (0, 1, channels):
            raise self._refuse(
                f"has {len(self._values)} mean_value, and its records have {channels} channels: give one, or one "
                "for each channel"
            )
        return (channels, self.crop, self.crop) if self.crop else (channels, height, width)

    def skip(self, records: int) -> None:
        """Draw the random numbers of this many records."""
        if self._is_random:
            self._draws.bit_generator.advance(_DRAWS * records)  # type: ignore[attr-defined]

    def apply(self, images: Pixels | Sequence[Pixels], out: Floats) -> None:
        """Transform a batch: images of one shape as an array, or of any shapes, into `out` (N, C, H, W)."""
        if self._is_random:
            for image, place, (flip, row, column) in zip(
                images, out, self._draws.random((len(out), _DRAWS)), strict=True
            ):
                mirrored = self._mirror and flip < 0.5
                self._subtract(image, place[..., ::-1] if mirrored else place, row, column)
        elif isinstance(images, np.ndarray):
            self._subtract(images, out)
        else:
            for image, place in zip(images, out, strict=True):
                self._subtract(image, place)
        if self._scale != 1:
            np.multiply(out, self._scale, out=out)

    @property
    def _is_random(self) -> bool:
        return self._mirror or self._moves

    def _subtract(self, image: Pixels, out: Floats, row: float = 0, column: float = 0) -> None:
        """The window of image(s) (..., C, H, W) less the mean; `row` and `column` place it, from 0 to below 1."""
        mean = self._values if self._mean is None else self._mean
        if self.crop:
            height, width = image.shape[-2] - self.crop, image.shape[-1] - self.crop
            top = int(row * (height + 1)) if self._moves else height // 2
            left = int(column * (width + 1)) if self._moves else width // 2
            place = (..., slice(top, top + self.crop), slice(left, left + self.crop))
            image = image[place]
            mean = mean if self._mean is None else mean[place]
        if not len(mean):
            out[...] = image
        else:
            np.subtract(image, mean, out=out, dtype=np.float32)

    def _mean_of(self, file: Path) -> Floats:
        """The image in a mean file; Caffe takes the first if there are several (Caffe: blob.cpp, FromProto)."""
        remedy = "create it again, with the database"
        try:
            blob = BlobProto.FromString(file.read_bytes())
        except (OSError, DecodeError) as error:
            raise self._refuse(
                f"needs the mean file {file}, which cannot be read ({error}): {remedy}"
            ) from error
        old = any(blob.HasField(name) for name in ("num", "channels", "height", "width"))
        shape = [blob.num, blob.channels, blob.height, blob.width] if old else list(blob.shape.dim)
        values = np.array(blob.double_data or blob.data, np.float32)
        if len(shape) > 4 or values.size != math.prod(shape) or not values.size:
            raise self._refuse(
                f"needs the mean file {file}, which holds {values.size:,} values and says that it has the shape "
                f"{' x '.join(map(str, shape))}: {remedy}"
            )
        num, channels, height, width = shape + [1] * (4 - len(shape))
        first: Floats = values.reshape(num, channels, height, width)[0]
        return first
