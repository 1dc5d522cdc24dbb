"""A dataset folder is whole or absent, made by one process at a time, and never over what is not
ours."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest

from speedo.data import folder as folder_module
from speedo.data import mnist
from speedo.data.database import record_key, write_database
from speedo.data.lock import locked
from speedo.data.mnist import prepare_fashion_mnist, prepare_mnist
from speedo.data.wire import datum
from speedo.errors import DataError
from tests.data.makers import idx_folder, read_database


@pytest.fixture
def source(tmp_path: Path) -> Path:
    idx_folder(tmp_path / "source")
    return tmp_path / "source"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_manifest_says_what_is_there_and_from_what(tmp_path: Path, source: Path) -> None:
    prepare_fashion_mnist(tmp_path / "out", source=source)
    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert manifest["dataset"] == "fashion-mnist"
    assert manifest["mean"]["file"] == "mean.binaryproto"
    train = manifest["databases"]["train_lmdb"]
    assert (train["records"], train["shape"], train["channels"]) == (30, [1, 4, 5], "gray")
    assert train["file_bytes"] == (tmp_path / "out" / "train_lmdb" / "data.mdb").stat().st_size
    assert sorted(train["sources"]) == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]


def test_a_complete_folder_is_returned_without_its_source(tmp_path: Path, source: Path) -> None:
    first = prepare_fashion_mnist(tmp_path / "out", source=source)
    again = prepare_fashion_mnist(tmp_path / "out", source=tmp_path / "gone")
    assert first.built
    assert not again.built
    assert again.counts == first.counts
    assert again.mean == first.mean


def test_force_makes_it_anew(tmp_path: Path, source: Path) -> None:
    prepare_fashion_mnist(tmp_path / "out", source=source)
    idx_folder(source, train=31)
    again = prepare_fashion_mnist(tmp_path / "out", source=source, force=True)
    assert again.built
    assert again.counts["train_lmdb"] == 31
    assert len(list(read_database(tmp_path / "out" / "train_lmdb"))) == 31


@pytest.mark.parametrize(
    "damage", ["train_lmdb/data.mdb", "test_lmdb/data.mdb", "mean.binaryproto", "dataset.json"]
)
def test_a_damaged_folder_is_not_taken_for_complete(
    tmp_path: Path, source: Path, damage: str
) -> None:
    prepare_fashion_mnist(tmp_path / "out", source=source)
    (tmp_path / "out" / damage).write_bytes(b"{")
    # Without a manifest nothing proves that the databases are ours: then only force replaces them.
    force = damage == "dataset.json"
    again = prepare_fashion_mnist(tmp_path / "out", source=source, force=force)
    assert again.built
    assert len(list(read_database(tmp_path / "out" / "train_lmdb"))) == 30


def test_databases_of_somebody_else_are_not_replaced(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out" / "train_lmdb").mkdir(parents=True)
    with pytest.raises(DataError, match=r"train_lmdb is there but dataset\.json does not name it"):
        prepare_fashion_mnist(tmp_path / "out", source=source)
    assert names(tmp_path / "out") == ["train_lmdb"]


def test_another_dataset_is_not_replaced(tmp_path: Path, source: Path) -> None:
    prepare_fashion_mnist(tmp_path / "out", source=source)
    with pytest.raises(DataError, match="holds the dataset fashion-mnist, not mnist"):
        prepare_mnist(tmp_path / "out", source=source)


def test_an_exception_in_the_middle_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # Both databases are written by then; only the mean is missing.
    monkeypatch.setattr(mnist, "write_mean", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare_fashion_mnist(tmp_path / "root" / "out", source=source)
    assert names(tmp_path / "root") == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from speedo.data import mnist
from speedo.data.mnist import prepare_fashion_mnist
mnist.write_mean = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
prepare_fashion_mnist(Path(sys.argv[1]), source=Path(sys.argv[2]))
"""


@pytest.mark.processes
def test_a_killed_process_leaves_nothing_that_looks_done(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "root" / "out"
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(target), str(source)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not target.exists()
    assert any(".partial-" in name for name in names(tmp_path / "root"))
    # The next preparation is not held up by the dead one's lock, and clears its remains away.
    assert prepare_fashion_mnist(target, source=source).built
    assert names(tmp_path / "root") == ["out"]


def test_an_interrupted_replacement_is_known_and_made_again(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_fashion_mnist(tmp_path / "out", source=source)

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "sync_folder", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_fashion_mnist(tmp_path / "out", source=source, force=True)
    assert not folder_module.is_complete(tmp_path / "out")
    assert prepare_fashion_mnist(tmp_path / "out", source=source).built
    assert folder_module.is_complete(tmp_path / "out")


def _prepare_slowly(target: Path, source: Path, started: str, results: str) -> None:
    def progress(done: int, total: int, what: str) -> None:
        Path(started).touch()
        time.sleep(0.3)

    prepared = prepare_fashion_mnist(target, source=source, progress=progress)
    Path(results).write_text(str(prepared.built))


@pytest.mark.slow
@pytest.mark.processes
def test_of_two_processes_one_builds_and_the_other_finds_it_done(
    tmp_path: Path, source: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    target = tmp_path / "root" / "out"
    results = [tmp_path / "first", tmp_path / "second"]
    workers = [
        context.Process(
            target=_prepare_slowly, args=(target, source, str(tmp_path / "started"), str(result))
        )
        for result in results
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(result.read_text() for result in results) == ["False", "True"]


def test_the_wait_for_another_process_has_a_deadline(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.data.lock.LOCK_WAIT_SECONDS", 0.2)
    holder = locked(tmp_path / "out")
    with holder, pytest.raises(DataError) as caught:
        prepare_fashion_mnist(tmp_path / "out", source=source)
    assert f"process {os.getpid()} on " in str(caught.value)
    assert "wait for it, or end it" in str(caught.value)


@pytest.mark.parametrize("error", [lmdb.DiskError("ENOSPC"), OSError(errno.ENOSPC, "full")])
def test_a_full_disk_says_so_and_keeps_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr("speedo.data.database._commit", full)
    with pytest.raises(DataError, match=r"no space is left for .*MiB free now.*SPEEDO_DATA"):
        prepare_fashion_mnist(tmp_path / "root" / "out", source=source)
    assert names(tmp_path / "root") == []


def test_a_write_that_the_disk_cut_short_is_known_for_a_full_disk(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What LMDB says on a full tmpfs, where it fails with EIO instead of ENOSPC.
    def cut_short(*_: object) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr("speedo.data.database._put", cut_short)
    monkeypatch.setattr("speedo.data.database._FULL_BYTES", 1 << 60)
    with pytest.raises(DataError, match="no space is left for"):
        prepare_fashion_mnist(tmp_path / "out", source=source)
    monkeypatch.setattr("speedo.data.database._FULL_BYTES", 0)
    with pytest.raises(DataError, match=r"LMDB could not write .*Input/output error"):
        prepare_fashion_mnist(tmp_path / "out", source=source)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/out could not be prepared: File exists"):
        prepare_fashion_mnist(tmp_path / "file" / "out", source=source)


def test_the_map_grows_until_everything_fits(tmp_path: Path) -> None:
    values = [np.random.default_rng(i).bytes(5000) for i in range(200)]
    written = write_database(
        tmp_path / "grown",
        (
            (record_key(i), datum((1, 50, 100), value, i).SerializeToString())
            for i, value in enumerate(values)
        ),
        map_bytes=1 << 16,
    )
    assert written.records == 200
    assert [datum.data for _, datum in read_database(tmp_path / "grown")] == values


def test_a_database_is_in_the_format_that_caffes_lmdb_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_database(tmp_path / "db", [(b"0", b"value")])
    head = (tmp_path / "db" / "data.mdb").read_bytes()[:64]
    magic = head.index((0xBEEFC0DE).to_bytes(4, "little"))
    # Format 1 is that of LMDB 0.9; 1.0 writes 3.
    assert int.from_bytes(head[magic + 4 : magic + 8], "little") == 1


def test_keys_must_rise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not come after"):
        write_database(tmp_path / "db", [(b"1", b"x"), (b"0", b"y")])


def test_a_long_name_still_makes_a_key_that_lmdb_takes(tmp_path: Path) -> None:
    key = record_key(7, "folder/" * 100 + "image.png")
    assert key.startswith(b"00000007_")
    assert key.endswith(b"image.png")
    assert len(key) <= 511
