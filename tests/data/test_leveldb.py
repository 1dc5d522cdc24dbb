"""A LevelDB becomes an LMDB once: the same records in the same order, never a half one, and it stays as it was."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import lmdb
import plyvel
import pytest

from speedo.data.leveldb import converted
from speedo.errors import DataError
from tests.data.leveldbs import write_leveldb

# Enough for several tables, which LevelDB begins after 64 KiB at the least.
RECORDS = [(b"%08d" % number, Random(number).randbytes(400)) for number in range(600)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEEDO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "leveldb"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return write_leveldb(tmp_path / "level", reversed(RECORDS), write_buffer_size=1 << 16)


def content(folder: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(folder), readonly=True, lock=False) as opened, opened.begin() as reading:
        return [(bytes(key), bytes(value)) for key, value in reading.cursor()]


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def test_the_records_are_the_same_and_the_database_is_left_as_it_was(
    database: Path, cache: Path
) -> None:
    before, said = files(database), []
    folder = converted(database, said.append)
    assert content(folder) == RECORDS
    assert files(database) == before
    assert [entry.name for entry in cache.iterdir()] == [folder.name]
    assert json.loads((folder / "converted-from.json").read_text())["source"] == str(database)
    assert len(said) == 1
    assert said[0].startswith(f"converting {database} (")
    assert oct(cache.stat().st_mode)[-3:] == "700"


def test_a_second_call_converts_nothing(database: Path, cache: Path) -> None:
    made = converted(database)
    inode = (made / "data.mdb").stat().st_ino
    said: list[str] = []
    assert converted(database, said.append) == made
    assert (made / "data.mdb").stat().st_ino == inode
    assert said == []


def test_a_database_that_changed_is_converted_again(database: Path, cache: Path) -> None:
    first = converted(database)
    os.utime(first, (0, 0))  # nobody has used it for long
    write_leveldb(database, [(b"99999999", b"another")])
    second = converted(database)
    assert content(second) == [*RECORDS, (b"99999999", b"another")]
    assert [entry.name for entry in cache.iterdir()] == [second.name]


def test_it_may_be_read_only_and_open_in_another_process(database: Path, cache: Path) -> None:
    with_lock = plyvel.DB(str(database))
    try:
        database.chmod(0o555)
        assert content(converted(database)) == RECORDS
    finally:
        database.chmod(0o755)
        with_lock.close()


def test_keys_that_lmdb_does_not_take_are_numbered(tmp_path: Path, cache: Path) -> None:
    records = [(b"a" * 600 + b"1", b"x"), (b"a" * 600 + b"2", b"y"), (b"b", b"z")]
    folder = converted(write_leveldb(tmp_path / "level", records))
    assert [(key[:13], value) for key, value in content(folder)] == [
        (b"000000000000_", b"x"),
        (b"000000000001_", b"y"),
        (b"000000000002_", b"z"),
    ]


@pytest.mark.parametrize("damage", ["table", "missing table", "manifest", "empty", "none"])
def test_what_cannot_be_read_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, database: Path, cache: Path, damage: str
) -> None:
    tables = sorted(file for file in database.iterdir() if file.suffix == ".ldb")
    if damage == "table":
        for table in tables:
            whole = bytearray(table.read_bytes())
            whole[50:90] = bytes(255 - one for one in whole[50:90])
            table.write_bytes(whole)
    elif damage == "missing table":
        for table in tables:
            table.unlink()
    elif damage == "manifest":
        next(database.glob("MANIFEST-*")).write_bytes(b"not one")
    elif damage == "empty":
        shutil.rmtree(database)
        write_leveldb(database, [])
    else:
        (database / "CURRENT").unlink()
    with pytest.raises(DataError, match=r"create it again") as caught:
        converted(database)
    assert str(database) in str(caught.value)
    assert "links" not in str(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_python_without_the_package_is_told_how_to_get_it(
    database: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plyvel", None)  # as where pip installed none
    with pytest.raises(DataError, match=r"pip install 'speedo\[leveldb\]'"):
        converted(database)
    assert not cache.exists() or list(cache.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from speedo.data import leveldb
leveldb.shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
leveldb.converted(Path(sys.argv[1]))
"""


@pytest.mark.processes
def test_a_half_conversion_is_never_used(database: Path, cache: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(database)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert any(entry.name.startswith(".partial-") for entry in cache.iterdir())
    folder = converted(database)
    assert content(folder) == RECORDS
    assert [entry.name for entry in cache.iterdir()] == [folder.name]


def test_a_conversion_that_was_cut_short_is_made_again(database: Path, cache: Path) -> None:
    data = converted(database) / "data.mdb"
    data.write_bytes(data.read_bytes()[:4096])
    assert content(converted(database)) == RECORDS


def _convert(database: Path, result: Path) -> None:
    said: list[str] = []
    folder = converted(database, said.append)
    result.write_text(f"{folder.stat().st_ino} {len(said)}")


@pytest.mark.slow
@pytest.mark.processes
def test_of_several_processes_one_converts(tmp_path: Path, database: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = [tmp_path / f"result{number}" for number in range(3)]
    processes = [context.Process(target=_convert, args=(database, one)) for one in results]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    told = [result.read_text().split() for result in results]
    assert len({inode for inode, _ in told}) == 1
    assert sorted(said for _, said in told) == ["0", "0", "1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.processes
@pytest.mark.parametrize("compressible", [True, False])
def test_a_disk_without_room_is_told_with_the_option(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, compressible: bool
) -> None:
    """Known before if the database itself is larger; in the middle if only its records are."""
    monkeypatch.setenv("SPEEDO_CACHE", str(small_disk))
    values = bytes(8000) if compressible else os.urandom(8000)
    database = write_leveldb(
        tmp_path / "large", [(b"%08d" % number, values) for number in range(700)],
        write_buffer_size=1 << 16, compression="snappy" if compressible else None,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"free some, or .* with SPEEDO_CACHE") as caught:
        converted(database)
    assert ("no space is left" in str(caught.value)) == compressible
    assert list((small_disk / "leveldb").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told_with_the_option(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEEDO_CACHE", "/proc/speedo")
    with pytest.raises(DataError, match=r"choose a folder that can be written, with SPEEDO_CACHE"):
        converted(database)
