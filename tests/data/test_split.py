"""A database in parts for hosts: every record once, in the order that was asked for, described and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.data.check import check
from speedo.data.manifest import read_manifest
from speedo.data.split import split
from speedo.errors import DataError
from tests.data.leveldbs import write_leveldb
from tests.support.disks import small_disk
from tests.support.nets import write_lmdb

pytestmark = pytest.mark.caffe
COUNT = 11


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Eleven records whose labels are their numbers."""
    images = np.random.default_rng(1).integers(0, 256, (COUNT, 1, 3, 3), dtype=np.uint8)
    return write_lmdb(tmp_path / "whole", images, np.arange(COUNT))


def content(database: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(database), readonly=True, lock=False) as opened, opened.begin() as reading:
        return [(bytes(key), bytes(value)) for key, value in reading.cursor()]


def labels(database: Path, caffe_pb2: Any) -> list[int]:
    return [caffe_pb2.Datum.FromString(value).label for _, value in content(database)]


@pytest.mark.parametrize(
    ("order", "parts"),
    [
        ("interleaved", [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]),
        ("blocks", [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10]]),
    ],
)
def test_each_part_has_its_records_in_their_order_and_under_their_keys(
    tmp_path: Path, database: Path, caffe_pb2: Any, order: Any, parts: list[list[int]]
) -> None:
    made = split(database, tmp_path / "parts", 3, order=order)
    assert made == {f"part-{at}/whole": len(part) for at, part in enumerate(parts)}
    whole = content(database)
    for at, part in enumerate(parts):
        assert labels(tmp_path / "parts" / f"part-{at}" / "whole", caffe_pb2) == part
        assert content(tmp_path / "parts" / f"part-{at}" / "whole") == [whole[one] for one in part]


def test_shuffled_parts_hold_every_record_once_and_alike_with_the_same_seed(
    tmp_path: Path, database: Path, caffe_pb2: Any
) -> None:
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        split(database, tmp_path / name, 2, shuffle=True, seed=seed)
        found.append([labels(tmp_path / name / f"part-{at}" / "whole", caffe_pb2) for at in (0, 1)])
    assert found[0] == found[1] != found[2]
    assert sorted(found[0][0] + found[0][1]) == list(range(COUNT))
    assert found[0][0] != sorted(found[0][0])
    values = {value for at in (0, 1) for _, value in content(tmp_path / f"a/part-{at}/whole")}
    assert values == {value for _, value in content(database)}


def test_a_leveldb_is_split_as_well(
    tmp_path: Path, database: Path, caffe_pb2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEEDO_CACHE", str(tmp_path / "cache"))
    split(write_leveldb(tmp_path / "level", content(database)), tmp_path / "parts", 2)
    assert labels(tmp_path / "parts" / "part-1" / "level", caffe_pb2) == [1, 3, 5, 7, 9]


def test_a_part_is_a_dataset_by_itself_with_count_and_checksum(
    tmp_path: Path, database: Path
) -> None:
    split(database, tmp_path / "parts", 2, name="mine/train_lmdb", shuffle=True, seed=5)
    part, whole = read_manifest(tmp_path / "parts" / "part-1"), read_manifest(tmp_path / "parts")
    assert part is not None
    assert whole is not None
    described = part.databases["mine/train_lmdb"]
    assert whole.databases["part-1/mine/train_lmdb"] == described
    assert (described.records, described.shape) == (5, (1, 3, 3))
    assert described.options == {
        "source": str(database), "parts": 2, "part": 1, "order": "interleaved", "seed": 5,
    }  # fmt: skip
    for folder in ("parts", "parts/part-1", "parts/part-1/mine/train_lmdb"):
        assert all(one.good for one in check(tmp_path / folder))
    assert sum(one.survey.records for one in check(tmp_path / "parts")) == COUNT


def test_a_changed_part_differs_from_its_checksum(tmp_path: Path, database: Path) -> None:
    split(database, tmp_path / "parts", 2)
    changed = tmp_path / "parts" / "part-0" / "whole"
    with lmdb.open(str(changed), lock=False) as opened, opened.begin(write=True) as writing:
        cursor = writing.cursor()
        cursor.first()
        cursor.put(bytes(cursor.key()), content(database)[1][1])
    (found,) = check(changed)
    assert found.problems == (
        "its checksum is not that of dataset.json: it was changed or damaged",
    )


def test_parts_that_are_there_are_replaced_only_by_force_and_other_folders_never(
    tmp_path: Path, database: Path
) -> None:
    split(database, tmp_path / "parts", 3)
    with pytest.raises(DataError, match="--force to replace it"):
        split(database, tmp_path / "parts", 2)
    split(database, tmp_path / "parts", 2, force=True)
    assert sorted(one.name for one in (tmp_path / "parts").iterdir()) == [
        "dataset.json",
        "part-0",
        "part-1",
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(DataError, match="was not made by `speedo data split`"):
        split(database, tmp_path / "mine", 2, force=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def test_more_parts_than_records_and_paths_that_lead_outside_are_refused(
    tmp_path: Path, database: Path
) -> None:
    with pytest.raises(DataError, match="has 11 records: split it into at most as many"):
        split(database, tmp_path / "parts", 12)
    for name in ("../x", "/x", "", "dataset.json"):
        with pytest.raises(DataError, match="cannot be a database's path"):
            split(database, tmp_path / "parts", 2, name=name)
    assert not (tmp_path / "parts").exists()


def test_a_full_disk_is_told_and_leaves_no_part(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (30, 1, 400, 1000), dtype=np.uint8)
    database = write_lmdb(tmp_path / "whole", images, np.arange(30))
    with small_disk(tmp_path / "small", "8m"):
        done = CliRunner().invoke(
            main,
            ("data", "split", str(database), str(tmp_path / "small" / "parts"), "--parts", "2"),
        )
        assert done.exit_code == 1
        assert list((tmp_path / "small").iterdir()) == []
    assert "no space is left" in done.output
