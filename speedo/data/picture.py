"""Converts one image file into what Caffe reads: planes of bytes, or the image file itself for an encoded datum."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from speedo.data.base import Shape
from speedo.data.files import read_file
from speedo.errors import DataError

# Formats that every OpenCV decodes the same way; the bytes of such files are kept where they fit.
_KEPT_FORMATS: Final = frozenset({"JPEG", "PNG"})
# Not all that Pillow knows: for some, such as EPS, it runs a program on the file.
FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000", "TGA")
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
class Picture:
    """Pixels, uint8 of shape (channels, height, width), blue first; `file` is empty unless
    encoded."""

    pixels: npt.NDArray[np.uint8]
    file: bytes = b""

    @property
    def shape(self) -> Shape:
        """Channels, height, width."""
        channels, height, width = self.pixels.shape
        return channels, height, width


def decode(path: Path, form: Form) -> Picture:
    """Read and convert one image.

    Resizing is bilinear with Pillow, which smooths when it makes an image smaller; OpenCV, which
    Caffe's own tool uses, does not, so pixels of shrunken images differ slightly from that tool's.
    Raises DataError if the file is missing or no image.
    """
    content = read_file(path, MOST_BYTES)
    mode = "L" if form.gray else "RGB"
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            source_format = opened.format
            image = opened.convert(mode)
            unchanged = opened.mode == mode
    # Pillow's decoders raise almost anything on a damaged file; whatever it is, the file is at
    # fault.
    except Exception as error:
        raise DataError(
            f"{path} is not an image that can be decoded ({_words(error, path)})"
        ) from error
    if form.size and (image.height, image.width) != form.size:
        image = image.resize((form.size[1], form.size[0]), Image.Resampling.BILINEAR)
        unchanged = False
    pixels = np.asarray(image, dtype=np.uint8)
    planes = pixels[np.newaxis] if form.gray else pixels[:, :, ::-1].transpose(2, 0, 1)
    planes = np.ascontiguousarray(planes)
    if not form.encoded:
        return Picture(planes)
    if unchanged and source_format in _KEPT_FORMATS:
        return Picture(planes, content)
    return Picture(planes, _encode(image, source_format))


def _words(error: Exception, path: Path) -> str:
    """Pillow's message, with the file's name instead of the bytes that it was given."""
    return re.sub(r"<_io\.BytesIO object at 0x[0-9a-f]+>", repr(path.name), str(error))


def _encode(image: Image.Image, source_format: str | None) -> bytes:
    out = io.BytesIO()
    if source_format == "JPEG":
        image.save(out, "JPEG", quality=_JPEG_QUALITY)
    else:
        # What came without loss stays so.
        image.save(out, "PNG")
    return out.getvalue()
