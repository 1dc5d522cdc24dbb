"""Records in other forms become an LMDB: the same records, labels and order, by pycaffe's own messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from click.testing import CliRunner
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from PIL import Image

from speedo.cli.main import main
from speedo.data.convert import convert, form_of
from speedo.data.manifest import read_manifest
from speedo.errors import DataError
from tests.data.leveldbs import write_leveldb
from tests.support.disks import small_disk

pytestmark = pytest.mark.caffe
COUNT = 23


@pytest.fixture
def datums(caffe_pb2: Any) -> list[Any]:
    """Messages of pycaffe's own: of bytes, of floats, and with a label of two bytes."""
    chance = np.random.default_rng(8)
    made = [
        caffe_pb2.Datum(
            channels=2, height=3, width=4, label=100 * number, data=chance.bytes(2 * 3 * 4)
        )
        for number in range(COUNT - 1)
    ]
    floats = caffe_pb2.Datum(channels=2, height=3, width=4, label=7)
    floats.float_data.extend(chance.standard_normal(24).tolist())
    return [*made, floats]


def content(database: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(database), readonly=True, lock=False) as opened, opened.begin() as reading:
        return [(bytes(key), bytes(value)) for key, value in reading.cursor()]


def messages(database: Path, caffe_pb2: Any) -> list[Any]:
    return [caffe_pb2.Datum.FromString(value) for _, value in content(database)]


def test_a_leveldb_keeps_records_keys_and_order(
    tmp_path: Path, datums: list[Any], caffe_pb2: Any
) -> None:
    records = [(b"%05d_a" % at, one.SerializeToString()) for at, one in enumerate(datums)]
    source = write_leveldb(tmp_path / "level", reversed(records))
    prepared = convert(source, tmp_path / "out")
    assert prepared.counts == {"train_lmdb": COUNT}
    assert prepared.shape == (2, 3, 4)
    assert content(tmp_path / "out" / "train_lmdb") == records


def delimited(datums: list[Any]) -> bytes:
    """As protobuf's writeDelimitedTo."""
    parts = (one.SerializeToString() for one in datums)
    return b"".join(_VarintBytes(len(part)) + part for part in parts)


def one_file(folder: Path, datums: list[Any]) -> Path:
    (folder / "all.bin").write_bytes(delimited(datums))
    return folder / "all.bin"


def file_each(folder: Path, datums: list[Any]) -> Path:
    """Their names sort otherwise than their numbers."""
    (folder / "each").mkdir()
    for number, one in enumerate(datums):
        (folder / "each" / f"{number}.datum").write_bytes(one.SerializeToString())
    return folder / "each"


def several_files(folder: Path, datums: list[Any]) -> Path:
    """As the parts that Hadoop writes."""
    (folder / "parts").mkdir()
    for number in range(0, COUNT, 8):
        (folder / "parts" / f"part-{number:05}").write_bytes(delimited(datums[number : number + 8]))
    return folder / "parts"


@pytest.mark.parametrize("write", [one_file, file_each, several_files])
def test_datum_files_become_the_same_messages_in_order(
    tmp_path: Path,
    datums: list[Any],
    caffe_pb2: Any,
    write: Callable[[Path, list[Any]], Path],
) -> None:
    source = write(tmp_path, datums)
    assert form_of(source) == "datums"
    prepared = convert(source, tmp_path / "out", database="mine")
    assert prepared.counts == {"mine": COUNT}
    values = [value for _, value in content(tmp_path / "out" / "mine")]
    assert values == [one.SerializeToString() for one in datums]
    assert messages(tmp_path / "out" / "mine", caffe_pb2) == datums


@pytest.mark.parametrize("cut", [1, 30])
def test_a_datum_file_that_is_cut_short_is_named_with_the_place(
    tmp_path: Path, datums: list[Any], cut: int
) -> None:
    source = one_file(tmp_path, datums)
    whole = source.read_bytes()
    source.write_bytes(whole[:-cut])
    begin = len(delimited(datums[:-1]))
    with pytest.raises(
        DataError, match=rf"all.bin holds no whole Datum of Caffe at byte {begin:,}"
    ):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def write_hdf5(
    file: Path, data: Any, label: Any, names: tuple[str, str] = ("data", "label")
) -> Path:
    with h5py.File(file, "w") as opened:
        opened[names[0]], opened[names[1]] = data, label
    return file


@pytest.mark.parametrize("kind", ["float32", "float64", "uint8", "int16"])
def test_hdf5_becomes_what_caffe_reads_from_it(tmp_path: Path, caffe_pb2: Any, kind: str) -> None:
    """Two files in a list, as the source of an HDF5Data layer."""
    chance = np.random.default_rng(2)
    values = (chance.standard_normal((2500, 3, 2, 5)) * 50 + 100).clip(0, 255).astype(kind)
    labels = chance.integers(0, 300, (2500, 1)).astype(np.float32)
    write_hdf5(tmp_path / "a.h5", values[:1200], labels[:1200])
    write_hdf5(tmp_path / "b.h5", values[1200:], labels[1200:])
    (tmp_path / "list.txt").write_text("a.h5\nb.h5\n")
    prepared = convert(tmp_path / "list.txt", tmp_path / "out")
    assert prepared.counts == {"train_lmdb": 2500}
    assert prepared.shape == (3, 2, 5)
    found = messages(tmp_path / "out" / "train_lmdb", caffe_pb2)
    assert [one.label for one in found] == labels.ravel().tolist()
    for row, one in zip(values, found, strict=True):
        as_read = (
            np.frombuffer(one.data, np.uint8)
            if kind == "uint8"
            else np.array(one.float_data, np.float32)
        )
        assert np.array_equal(as_read, row.ravel().astype(np.float32))


def test_a_net_reads_from_the_lmdb_what_it_reads_from_the_hdf5(tmp_path: Path) -> None:
    from speedo.engines.caffe_import import load_caffe

    caffe = load_caffe()
    chance = np.random.default_rng(3)
    write_hdf5(tmp_path / "a.h5", chance.standard_normal((6, 4)), np.arange(6.0))
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a.h5\n")
    convert(tmp_path / "list.txt", tmp_path / "out")
    read = []
    for layer in (
        f'type: "HDF5Data" hdf5_data_param {{ source: "{tmp_path}/list.txt" batch_size: 6 }}',
        f'type: "Data" data_param {{ source: "{tmp_path}/out/train_lmdb" backend: LMDB batch_size: 6 }}',
    ):
        (tmp_path / "net.prototxt").write_text(
            f'layer {{ name: "x" top: "data" top: "label" {layer} }}'
        )
        net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)
        net.forward()
        read.append([net.blobs[name].data.ravel().tolist() for name in ("data", "label")])
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("data", "label", "words"),
    [
        (np.zeros((3, 2)), np.array([0.0, 0.5, 1.0]), "record 1 has the label 0.5"),
        (np.zeros((3, 2)), np.zeros((3, 2)), "one label for each record"),
        (np.zeros((3, 2)), np.zeros(2), "3 rows of 'data', but 'label' is of shape"),
        (np.zeros((3, 2, 2, 2, 2)), np.zeros(3), "one to three axes"),
        (np.zeros((3, 2)), np.array([0.0, np.nan, 1.0]), "record 1 has the label nan"),
    ],
)
def test_hdf5_that_an_lmdb_cannot_hold_is_refused(
    tmp_path: Path, data: Any, label: Any, words: str
) -> None:
    source = write_hdf5(tmp_path / "a.h5", data, label)
    with pytest.raises(DataError, match=words):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_of_hdf5_datasets_are_given_or_the_error_shows_them(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "a.h5", np.zeros((3, 2)), np.arange(3), ("x", "y"))
    with pytest.raises(DataError, match="no dataset 'data', but x, y: give its names"):
        convert(source, tmp_path / "out")
    assert convert(source, tmp_path / "out", data_name="x", label_name="y").counts == {
        "train_lmdb": 3
    }


def test_a_list_of_images_is_resized_and_gray_as_asked(tmp_path: Path, caffe_pb2: Any) -> None:
    for number in range(3):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "list.txt").write_text(
        "".join(f"{number}.png {5 - number}\n" for number in range(3))
    )
    places = (str(tmp_path / "list.txt"), str(tmp_path / "out"))
    args = ("data", "convert", *places, "--size", "4x5", "--gray")
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    found = messages(tmp_path / "out" / "train_lmdb", caffe_pb2)
    assert [(one.channels, one.height, one.width, one.label) for one in found] == [
        (1, 4, 5, 5),
        (1, 4, 5, 4),
        (1, 4, 5, 3),
    ]


def test_options_for_images_are_refused_for_other_forms(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "a.h5", np.zeros((3, 2)), np.arange(3))
    with pytest.raises(DataError, match="as hdf5: --gray is for lists of images"):
        convert(source, tmp_path / "out", gray=True)


def test_what_is_there_is_replaced_only_by_force(tmp_path: Path, datums: list[Any]) -> None:
    first, second = one_file(tmp_path, datums), file_each(tmp_path, datums[:5])
    assert convert(first, tmp_path / "out").built
    assert not convert(first, tmp_path / "out").built
    with pytest.raises(DataError, match="--force to replace it"):
        convert(second, tmp_path / "out")
    assert len(content(tmp_path / "out" / "train_lmdb")) == COUNT
    assert convert(second, tmp_path / "out", force=True).counts == {"train_lmdb": 5}
    assert convert(first, tmp_path / "out", database="test_lmdb").counts == {
        "train_lmdb": 5,
        "test_lmdb": COUNT,
    }
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert {name: one.records for name, one in manifest.databases.items()} == {
        "train_lmdb": 5,
        "test_lmdb": COUNT,
    }


def test_an_lmdb_needs_no_conversion(tmp_path: Path, datums: list[Any]) -> None:
    convert(one_file(tmp_path, datums), tmp_path / "out")
    with pytest.raises(DataError, match="is an LMDB already"):
        convert(tmp_path / "out" / "train_lmdb", tmp_path / "again")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, caffe_pb2: Any) -> None:
    one = caffe_pb2.Datum(channels=1, height=500, width=1000, label=1, data=bytes(500_000))
    source = one_file(tmp_path, [one] * 20)
    with small_disk(tmp_path / "small", "4m"):
        with pytest.raises(DataError, match=r"no space is left for .*small/out"):
            convert(source, tmp_path / "small" / "out")
        assert list((tmp_path / "small").iterdir()) == []


def test_a_killed_conversion_leaves_no_database_and_the_next_one_works(
    tmp_path: Path, caffe_pb2: Any
) -> None:
    one = caffe_pb2.Datum(channels=1, height=500, width=1000, label=1, data=os.urandom(500_000))
    source = one_file(tmp_path, [one] * 600)
    command = [
        sys.executable,
        "-m",
        "speedo",
        "data",
        "convert",
        str(source),
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(command)
    while not list(tmp_path.glob(".out.partial-*/new/train_lmdb/data.mdb")):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert convert(source, tmp_path / "out").counts == {"train_lmdb": 600}
    assert list(tmp_path.glob(".out.*")) == []
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["pending"] == []


@pytest.mark.parametrize("form", [None, "leveldb", "datums", "hdf5", "images"])
def test_a_source_that_is_not_there_is_one_sentence(tmp_path: Path, form: str | None) -> None:
    chosen = () if form is None else ("--form", form)
    args = ("data", "convert", str(tmp_path / "nowhere"), str(tmp_path / "out"), *chosen)
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 1
    assert done.output.startswith("speedo: ")
    assert "nowhere" in done.output
    assert not isinstance(done.exception, OSError)


def test_a_list_that_names_a_missing_hdf5_file_says_which(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("gone.h5\n")
    with pytest.raises(DataError, match=r"gone.h5 cannot be read .*the list"):
        convert(tmp_path / "list.txt", tmp_path / "out")
