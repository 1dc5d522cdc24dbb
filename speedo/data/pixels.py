"""Images as OpenCV gives them to Caffe, decoded by Pillow: (C, H, W), uint8, colors in the order blue, green, red.

The one reader of images: of the engines, of the checks, and of what makes databases. Caffe: util/io.cpp,
ReadImageToCVMat and DecodeDatumToCVMat; OpenCV 4.6: modules/imgcodecs. Files without loss give OpenCV's pixels. The two
may use different versions of libjpeg, whose pixels of a JPEG may differ by a few steps of 255; of TIFFs in color with
16 bits, and of grays of such PNGs, OpenCV rounds what is cut off here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from io import SEEK_END, BytesIO
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # most processes of a run decode no image
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Colors = Literal["color", "gray", "own"]

OPENCVS: Final = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")  # what OpenCV decodes
# Weights of red, green and blue, their bits, and what is added before these are cut off.
_LUMA: Final = {
    "PNG": (9797, 19234, 3737, 15, 0),  # libpng: png_do_rgb_to_gray
    "WEBP": (9798, 19235, 3735, 15, 1 << 14),  # OpenCV: cvtColor
    "JPEG2000": (9798, 19235, 3735, 15, 1 << 14),
    "BMP": (4899, 9617, 1868, 14, 1 << 13),  # OpenCV: icvCvt_BGR2Gray, and every other kind
}
_COEFFICIENT_BITS: Final = 11  # of OpenCV's fixed point for bilinear weights
_JPEG_BEGINS: Final = b"\xff\xd8"
# Of the longest segment of a JPEG, as libjpeg reads behind a file
_JPEG_ENDS: Final = b"\xff\xd9" * (1 << 15)
_PNG_ENDS: Final = b"IEND\xaeB`\x82"
_TIFF_BEGINS: Final = (b"II*\0", b"MM\0*")
_ORIENTATION: Final = 0x0112
_MOST_EXIF_BYTES: Final = 1 << 17  # and what else may stand at the end of a PNG
_ROTATED: Final = (5, 6, 7, 8)  # values of EXIF's Orientation that exchange height and width
_TURNED: Final = ("JPEG", "PNG")  # OpenCV 4.6 reads EXIF in these alone; in a TIFF it is a tag
# Tags of TIFF
_WIDTH: Final = 256
_HEIGHT: Final = 257
_PHOTOMETRIC: Final = 262
_SAMPLES: Final = 277
_EXTRA_SAMPLES: Final = 338
_NO_MEANING: Final = (
    "no definite meaning as an image of 8 bits: scale them to 0 to 255 and save it with 8 bits"
)


class UnreadablePictureError(Exception):
    """What is wrong with an image; follows `which `."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Pixels, (C, H, W); `kind` is Pillow's name of the file's format.

    `cut` says that a JPEG lacks its end: what is missing is gray. `plain` says that the file gives these pixels also
    where its own channels are asked for.
    """

    pixels: Bytes
    kind: str
    cut: bool
    plain: bool


def decoded(
    content: bytes,
    colors: Colors,
    size: tuple[int, int] | None = None,
    *,
    formats: tuple[str, ...] = OPENCVS,
    in_record: bool = False,
) -> Decoded:
    """The image in color (3 channels), in gray (1), or with the channels that it has, resized to (height, width).

    As in OpenCV, "color" and "gray" turn it as its EXIF says and "own" does not; transparency is dropped, not applied;
    16 bits become 8 and are refused as "own". A JPEG without its end is decoded as far as it goes, but not a
    progressive one that is `in_record`, which OpenCV refuses. Raises `UnreadablePictureError`.
    """
    try:
        try:
            made = _decoded(content, colors, formats)
        except OSError:
            if not content.startswith(_JPEG_BEGINS):
                raise
            # libjpeg takes the end of a file for the end of the image; Pillow does not.
            made = replace(
                _decoded(content + _JPEG_ENDS, colors, formats, in_record), cut=True, plain=False
            )
    except UnreadablePictureError:
        raise
    except Exception as error:  # Pillow raises almost anything on a damaged file
        raise UnreadablePictureError(_words(error, content)) from error
    if size is None or made.pixels.shape[1:] == size:
        return made
    return replace(made, pixels=resized(made.pixels, *size), plain=False)


def shape_of(
    file: IO[bytes], colors: Colors, formats: tuple[str, ...] = OPENCVS
) -> tuple[int, int, int]:
    """The shape that `decoded` gives, by the header of the image alone. Raises `UnreadablePictureError`."""
    from PIL import Image

    try:
        with Image.open(file, formats=formats) as image:
            width, height = image.size
            channels = {"color": 3, "gray": 1}.get(colors) or _own_channels(image)
            if image.format == "PNG" and colors != "own" and "exif" not in image.info:
                file.seek(max(0, file.seek(0, SEEK_END) - _MOST_EXIF_BYTES))
                if b"eXIf" in file.read():  # behind the pixels
                    file.seek(0)
                    image.load()
            turned = 1 if colors == "own" else _orientation(image)
            if image.format == "TIFF":  # of which some versions of Pillow have turned the size
                tags = image.tag_v2  # type: ignore[attr-defined]
                width, height, turned = tags[_WIDTH], tags[_HEIGHT], tags.get(_ORIENTATION)
            if turned in _ROTATED:
                width, height = height, width
    except Exception as error:  # as above
        file.seek(0)
        raise UnreadablePictureError(_words(error, file.read(4))) from error
    return channels, height, width


def _words(error: Exception, content: bytes) -> str:
    from PIL import UnidentifiedImageError

    unknown = isinstance(error, UnidentifiedImageError)
    if unknown and content.startswith(_TIFF_BEGINS):
        return f"is a damaged TIFF, or has numbers (such as floating-point ones) of {_NO_MEANING}"
    return "is not an image that can be decoded" + ("" if unknown else f" ({error})")


def _decoded(
    content: bytes, colors: Colors, formats: tuple[str, ...], whole_only: bool = False
) -> Decoded:
    from PIL import Image

    with Image.open(BytesIO(content), formats=formats) as image:
        kind = _kind(image)
        if whole_only and "progressive" in image.info:
            raise UnreadablePictureError(
                "is a progressive JPEG that is cut short, which OpenCV does not decode in a database"
            )
        if kind == "PNG" and _PNG_ENDS not in content:
            raise UnreadablePictureError("is a PNG that is cut short")
        channels = {"L": 1, "RGB": 3}.get(image.mode)
        plain = not _is_deep(image) and "transparency" not in image.info
        pixels = _pixels(image, kind, colors, content)
        plain = plain and len(pixels) == channels and _orientation(image) == 1
    return Decoded(pixels, kind, False, plain)


def _kind(image: Image.Image) -> str:
    """The format; that of several JPEGs in one file, of which the first is read, is JPEG."""
    return "JPEG" if image.format == "MPO" else str(image.format)


def _orientation(image: Image.Image) -> int:
    """How the image is to be turned, 1 for not at all, as EXIF counts it; of a PNG it may stand behind the pixels."""
    from PIL import Image as Images

    raw = image.info.get("exif")
    if raw is None or _kind(image) not in _TURNED:
        return 1
    exif = Images.Exif()
    try:
        exif.load(raw)  # not `getexif`, which also looks where OpenCV does not
        found = exif.get(_ORIENTATION)
    except Exception:  # it is damaged
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _is_deep(image: Any) -> bool:
    """Whether a channel has more than 8 bits; before the image is loaded."""
    return image.mode.startswith(("I", "F")) or any(";16" in str(tile) for tile in image.tile)


def _own_channels(image: Any) -> int:
    """How many channels OpenCV gives if it shall keep them."""
    if image.format == "TIFF":
        if image.tag_v2.get(_PHOTOMETRIC) in (0, 1):
            return 1
        return 4 if image.tag_v2.get(_SAMPLES) == 4 else 3
    if image.mode in ("1", "L") or image.mode.startswith("I"):
        return 1
    return 4 if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info else 3


def _pixels(image: Image.Image, kind: str, colors: Colors, content: bytes) -> Bytes:
    deep = _is_deep(image)
    values = _unscaled(image, content)
    if values is not None:
        deep = values.dtype != np.uint8
    elif image.mode == "F" or (image.mode == "I" and kind == "TIFF"):
        numbers = "floating-point" if image.mode == "F" else "signed or 32-bit"
        raise UnreadablePictureError(f"has {numbers} numbers of {_NO_MEANING}")
    if deep and colors == "own":
        raise UnreadablePictureError("has more than 8 bits a channel: convert it to 8")
    if values is None:
        values = _values_of_tiff(image) if kind == "TIFF" else _values(image, kind, colors)
    if colors != "own":
        values = _turned(values, _orientation(image))
    if values.dtype != np.uint8:
        values = values >> 8
    pixels = values.astype(np.uint8, copy=False)
    if pixels.ndim == 2:
        return np.repeat(pixels[None], 3, axis=0) if colors == "color" else pixels[None]
    if colors == "gray":
        return _luma(pixels, kind)
    order = [2, 1, 0, 3] if colors == "own" and pixels.shape[2] == 4 else [2, 1, 0]
    planes: Bytes = pixels.transpose(2, 0, 1)[order]
    return planes


def _values(image: Image.Image, kind: str, colors: Colors) -> npt.NDArray[Any]:
    """(H, W), (H, W, RGB) or (H, W, RGBA), in bytes or in 16 bits."""
    if colors == "gray" and kind == "JPEG":
        image.draft("L", None)  # the file's own luma, as libjpeg gives it to OpenCV
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)
    if image.mode == "CMYK":
        return _rgb_of_cmyk(np.asarray(image))
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"))
    return np.asarray(image.convert("RGBA" if _own_channels(image) == 4 else "RGB"))


def _turned(values: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """OpenCV: ExifTransform."""
    if orientation in _ROTATED:
        values = values.swapaxes(0, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return values[:: -1 if down else 1, :: -1 if across else 1]


def _values_of_tiff(image: Any) -> npt.NDArray[Any]:
    """As libtiff's TIFFReadRGBA gives them, turned by their tag (by Pillow), and colors times opacity."""
    extra, is_white_0 = image.tag_v2.get(_EXTRA_SAMPLES), image.tag_v2.get(_PHOTOMETRIC) == 0
    own = _own_channels(image)
    if extra == (1,):  # they are multiplied already, which Pillow would undo
        image.tile = [
            (*tile, ("RGBA" if args[0] == "RGBa" else args[0], *args[1:]))
            for *tile, args in image.tile
        ]
    image.load()
    if image.mode.startswith("I;16"):
        values = np.asarray(image)
        return 65535 - values if is_white_0 else values
    if own < 4:
        return np.asarray(image.convert("L" if own == 1 else "RGB"))
    values = np.asarray(image if image.mode in ("RGBA", "RGBX") else image.convert("RGBA"))
    if extra == (2,):
        wide = values.astype(np.uint16)
        wide[..., :3] = (wide[..., :3] * wide[..., 3:] + 127) // 255
        values = wide.astype(np.uint8)
    return values


def _unscaled(image: Any, content: bytes) -> npt.NDArray[Any] | None:
    """The numbers of a PGM or PPM whose largest is not 255, which OpenCV leaves as they are; None of others."""
    if image.format != "PPM" or not image.tile or image.tile[0][0] != "ppm":
        return None
    _, _, offset, args = image.tile[0]
    shape = (image.height, image.width, *((3,) if args[0] == "RGB" else ()))
    kind = np.dtype(">u2" if args[1] > 255 else "u1")
    values = np.frombuffer(content, kind, math.prod(shape), offset).reshape(shape)
    return values.astype(kind.newbyteorder("="))


def _rgb_of_cmyk(inverted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """OpenCV: icvCvt_CMYK2BGR. Pillow inverts the numbers of the file."""
    cmyk = 255 - inverted.astype(np.int32)
    black = cmyk[..., 3:]
    return (black - ((255 - cmyk[..., :3]) * black >> 8)).astype(np.uint8)


def _luma(rgb: Bytes, kind: str) -> Bytes:
    """Gray of the colors, in the fixed point of the decoder that OpenCV uses for this kind of file."""
    red, green, blue, bits, half = _LUMA.get(kind, _LUMA["BMP"])
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
