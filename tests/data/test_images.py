"""Lists of image files into databases: channel order, gray, size, encoding, and bad lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from caffenets.caffe_schema import caffe_pb2
from speedo.data.images import prepare_images
from speedo.errors import DataError
from tests.data.makers import datum_image, mean_in, read_database
from tests.support.data_layers import by_caffe, data_layer

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def paint(path: Path, pixels: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def pictures(tmp_path: Path) -> list[Pixels]:
    """Five PNG images of 6 x 8, and a list of them with a blank in a path and an empty line."""
    chance = np.random.default_rng(5)
    made = [chance.integers(0, 256, (6, 8, 3), dtype=np.uint8) for _ in range(5)]
    for index, pixels in enumerate(made):
        paint(tmp_path / "a b" / f"{index}.png", pixels)
    lines = [f"a b/{index}.png {index * 100}" for index in range(5)]
    (tmp_path / "list.txt").write_text("\n".join([*lines[:2], "", *lines[2:]]) + "\n")
    return made


def records(folder: Path, database: str = "train_lmdb") -> list[tuple[bytes, caffe_pb2.Datum]]:
    return list(read_database(folder / database))


def test_raw_datums_hold_blue_green_red_planes(tmp_path: Path, pictures: list[Pixels]) -> None:
    prepared = prepare_images(tmp_path / "list.txt", tmp_path / "out")
    assert prepared.counts == {"train_lmdb": 5}
    assert prepared.shape == (3, 6, 8)
    found = records(tmp_path / "out")
    assert [key for key, _ in found] == [b"%08d_a b/%d.png" % (i, i) for i in range(5)]
    assert [datum.label for _, datum in found] == [0, 100, 200, 300, 400]
    for (_, datum), pixels in zip(found, pictures, strict=True):
        assert np.array_equal(datum_image(datum), pixels[:, :, ::-1].transpose(2, 0, 1))
    assert prepared.mean is not None
    mean = np.mean(pictures, axis=0, dtype=np.float64)[:, :, ::-1].transpose(2, 0, 1)
    assert np.allclose(mean_in(prepared.mean), mean, rtol=1e-6)


def test_gray_images_have_one_plane(tmp_path: Path, pictures: list[Pixels]) -> None:
    prepared = prepare_images(tmp_path / "list.txt", tmp_path / "out", gray=True)
    assert prepared.shape == (1, 6, 8)
    expected = np.asarray(Image.fromarray(pictures[0]).convert("L"))
    found = datum_image(records(tmp_path / "out")[0][1])[0]
    assert np.abs(found.astype(int) - expected).max() <= 1  # Pillow's gray is not quite Caffe's


def test_images_are_resized_to_height_and_width(tmp_path: Path, pictures: list[Pixels]) -> None:
    paint(tmp_path / "a b" / "4.png", np.full((20, 3, 3), 77, np.uint8))
    prepared = prepare_images(tmp_path / "list.txt", tmp_path / "out", size=(4, 5))
    assert prepared.shape == (3, 4, 5)
    assert np.all(datum_image(records(tmp_path / "out")[4][1]) == 77)


def test_images_of_differing_size_are_named(tmp_path: Path, pictures: list[Pixels]) -> None:
    paint(tmp_path / "a b" / "2.png", np.zeros((7, 8, 3), np.uint8))
    with pytest.raises(DataError, match=r"list\.txt line 4: a b/2\.png is 7 x 8 .*--size"):
        prepare_images(tmp_path / "list.txt", tmp_path / "out")


def test_encoded_datums_keep_the_file(tmp_path: Path, pictures: list[Pixels]) -> None:
    prepared = prepare_images(tmp_path / "list.txt", tmp_path / "out", encoded=True)
    datum = records(tmp_path / "out")[1][1]
    assert datum.encoded
    assert datum.data == (tmp_path / "a b" / "1.png").read_bytes()
    assert prepared.shape == (3, 6, 8)
    assert prepared.mean is not None


def test_encoded_datums_are_made_anew_when_the_image_changes(
    tmp_path: Path, pictures: list[Pixels]
) -> None:
    prepare_images(tmp_path / "list.txt", tmp_path / "out", encoded=True, gray=True, size=(3, 4))
    with Image.open(io.BytesIO(records(tmp_path / "out")[0][1].data)) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "L", (4, 3))


def test_encoded_images_without_a_mean_may_differ_in_size(
    tmp_path: Path, pictures: list[Pixels]
) -> None:
    paint(tmp_path / "a b" / "2.png", np.zeros((7, 8, 3), np.uint8))
    prepared = prepare_images(tmp_path / "list.txt", tmp_path / "out", encoded=True, mean=False)
    assert prepared.shape is None
    assert prepared.mean is None
    assert prepared.counts == {"train_lmdb": 5}


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


@pytest.fixture
def unlike(tmp_path: Path) -> Path:
    """A list of images on which readers may differ: turned, of 16 bits, with opacity, in print's colors."""
    down, across = np.mgrid[:40, :56]
    color = np.stack([down * 6, across * 4, 255 - down * 2 - across], -1).astype(np.uint8)
    gray = color[..., 1] // 2 + color[..., 0] // 2
    deep = gray.astype(np.uint16) * 257
    made: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "turned.jpg": (Image.fromarray(color), {"exif": turned(6)}),
        "turned.png": (Image.fromarray(color), {"exif": turned(8)}),
        "turned.webp": (Image.fromarray(color), {"exif": turned(6), "lossless": True}),
        "deep.png": (Image.fromarray(deep), {}),
        "deep.tif": (Image.fromarray(deep), {}),
        "opaque.png": (Image.fromarray(np.dstack([color, gray])), {}),
        "opaque.tif": (Image.fromarray(np.dstack([color, gray])), {}),
        "palette.png": (Image.fromarray(color).quantize(20), {"transparency": 3}),
        "print.jpg": (Image.fromarray(np.dstack([color, gray]), "CMYK"), {"quality": 95}),
        "gray.jpg": (Image.fromarray(gray), {}),
    }
    for name, (image, options) in made.items():
        image.save(tmp_path / name, **options)
    Image.fromarray(color).save(tmp_path / "cut.jpg")
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[:-2])
    (tmp_path / "unlike.txt").write_text("".join(f"{name} 1\n" for name in (*made, "cut.jpg")))
    return tmp_path / "unlike.txt"


@pytest.mark.caffe
@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize(("encoded", "size"), [(False, (24, 30)), (True, None), (True, (24, 30))])
def test_a_database_gives_the_pixels_of_an_image_data_layer(
    tmp_path: Path, unlike: Path, gray: bool, encoded: bool, size: tuple[int, int] | None
) -> None:
    prepared = prepare_images(
        unlike, tmp_path / "out", gray=gray, encoded=encoded, size=size, mean=False
    )
    (word,) = prepared.notes
    assert word.startswith("JPEGs without their end, in which what is missing is gray: 1, the fir")
    assert word.endswith("unlike.txt line 11")
    resized = f"new_height: {size[0]} new_width: {size[1]}" if size else ""
    lines = len(unlike.read_text().splitlines())
    source = f'source: "{unlike}" root_folder: "{tmp_path}/" batch_size: 1'
    read = f"{source} is_color: {str(not gray).lower()} {resized}"
    expected = by_caffe(
        f'type: "ImageData" top: "data" top: "label" image_data_param {{ {read} }}', lines, tmp_path
    )
    found = by_caffe(data_layer(tmp_path / "out" / "train_lmdb", 1), lines, tmp_path)
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine[0].shape == theirs[0].shape, index
        # A JPEG that is compressed again has other pixels.
        most = (16 if encoded else 2) if index in (0, 8, 9, 10) else 0
        assert np.abs(mine[0] - theirs[0]).max() <= most, index


def test_a_mean_is_made_of_train_lmdb_or_where_it_is_asked_for(
    tmp_path: Path, pictures: list[Pixels]
) -> None:
    other = prepare_images(tmp_path / "list.txt", tmp_path / "out", database="mine")
    assert other.mean is None
    (word,) = other.notes
    assert word.startswith("there is no mean.binaryproto: train_lmdb gets one, and another")
    asked = prepare_images(tmp_path / "list.txt", tmp_path / "other", database="mine", mean=True)
    assert asked.mean == tmp_path / "other" / "mean.binaryproto"
    assert asked.notes == ()
    both = prepare_images(tmp_path / "list.txt", tmp_path / "other", database="test_lmdb")
    assert both.notes == ()


def test_shuffling_follows_the_seed(tmp_path: Path, pictures: list[Pixels]) -> None:
    def labels(folder: str, seed: int) -> list[int]:
        prepare_images(tmp_path / "list.txt", tmp_path / folder, shuffle=True, seed=seed)
        return [datum.label for _, datum in records(tmp_path / folder)]

    first = labels("one", 1)
    assert sorted(first) == [0, 100, 200, 300, 400]
    assert labels("same", 1) == first != labels("two", 3)


def test_a_second_database_joins_the_first(tmp_path: Path, pictures: list[Pixels]) -> None:
    prepare_images(tmp_path / "list.txt", tmp_path / "out")
    (tmp_path / "test.txt").write_text("a b/3.png 1\n")
    both = prepare_images(tmp_path / "test.txt", tmp_path / "out", database="test_lmdb")
    assert both.counts == {"train_lmdb": 5, "test_lmdb": 1}
    assert both.mean == tmp_path / "out" / "mean.binaryproto"
    assert not prepare_images(tmp_path / "list.txt", tmp_path / "out").built
    # A new training set without a mean takes the old mean away.
    forced = prepare_images(tmp_path / "list.txt", tmp_path / "out", mean=False, force=True)
    assert forced.mean is None
    assert not (tmp_path / "out" / "mean.binaryproto").exists()
    assert forced.counts == {"train_lmdb": 5, "test_lmdb": 1}


def test_other_options_in_the_same_folder_are_refused(
    tmp_path: Path, pictures: list[Pixels]
) -> None:
    prepare_images(tmp_path / "list.txt", tmp_path / "out")
    with pytest.raises(DataError, match="prepared with gray False, not True"):
        prepare_images(tmp_path / "list.txt", tmp_path / "out", gray=True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a b/0.png", "is not 'path label'"),
        ("a b/0.png cat", "is not 'path label'"),
        ("a b/0.png -1", "is not 'path label'"),
        ("a b/0.png 4294967296", "does not fit into 32 bits"),
        ("missing.png 1", r"missing\.png cannot be read: No such file"),
        ("list.txt 1", r"list\.txt is not an image that can be decoded"),
        ("cut.png 1", r"cut\.png is a PNG that is cut short"),
        (
            "float.tif 1",
            r"float\.tif has floating-point numbers of no definite meaning as an image of 8 bits: scale",
        ),
    ],
)
def test_bad_lines_are_named_or_skipped(
    tmp_path: Path, pictures: list[Pixels], line: str, told: str
) -> None:
    whole = (tmp_path / "a b" / "0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[:-40])
    Image.fromarray(np.ones((6, 8), np.float32)).save(tmp_path / "float.tif")
    (tmp_path / "bad.txt").write_text(f"a b/0.png 1\n{line}\na b/1.png 2\n")
    with pytest.raises(DataError, match=rf"bad\.txt line 2: .*{told}.*--skip-bad"):
        prepare_images(tmp_path / "bad.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    prepared = prepare_images(tmp_path / "bad.txt", tmp_path / "out", skip_bad=True)
    assert prepared.counts == {"train_lmdb": 2}
    assert prepared.skipped == 1
    assert "bad.txt line 2" in prepared.skipped_lines[0]
    assert [key[:9] for key, _ in records(tmp_path / "out")] == [b"00000000_", b"00000001_"]


def test_a_list_without_any_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("missing.png 1\n")
    with pytest.raises(DataError, match=r"gives no image: .*line 1"):
        prepare_images(tmp_path / "list.txt", tmp_path / "out", skip_bad=True)


def test_an_empty_list_is_refused_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(DataError, match=r"it has no line; write one 'path label' per image$"):
        prepare_images(tmp_path / "list.txt", tmp_path / "out")


def test_a_file_that_is_no_image_is_named_and_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("list.txt 1\n")
    with pytest.raises(DataError) as caught:
        prepare_images(tmp_path / "list.txt", tmp_path / "out")
    assert "list.txt is not an image that can be decoded;" in str(caught.value)
    assert "BytesIO" not in str(caught.value)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt cannot be read: No such file"):
        prepare_images(tmp_path / "gone.txt", tmp_path / "out")


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "dataset.json", "mean.binaryproto"])
def test_a_database_needs_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot name a database"):
        prepare_images(tmp_path / "list.txt", tmp_path / "out", database=name)
