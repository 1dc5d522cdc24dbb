"""Converts one image file into what Caffe reads: planes of bytes, or the image file itself for an encoded datum."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from speedo.data.base import Shape
from speedo.data.files import read_file
from speedo.data.pixels import OPENCVS, UnreadablePictureError, decoded
from speedo.errors import DataError

# Formats that every OpenCV decodes the same way; the bytes of such files are kept where they fit.
_KEPT_FORMATS: Final = frozenset({"JPEG", "PNG"})
# Not all that Pillow knows: for some, such as EPS, it runs a program on the file.
FORMATS: Final = (*OPENCVS, "GIF", "TGA")
_JPEG_QUALITY: Final = 95
MOST_BYTES: Final = 512 << 20  # of one image; what it unpacks to, Pillow bounds itself


@dataclass(frozen=True, slots=True)
class Form:
    """What images shall become: `size` is (height, width), None leaves it."""

    size: tuple[int, int] | None
    gray: bool
    encoded: bool

    def __post_init__(self) -> None:
        if self.size and min(self.size) < 1:
            raise DataError(
                f"size {self.size[0]} x {self.size[1]}: height and width must be 1 or more"
            )


@dataclass(frozen=True, slots=True)
class StoredImage:
    """Pixels, uint8 of shape (channels, height, width), blue first; `file` is empty unless encoded.

    `cut` says that the file is a JPEG without its end: what is missing is gray.
    """

    pixels: npt.NDArray[np.uint8]
    file: bytes = b""
    cut: bool = False

    @property
    def shape(self) -> Shape:
        """Channels, height, width."""
        channels, height, width = self.pixels.shape
        return channels, height, width


def decode(path: Path, form: Form) -> StoredImage:
    """Read and convert one image, with the pixels of an ImageData layer that has this form.

    An encoded file is kept as it is if a net reads these pixels from it with and without `force_color`. Raises
    DataError if the file is missing or no image.
    """
    content = read_file(path, MOST_BYTES)
    try:
        made = decoded(content, "gray" if form.gray else "color", form.size, formats=FORMATS)
    except UnreadablePictureError as error:
        raise DataError(f"{path} {error}") from error
    pixels = np.ascontiguousarray(made.pixels)
    if not form.encoded:
        return StoredImage(pixels, cut=made.cut)
    kept = made.plain and made.kind in _KEPT_FORMATS
    return StoredImage(pixels, content if kept else _encode(pixels, made.kind), made.cut)


def _encode(pixels: npt.NDArray[np.uint8], kind: str) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels[::-1].transpose(1, 2, 0))
    if kind == "JPEG":
        image.save(out, "JPEG", quality=_JPEG_QUALITY)
    else:
        # What came without loss stays so.
        image.save(out, "PNG")
    return out.getvalue()
