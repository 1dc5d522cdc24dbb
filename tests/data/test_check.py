"""What `speedo data check` finds in a database."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from speedo.cli.main import main
from tests.data.leveldbs import write_leveldb

pytestmark = pytest.mark.caffe
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, caffe_pb2: Any) -> Write:
    """Writes a database of good records, and others under keys of their own."""

    def write(others: dict[bytes, bytes] | None = None, count: int = 12) -> Path:
        chance = np.random.default_rng(6)
        with lmdb.open(str(tmp_path / "base")) as opened, opened.begin(write=True) as writing:
            for at in range(count):
                datum = caffe_pb2.Datum(
                    channels=1, height=2, width=5, label=at % 3, data=chance.bytes(10)
                )
                writing.put(b"%08d" % at, datum.SerializeToString())
            for key, value in (others or {}).items():
                writing.put(key, value)
        return tmp_path / "base"

    return write


def told(*arguments: Path | str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ("data", "check", *map(str, arguments)))
    return done.exit_code, done.output


def test_counts_shapes_and_labels_of_a_good_database(write: Write) -> None:
    database = write()
    assert told(database) == (
        0,
        f"{database}: 12 records\n  12 of shape 1 x 2 x 5\n  labels 0: 4, 1: 4, 2: 4\n",
    )


def test_many_labels_are_summed_up(tmp_path: Path, caffe_pb2: Any) -> None:
    with lmdb.open(str(tmp_path / "base")) as opened, opened.begin(write=True) as writing:
        for at in range(100):
            label = min(at, 79)
            datum = caffe_pb2.Datum(channels=1, height=1, width=1, label=label, data=b"x")
            writing.put(b"%08d" % at, datum.SerializeToString())
    status, text = told(tmp_path / "base")
    assert status == 0
    assert "80 labels, 0 to 79; fewest records 1 (label 0), most 21 (label 79)" in text


def test_bad_records_are_named_by_key_with_what_is_wrong(write: Write, caffe_pb2: Any) -> None:
    short = caffe_pb2.Datum(channels=1, height=2, width=5, data=bytes(9))
    few = caffe_pb2.Datum(channels=1, height=2, width=5, float_data=[0.5] * 3)
    flat = caffe_pb2.Datum(channels=1, height=0, width=5, data=bytes(9))
    png = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)).save(
        png, "PNG"
    )
    half = caffe_pb2.Datum(encoded=True, data=png.getvalue()[: len(png.getvalue()) // 2])
    database = write(
        {
            b"a-short": short.SerializeToString(),
            b"b-few": few.SerializeToString(),
            b"c-flat": flat.SerializeToString(),
            b"d-half": half.SerializeToString(),
            b"e-none\xff": b"\xff\xff\xff",
        }
    )
    status, text = told(database)
    assert status == 1
    for line in (
        "the record 'a-short' is short: it holds 9 values, its shape 1 x 2 x 5 needs 10",
        "the record 'b-few' is short: it holds 3 values",
        "the record 'c-flat' has the shape 1 x 0 x 5",
        "the record 'd-half' holds a file that is a PNG that is cut short",
        "is not a Datum of Caffe",
    ):
        assert f"  bad: {line}" in text or line in text
    status, text = told(database, "--json")
    (found,) = json.loads(text)
    assert (status, found["records"], found["faulty"], len(found["faults"])) == (1, 17, 5, 5)
    assert found["labels"] == {"0": 4, "1": 4, "2": 4}


def test_a_jpeg_without_its_end_is_no_bad_record_but_is_named(write: Write, caffe_pb2: Any) -> None:
    jpeg = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(jpeg, "JPEG")
    cut = caffe_pb2.Datum(encoded=True, data=jpeg.getvalue()[:-200])
    status, text = told(write({b"cut": cut.SerializeToString()}))
    assert status == 0
    assert "  1 JPEGs without their end, in which what is missing is gray: 'cut'\n" in text


def test_the_first_bad_records_are_shown_and_the_rest_counted(write: Write) -> None:
    status, text = told(write({b"x%03d" % at: b"\xff" for at in range(30)}))
    assert status == 1
    assert text.count("is not a Datum of Caffe") == 20
    assert "bad: 10 more records" in text


def test_other_channels_and_labels_below_0_are_bad(write: Write, caffe_pb2: Any) -> None:
    color = caffe_pb2.Datum(channels=3, height=2, width=5, label=-1, data=bytes(30))
    status, text = told(write({b"y": color.SerializeToString()}))
    assert status == 1
    assert "differ in channels" in text
    assert "labels below 0" in text


def test_encoded_images_are_counted_with_their_shapes(write: Write, caffe_pb2: Any) -> None:
    png = io.BytesIO()
    Image.new("L", (7, 4)).save(png, "PNG")
    good = caffe_pb2.Datum(encoded=True, label=1, data=png.getvalue())
    status, text = told(write({b"y": good.SerializeToString()}, count=0))
    assert (status, "1 of shape 1 x 4 x 7" in text, "1 encoded images" in text) == (0, True, True)


def test_a_leveldb_is_checked_too(
    tmp_path: Path, caffe_pb2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEEDO_CACHE", str(tmp_path / "cache"))
    good = caffe_pb2.Datum(channels=1, height=1, width=2, label=4, data=b"ab").SerializeToString()
    write_leveldb(tmp_path / "level", [(b"a", good), (b"b", b"\xff")])
    status, text = told(tmp_path / "level")
    assert status == 1
    assert "level: 2 records" in text
    assert "the record 'b' is not a Datum of Caffe" in text


def test_what_is_no_database_is_one_sentence(tmp_path: Path, write: Write) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "data.mdb").write_bytes(b"no database" * 1000)
    database = write()
    with (database / "data.mdb").open("r+b") as file:
        file.truncate(2 * 4096)
    for path, words in (
        (tmp_path / "empty", "neither a database nor a folder with dataset.json"),
        (tmp_path / "junk", "is damaged, or no LMDB"),
        (database, "is cut short"),
    ):
        done = CliRunner().invoke(main, ("data", "check", str(path)))
        assert done.exit_code == 1
        assert words in done.output
        assert "Traceback" not in done.output


def test_an_empty_database_is_bad(write: Write) -> None:
    status, text = told(write(count=0))
    assert (status, "it holds no record" in text) == (1, True)
