"""CIFAR-10's binary files into databases, and archives that must be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speedo.data import cifar10
from speedo.data.cifar10 import prepare_cifar10
from speedo.data.download import file_sha256
from speedo.errors import DataError
from tests.data.makers import Bytes, cifar_archive, cifar_files, datum_image, mean_in, read_database

RECORDS = 6


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, Bytes]:
    monkeypatch.setattr(cifar10, "RECORDS_PER_FILE", RECORDS)
    return cifar_files(RECORDS)


def publish(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the archive pass for the published one."""
    known = replace(cifar10.ARCHIVE, sha256=file_sha256(archive))
    monkeypatch.setattr(cifar10, "ARCHIVE", known)


@pytest.fixture
def archive(tmp_path: Path, files: dict[str, Bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cifar-10-binary.tar.gz"
    cifar_archive(path, files)
    publish(path, monkeypatch)
    return path


def test_databases_hold_every_record_once(
    tmp_path: Path, archive: Path, files: dict[str, Bytes]
) -> None:
    prepared = prepare_cifar10(tmp_path / "out", source=archive)
    assert prepared.counts == {"train_lmdb": 30, "test_lmdb": 6}
    assert prepared.shape == (3, 32, 32)
    for key, datum in read_database(tmp_path / "out" / "train_lmdb"):
        # The key says where the record came from, so every pixel can be compared.
        name, place = key.decode().split("_", 1)[1].split(":")
        record = files[name][int(place)]
        assert datum.label == record[0]
        assert np.array_equal(datum_image(datum), record[1:].reshape(3, 32, 32))
    keys = [key.decode() for key, _ in read_database(tmp_path / "out" / "train_lmdb")]
    assert len({key.split("_", 1)[1] for key in keys}) == 30
    assert [key[:8] for key in keys] == [f"{index:08d}" for index in range(30)]


def test_training_is_shuffled_by_the_seed_and_test_is_not(tmp_path: Path, archive: Path) -> None:
    def keys(folder: str, database: str) -> list[bytes]:
        return [key for key, _ in read_database(tmp_path / folder / database)]

    for folder, seed in (("one", 1), ("same", 1), ("two", 2)):
        prepare_cifar10(tmp_path / folder, source=archive, seed=seed)
    assert keys("one", "train_lmdb") == keys("same", "train_lmdb") != keys("two", "train_lmdb")
    assert keys("one", "test_lmdb") == [b"%08d_test_batch.bin:%d" % (i, i) for i in range(RECORDS)]


def test_the_mean_is_that_of_the_training_images(
    tmp_path: Path, archive: Path, files: dict[str, Bytes]
) -> None:
    prepared = prepare_cifar10(tmp_path / "out", source=archive)
    assert prepared.mean is not None
    training = np.concatenate([content for name, content in files.items() if "data" in name])
    expected = training[:, 1:].mean(axis=0, dtype=np.float64).reshape(3, 32, 32)
    assert np.allclose(mean_in(prepared.mean), expected, rtol=1e-6)


def test_another_seed_in_the_same_folder_is_refused(tmp_path: Path, archive: Path) -> None:
    prepare_cifar10(tmp_path / "out", source=archive)
    with pytest.raises(DataError, match=r"train_lmdb was prepared with seed 1, not 2.*--force"):
        prepare_cifar10(tmp_path / "out", source=archive, seed=2)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_an_unpacked_folder_will_do(tmp_path: Path, files: dict[str, Bytes], inner: str) -> None:
    (tmp_path / "unpacked" / inner).mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "unpacked" / inner / name).write_bytes(content.tobytes())
    prepared = prepare_cifar10(tmp_path / "out", source=tmp_path / "unpacked")
    assert prepared.counts == {"train_lmdb": 30, "test_lmdb": 6}


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"data_batch_1\.bin.*cifar10 --source PATH"):
        prepare_cifar10(tmp_path / "out", source=tmp_path / "empty")


def test_a_file_that_is_cut_off_is_named(tmp_path: Path, files: dict[str, Bytes]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(
            content.tobytes()[: -1 if name == "data_batch_3.bin" else None]
        )
    with pytest.raises(
        DataError, match=r"data_batch_3\.bin has 18437 bytes, not 6 records of 3073"
    ):
        prepare_cifar10(tmp_path / "out", source=tmp_path)


def test_an_archive_with_another_checksum_is_refused(
    tmp_path: Path, files: dict[str, Bytes]
) -> None:
    cifar_archive(tmp_path / "other.tar.gz", files)
    with pytest.raises(DataError, match=r"other\.tar\.gz is not the published file"):
        prepare_cifar10(tmp_path / "out", source=tmp_path / "other.tar.gz")


def test_a_label_out_of_range_is_refused(tmp_path: Path, files: dict[str, Bytes]) -> None:
    files["test_batch.bin"][2, 0] = 10
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.tobytes())
    with pytest.raises(DataError, match=r"test_batch\.bin has the label 10"):
        prepare_cifar10(tmp_path / "out", source=tmp_path)
