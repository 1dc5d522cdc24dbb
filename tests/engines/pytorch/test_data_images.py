"""ImageData and encoded records give pycaffe's pixels: decoding, color, gray, resizing, lists."""

from __future__ import annotations

import io
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from speedo.data.pixels import Colors, decoded, shape_of
from speedo.errors import EngineError
from tests.support.data_layers import (
    assert_same,
    by_caffe,
    by_torch,
    data_layer,
    encoded_datum,
    pixels,
    source_of,
    write_records,
)

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

RGB = pixels((20, 15, 3), 1)
GRAY = pixels((20, 15), 2)
# Smooth, as photographs are.
PHOTO = np.stack(
    [
        np.add.outer(np.sin(np.arange(40) / 7 + phase), np.cos(np.arange(50) / 5 - phase)) * 60
        + 125
        for phase in range(3)
    ],
    axis=-1,
).astype(np.uint8)


def file_of(array: np.ndarray, format: str, mode: str | None = None, **options: Any) -> bytes:
    image = Image.fromarray(array) if mode != "CMYK" else Image.fromarray(array, mode)
    if mode is not None:
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


def pnm(magic: str, array: np.ndarray, most: int) -> bytes:
    return f"{magic}\n{array.shape[1]} {array.shape[0]}\n{most}\n".encode() + array.tobytes()


def tiff(array: np.ndarray, photometric: int, *tags: tuple[int, int], format: int = 1) -> bytes:
    """A TIFF with tags that Pillow does not write; up to 2 channels, or 4."""
    height, width, channels = (*array.shape, 1)[:3]
    data, bits = array.tobytes(), 8 * array.itemsize
    each = struct.pack(f"<{channels}H", *[bits] * channels)
    entries = [
        (256, width), (257, height), (258, bits), (259, 1), (262, photometric), (273, 8), (277, channels),
        (278, height), (279, len(data)), (339, format), *tags,
    ]  # fmt: skip
    table = struct.pack("<H", len(entries))
    for tag, value in sorted(entries):
        if tag == 258 and channels > 2:
            table += struct.pack("<HHII", tag, 3, channels, 8 + len(data))
        else:
            table += struct.pack("<HHII", tag, 4 if tag in (273, 279) else 3, 1, value)
    start = 8 + len(data) + len(each)
    return b"II*\0" + struct.pack("<I", start) + data + each + table + bytes(4)


DEEP = (GRAY.astype("<u2") * 257 + np.arange(15, dtype="<u2")).astype("<u2")
RGBA = pixels((20, 15, 4), 3)
LOSSLESS = {
    "rgb.png": file_of(RGB, "PNG"),
    "gray.png": file_of(GRAY, "PNG"),
    "palette.png": file_of(RGB, "PNG", "P"),
    "bits.png": file_of(GRAY, "PNG", "1"),
    "rgba.png": file_of(RGBA, "PNG"),
    "gray-alpha.png": file_of(RGBA, "PNG", "LA"),
    "transparent.png": file_of(RGB, "PNG", transparency=(1, 2, 3)),
    "wide.png": file_of(GRAY.astype(np.uint16) * 251, "PNG"),
    "rgb.bmp": file_of(RGB, "BMP"),
    "gray.bmp": file_of(GRAY, "BMP"),
    "rgb.ppm": file_of(RGB, "PPM"),
    "rgb.tif": file_of(RGB, "TIFF"),
    "gray.tif": file_of(GRAY, "TIFF"),
    "rgb.jp2": file_of(RGB, "JPEG2000", irreversible=False),
    "rgb.webp": file_of(RGB, "WEBP", lossless=True),
    "turned.webp": file_of(RGB, "WEBP", lossless=True, exif=exif(6)),  # which OpenCV 4.6 overlooks
    **{f"turned-{at}.png": file_of(RGB, "PNG", exif=exif(at)) for at in range(1, 9)},
    **{f"turned-{at}.tif": tiff(DEEP, 1, (274, at)) for at in (3, 6)},
    "wide.tif": tiff(DEEP, 1),
    "wide-white.tif": tiff(DEEP, 0),
    "opacity.tif": tiff(RGBA, 2, (338, 2)),
    "multiplied.tif": tiff(RGBA, 2, (338, 1)),
    "wide.jp2": file_of(DEEP, "JPEG2000"),
    "wide.pgm": pnm("P5", DEEP.astype(">u2"), 65535),
    "thousand.pgm": pnm("P5", (DEEP % 1001).astype(">u2"), 1000),
    "hundred.pgm": pnm("P5", GRAY % 101, 100),
    "wide.ppm": pnm("P6", np.stack([DEEP, DEEP[::-1], DEEP[:, ::-1]], -1).astype(">u2"), 65535),
}
# Caffe decodes neither as a record that keeps its channels: more than 8 bits, and WebP (OpenCV 4.6).
NATIVE = [
    name
    for name in LOSSLESS
    if not name.startswith(("wide", "thousand"))
    and not name.endswith("webp")
    and name not in ("turned-3.tif", "turned-6.tif")
]
JPEG = {
    "photo.jpg": file_of(PHOTO, "JPEG", quality=90),
    "full.jpg": file_of(PHOTO, "JPEG", quality=75, subsampling=0),
    "progressive.jpg": file_of(PHOTO, "JPEG", progressive=True),
    "gray.jpg": file_of(PHOTO[..., 0], "JPEG"),
    **{f"turned-{at}.jpg": file_of(PHOTO, "JPEG", exif=exif(at)) for at in range(2, 9)},
    "cmyk.jpg": file_of(np.dstack([PHOTO, PHOTO[..., 0] // 2]), "JPEG", "CMYK"),
    "several.jpg": file_of(PHOTO, "MPO", save_all=True, append_images=[Image.fromarray(RGB)]),
    "cut-2.jpg": file_of(PHOTO, "JPEG")[:-2],
    "cut-400.jpg": file_of(PHOTO, "JPEG", quality=95)[:-400],
    "cut-2-progressive.jpg": file_of(PHOTO, "JPEG", progressive=True)[:-2],
}


def image_layer(source: Path, batch: int, more: str = "", transform: str = "") -> str:
    return (
        'name: "images" type: "ImageData" top: "data" top: "label" '
        f'image_data_param {{ source: "{source}" batch_size: {batch} {more} }} {transform}'
    )


def write_list(folder: Path, files: dict[str, bytes]) -> Path:
    """A list of these files with their numbers as labels."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    path = folder / "list.txt"
    path.write_text("".join(f"{folder / name} {at}\n" for at, name in enumerate(files)))
    return path


@pytest.mark.parametrize("color", ["true", "false"])
@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_images_of_a_list_are_opencvs_to_the_bit(
    tmp_path: Path, name: str, color: str
) -> None:
    layer = image_layer(write_list(tmp_path, {name: LOSSLESS[name]}), 2, f"is_color: {color}")
    assert_same(by_torch(layer, 1), by_caffe(layer, 1, tmp_path))


@pytest.mark.parametrize("color", ["true", "false"])
@pytest.mark.parametrize("name", JPEG)
def test_jpegs_differ_by_the_decoders_rounding_alone(tmp_path: Path, name: str, color: str) -> None:
    layer = image_layer(write_list(tmp_path, {name: JPEG[name]}), 1, f"is_color: {color}")
    found, expected = by_torch(layer, 1)[0][0], by_caffe(layer, 1, tmp_path)[0][0]
    assert found.shape == expected.shape
    # Zero with the OpenCV of Debian 12; other decoders round otherwise.
    assert np.abs(found - expected).max() <= 2


@pytest.mark.parametrize("force", ["", "force_color: true", "force_gray: true"])
@pytest.mark.parametrize("name", NATIVE)
def test_encoded_records_are_opencvs_to_the_bit(tmp_path: Path, name: str, force: str) -> None:
    database = write_records(tmp_path / "encoded", [encoded_datum(LOSSLESS[name], 3)])
    layer = data_layer(database, 2, f"transform_param {{ {force} scale: 0.1 }}")
    assert_same(by_torch(layer, 2), by_caffe(layer, 2, tmp_path))


@pytest.mark.parametrize("force", ["", "force_color: true", "force_gray: true"])
@pytest.mark.parametrize("name", ["turned-6.jpg", "turned-8.jpg", "cmyk.jpg", "several.jpg"])
def test_encoded_photographs_are_turned_as_in_opencv(tmp_path: Path, name: str, force: str) -> None:
    database = write_records(tmp_path / "encoded", [encoded_datum(JPEG[name], 3)])
    layer = data_layer(database, 1, f"transform_param {{ {force} }}")
    found, expected = by_torch(layer, 1)[0][0], by_caffe(layer, 1, tmp_path)[0][0]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 2


BEHIND = LOSSLESS["turned-6.png"]
AT = BEHIND.index(b"eXIf") - 4
CHUNK = BEHIND[AT : AT + 12 + int.from_bytes(BEHIND[AT : AT + 4])]
BEHIND = BEHIND.replace(CHUNK, b"")[:-12] + CHUNK + BEHIND[-12:]


def test_a_png_may_have_its_orientation_behind_its_pixels(tmp_path: Path) -> None:
    layer = image_layer(write_list(tmp_path, {"behind.png": BEHIND}), 1)
    (found,) = by_torch(layer, 1)
    assert found[0].shape == (1, 3, 15, 20)
    assert_same([found], by_caffe(layer, 1, tmp_path))
    assert shape_of(io.BytesIO(BEHIND), "color") == (3, 15, 20)


@pytest.mark.parametrize("name", [*LOSSLESS, *JPEG])
def test_the_header_says_the_shape(name: str) -> None:
    content = {**LOSSLESS, **JPEG}[name]
    every: tuple[Colors, ...] = ("color", "gray", "own")
    for colors in every[: 3 if name in (*NATIVE, *JPEG) else 2]:
        assert shape_of(io.BytesIO(content), colors) == decoded(content, colors).pixels.shape


def test_encoded_photographs_are_cropped_less_their_mean(tmp_path: Path) -> None:
    files = [JPEG["photo.jpg"], JPEG["full.jpg"], LOSSLESS["rgb.png"]]
    database = write_records(tmp_path / "encoded", [encoded_datum(file) for file in files])
    layer = data_layer(
        database, 2, "transform_param { crop_size: 15 mean_value: 9 mean_value: 8 mean_value: 7 }"
    )
    found, expected = by_torch(layer, 3, phase="TEST"), by_caffe(layer, 3, tmp_path, phase="TEST")
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(mine[0] - theirs[0]).max() <= 2


SIZES = st.integers(1, 40)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extents=st.tuples(SIZES, SIZES), wanted=st.tuples(SIZES, SIZES), color=st.booleans())
def test_resizing_is_opencvs_to_the_bit(
    tmp_path: Path, extents: tuple[int, int], wanted: tuple[int, int], color: bool
) -> None:
    file = file_of(pixels((*extents, 3), sum(extents)), "PNG")
    size = f"new_height: {wanted[0]} new_width: {wanted[1]} is_color: {str(color).lower()}"
    layer = image_layer(write_list(tmp_path, {"image.png": file}), 1, size)
    assert_same(by_torch(layer, 1), by_caffe(layer, 1, tmp_path))


@pytest.mark.parametrize(
    ("extents", "wanted"), [((64, 48), (32, 24)), ((500, 375), (256, 256)), ((31, 17), (227, 227))]
)
def test_halving_and_large_images_are_opencvs_too(
    tmp_path: Path, extents: tuple[int, int], wanted: tuple[int, int]
) -> None:
    file = file_of(pixels((*extents, 3)), "PNG")
    size = f"new_height: {wanted[0]} new_width: {wanted[1]}"
    layer = image_layer(write_list(tmp_path, {"image.png": file}), 1, size)
    assert_same(by_torch(layer, 1), by_caffe(layer, 1, tmp_path))


def test_several_threads_decode_a_batch_in_its_order(tmp_path: Path) -> None:
    files = [file_of(np.full((30, 40, 3), at, np.uint8), "PNG") for at in range(11)]
    database = write_records(tmp_path / "encoded", map(encoded_datum, files, range(11)))
    source = source_of(data_layer(database, 8), decoders=3)
    source.setup([])
    for _ in range(4):
        data, labels = source.forward([], [])
        assert data[:, 0, 0, 0].tolist() == labels.tolist()
    # Waits for all of them.
    source.close()
    assert not [one for one in threading.enumerate() if "records of" in one.name]


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """A list of seven images of one color each, that of their label."""
    files = {f"{at}.png": file_of(np.full((6, 5, 3), at, np.uint8), "PNG") for at in range(7)}
    return write_list(tmp_path, files)


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 3)])
def test_a_list_is_read_in_order_over_its_end_whatever_the_rank(
    numbered: Path, tmp_path: Path, rank: int, count: int
) -> None:
    layer = image_layer(numbered, 3, transform="transform_param { scale: 0.5 mean_value: 2 }")
    expected = by_caffe(layer, 6, tmp_path, rank=rank, count=count)
    assert_same(by_torch(layer, 6, rank=rank, count=count), expected)


def test_root_folder_and_names_are_joined_as_text(numbered: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text(".png 4\n.png -3\n.png 12abc")
    for root in (f"{tmp_path}/5", f"{tmp_path}/6"):
        layer = image_layer(names, 3, f'root_folder: "{root}"')
        assert_same(by_torch(layer, 1), by_caffe(layer, 1, tmp_path))


def test_relative_names_are_found_in_the_places_folder_and_empty_lines_are_none(
    numbered: Path, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("\n5.png 4\n\n6.png 3\n\n")
    layer = image_layer(Path("names.txt"), 3, f'root_folder: "../{tmp_path.name}/"')
    data, labels = by_torch(layer, 1, folder=tmp_path)[0]
    assert labels.tolist() == [4, 3, 4]
    assert data[:, 0, 0, 0].tolist() == [5, 6, 5]


def test_shuffling_changes_the_order_of_every_epoch_by_the_seed(numbered: Path) -> None:
    layer = image_layer(numbered, 7, "shuffle: true")
    drawn = by_torch(layer, 20, seed=1)
    orders = [tuple(labels) for _, labels in drawn]
    assert len(set(orders)) > 15
    for data, labels in drawn:
        assert sorted(labels) == list(range(7))
        np.testing.assert_array_equal(data[:, 0, 0, 0], labels)
    assert_same(by_torch(layer, 20, seed=1), drawn)
    assert [tuple(labels) for _, labels in by_torch(layer, 20, seed=2)] != orders
    assert [tuple(labels) for _, labels in by_torch(layer, 20, seed=1, rank=1)] != orders


def test_rand_skip_begins_at_a_random_line(numbered: Path) -> None:
    layer = image_layer(numbered, 2, "rand_skip: 6")
    starts = set()
    for seed in range(30):
        labels = by_torch(layer, 1, seed=seed)[0][1]
        assert labels[1] == (labels[0] + 1) % 7
        starts.add(int(labels[0]))
    assert starts == set(range(6))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.integers(1, 9),
    before=st.integers(0, 2),
    skipped=st.integers(0, 9),
    ahead=st.booleans(),
)
def test_skipped_images_are_those_that_would_have_come(
    numbered: Path, batch: int, before: int, skipped: int, ahead: bool
) -> None:
    layer = image_layer(
        numbered, batch, "shuffle: true", "transform_param { crop_size: 4 mirror: true }"
    )
    whole = by_torch(layer, before + skipped + 2, seed=4)
    source = source_of(layer, ahead=ahead, seed=4)
    source.setup([])
    for _ in range(before):
        source.forward([], [])
    source.skip(skipped)
    rest = [[top.numpy() for top in source.forward([], [])] for _ in range(2)]
    source.close()
    assert_same(rest, whole[before + skipped :])


def refusal(layer: str, batches: int = 3, **place: object) -> str:
    source = source_of(layer, **place)
    with pytest.raises(EngineError) as error:  # noqa: PT012
        source.setup([])
        for _ in range(batches):
            source.forward([], [])
    source.close()
    return str(error.value)


def test_a_bad_line_or_image_is_refused_by_its_number(numbered: Path, tmp_path: Path) -> None:
    good = numbered.read_text()
    (tmp_path / "large.png").write_bytes(file_of(RGB, "PNG"))
    # Which Pillow alone does not notice
    (tmp_path / "cut.png").write_bytes(LOSSLESS["rgb.png"][:-3])
    (tmp_path / "float.tif").write_bytes(file_of(GRAY / np.float32(255), "TIFF"))
    (tmp_path / "colors.tif").write_bytes(tiff(RGBA.astype("<f4"), 2, format=3))
    (tmp_path / "signed.tif").write_bytes(tiff(GRAY.astype("<i2") - 99, 1, format=2))
    for line, said in {
        f"{tmp_path}/none.png 1": "none.png: No such file",
        f"{tmp_path}/large.png 1": "is 3 x 20 x 15, but the first record is 3 x 6 x 5",
        f"{tmp_path}/cut.png 1": "is a PNG that is cut short",
        f"{tmp_path}/float.tif 1": "has floating-point numbers of no definite meaning as an image of 8 bits: scale",
        f"{tmp_path}/colors.tif 1": "is a damaged TIFF, or has numbers (such as floating-point ones) of no definite",
        f"{tmp_path}/signed.tif 1": "has signed or 32-bit numbers of no definite meaning",
        f"{tmp_path}/0.png": "is not `image label`",
        f"{tmp_path}/0.png one": "is not `image label`",
    }.items():
        numbered.write_text(f"{good}{line}\n")
        answer = refusal(image_layer(numbered, 8))
        assert "'line 8: " in answer
        assert said in answer
        assert answer.startswith("layer 'images' (ImageData) reads the record")


def test_a_list_that_cannot_be_is_refused(numbered: Path, tmp_path: Path) -> None:
    assert "does not exist" in refusal(image_layer(tmp_path / "none", 1), 0)
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in refusal(image_layer(tmp_path / "empty", 1), 0)
    assert "only one of new_height and new_width" in refusal(
        image_layer(numbered, 1, "new_width: 3"), 0
    )
    assert "smaller than crop_size 6" in refusal(
        image_layer(numbered, 1, transform="transform_param { crop_size: 6 }"), 0
    )
    answers = {
        refusal_or_none(image_layer(numbered, 1, "rand_skip: 60"), seed) for seed in range(9)
    }
    assert any(answer and "use 7 or less" in answer for answer in answers)


def refusal_or_none(layer: str, seed: int) -> str | None:
    source = source_of(layer, seed=seed)
    try:
        source.setup([])
    except EngineError as error:
        return str(error)
    return None


def test_wide_images_in_a_database_are_refused(tmp_path: Path) -> None:
    database = write_records(tmp_path / "wide", [encoded_datum(LOSSLESS["wide.png"])])
    assert "has more than 8 bits a channel" in refusal(data_layer(database, 1), 0)
