"""Images as OpenCV gives them to Caffe, decoded by Pillow: (C, H, W), uint8, colors in the order blue, green, red.

Caffe: util/io.cpp, ReadImageToCVMat and DecodeDatumToCVMat. Lossless files give OpenCV's pixels. The two may use
different versions of libjpeg, whose pixels of a JPEG may differ by a few steps of 255.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # most processes of a run decode no image
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Colors = Literal["color", "gray", "own"]

_FORMATS: Final = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")  # what OpenCV decodes
# Weights of red, green and blue, their bits, and what is added before these are cut off.
_LUMA: Final = {
    "PNG": (9797, 19234, 3737, 15, 0),  # libpng: png_do_rgb_to_gray
    "WEBP": (9798, 19235, 3735, 15, 1 << 14),  # OpenCV: cvtColor
    "JPEG2000": (9798, 19235, 3735, 15, 1 << 14),
    "BMP": (4899, 9617, 1868, 14, 1 << 13),  # OpenCV: icvCvt_BGR2Gray, and every other kind
}
_COEFFICIENT_BITS: Final = 11  # of OpenCV's fixed point for bilinear weights


class UnreadablePictureError(Exception):
    """What is wrong with an image; follows `which `."""


def decoded(file: IO[bytes] | str, colors: Colors, size: tuple[int, int] | None = None) -> Bytes:
    """The image in color (3 channels), in gray (1), or with the channels that it has, resized to (height, width).

    As in OpenCV, "color" and "gray" turn it as its EXIF says and "own" does not; transparency is dropped, not applied.
    """
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as image:
            pixels = _pixels(image, colors)
    except UnreadablePictureError:
        raise
    except Exception as error:  # Pillow raises almost anything on a damaged file
        raise UnreadablePictureError(f"is not an image that can be decoded ({error})") from error
    if size is not None:
        pixels = resized(pixels, *size)
    return pixels


def _pixels(image: Image.Image, colors: Colors) -> Bytes:
    from PIL import ImageOps

    kind = image.format
    if colors == "gray" and kind == "JPEG":
        image.draft("L", None)  # the file's own luma, as libjpeg gives it to OpenCV
    if colors != "own":
        ImageOps.exif_transpose(image, in_place=True)
    wide = image.mode in ("I", "I;16", "I;16B", "I;16L", "F")
    if wide and (colors == "own" or image.mode == "F"):
        raise UnreadablePictureError("has more than 8 bits a channel: convert it to 8")
    if wide:
        return _channels_first(np.asarray(image) >> 8, colors)
    if image.mode in ("1", "L"):
        return _channels_first(np.asarray(image.convert("L")), colors)
    transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if colors == "own" and transparent:
        return _blue_first(np.asarray(image.convert("RGBA")))
    rgb = np.asarray(image.convert("RGB"))
    return _luma(rgb, kind) if colors == "gray" else _blue_first(rgb)


def _channels_first(gray: npt.NDArray[np.generic], colors: Colors) -> Bytes:
    pixels = gray.astype(np.uint8)[None]
    return np.repeat(pixels, 3, axis=0) if colors == "color" else pixels


def _blue_first(rgb: Bytes) -> Bytes:
    """(H, W, RGB[A]) as (BGR[A], H, W)."""
    order = [2, 1, 0, 3][: rgb.shape[2]]
    planes: Bytes = rgb.transpose(2, 0, 1)[order]
    return planes


def _luma(rgb: Bytes, kind: str | None) -> Bytes:
    """Gray of the colors, in the fixed point of the decoder that OpenCV uses for this kind of file."""
    red, green, blue, bits, half = _LUMA.get(kind or "", _LUMA["BMP"])
    wide = rgb.astype(np.int32)
    gray = (wide[..., 0] * red + wide[..., 1] * green + wide[..., 2] * blue + half) >> bits
    return gray.astype(np.uint8)[None]


def resized(pixels: Bytes, height: int, width: int) -> Bytes:
    """Bilinear without smoothing, (C, H, W), in the fixed point of OpenCV's INTER_LINEAR for bytes.

    Like OpenCV, halving both extents takes the mean of four.
    """
    _, rows, columns = pixels.shape
    if (rows, columns) == (height, width):
        return pixels
    if (rows, columns) == (2 * height, 2 * width):
        wide = pixels.astype(np.uint16)
        four = wide[:, ::2, ::2] + wide[:, ::2, 1::2] + wide[:, 1::2, ::2] + wide[:, 1::2, 1::2]
        return ((four + 2) >> 2).astype(np.uint8)
    left, right, left_weight, right_weight = _taps(columns, width)
    over, under, over_weight, under_weight = _taps(rows, height)
    wide = pixels.astype(np.int32)
    across = wide[:, :, left] * left_weight + wide[:, :, right] * right_weight
    across >>= 4
    upper = (across[:, over] * over_weight[:, None]) >> 16
    lower = (across[:, under] * under_weight[:, None]) >> 16
    new: Bytes = ((upper + lower + 2) >> 2).astype(np.uint8)
    return new


def _taps(extent: int, wanted: int) -> tuple[npt.NDArray[np.signedinteger[Any]], ...]:
    """The two neighbours of every new pixel and their weights, of 2048."""
    scale = 1.0 / (wanted / extent)
    place = ((np.arange(wanted) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.intp)
    part = place - first.astype(np.float32)
    whole = np.float32(1 << _COEFFICIENT_BITS)
    after = np.rint(part * whole).astype(np.int32)
    before = np.rint((np.float32(1) - part) * whole).astype(np.int32)
    last = extent - 1
    return np.clip(first, 0, last), np.clip(first + 1, 0, last), before, after
