"""CIFAR-10 (Krizhevsky 2009) from its binary archive: a label byte, then red, green and blue planes of 32 x 32.

The planes stay in the order of the file, red first, as in Caffe's own conversion; a net trained on this data sees
RGB. Training records are shuffled once, with a seed, because Caffe's Data layer never shuffles.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.data.base import (
    COMMAND,
    TEST_DATABASE,
    TRAIN_DATABASE,
    PreparedDataset,
    Progress,
    Shape,
    reported,
    silent,
)
from speedo.data.database import Record, raw_record, record_key, write_database
from speedo.data.download import PublishedFile, check_sha256, fetch, file_sha256
from speedo.data.files import open_file, read_file
from speedo.data.folder import Built, DatasetRequest, prepare_folder
from speedo.data.manifest import Database
from speedo.data.mean import MeanImage, write_mean
from speedo.errors import DataError

CIFAR10: Final = "cifar10"
SHAPE: Final[Shape] = (3, 32, 32)
RECORD_BYTES: Final = 1 + 3 * 32 * 32
RECORDS_PER_FILE: Final = 10_000
LABELS: Final = 10
ARCHIVE_FOLDER: Final = "cifar-10-batches-bin"
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    TRAIN_DATABASE: tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    TEST_DATABASE: ("test_batch.bin",),
}
# The page publishes MD5 c32a1d4ab5d03f1284b67883e8d87530; the SHA-256 of the same file is that of
# TensorFlow Datasets (url_checksums, cifar10: 170,052,171 bytes).
ARCHIVE: Final = PublishedFile(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
_REMEDY: Final = (
    f"fetch {ARCHIVE.urls[0]} on a machine that can, and name the archive or its unpacked folder: "
    f"{COMMAND} {CIFAR10} --source PATH"
)


def prepare_cifar10(
    folder: Path,
    *,
    source: Path | None = None,
    seed: int = 1,
    force: bool = False,
    progress: Progress = silent,
) -> PreparedDataset:
    """CIFAR-10 from `source`, the archive or a folder with it or its files, or downloaded.

    Images of shape (3, 32, 32), channels RGB; `seed` orders the training records, the test records
    stay in the order of their file. The archive must bear the published checksum. Raises DataError,
    see `prepare_folder`.
    """

    def build(staging: Path) -> Built:
        databases: dict[str, Database] = {}
        mean = MeanImage()
        with tempfile.TemporaryDirectory(dir=staging) as downloads:
            contents, sources = _contents(source, Path(downloads), progress)
        for name, files in FILES.items():
            training = name == TRAIN_DATABASE
            records = np.concatenate([_records_of(contents[file], file) for file in files])
            order = np.arange(len(records))
            if training:
                np.random.default_rng(seed).shuffle(order)
            written = write_database(
                staging / name,
                _records(records, order, files, mean if training else None, name, progress),
            )
            databases[name] = Database(
                **asdict(written),
                shape=SHAPE,
                channels="RGB",
                encoded=False,
                options=_options(name, seed),
                sources=sources,
            )
        return Built(databases, write_mean(staging, TRAIN_DATABASE, mean))

    request = DatasetRequest(CIFAR10, {name: _options(name, seed) for name in FILES})
    return prepare_folder(folder, request, build, force=force)


def _options(database: str, seed: int) -> dict[str, int]:
    return {"seed": seed} if database == TRAIN_DATABASE else {}


def _contents(
    source: Path | None, downloads: Path, progress: Progress
) -> tuple[dict[str, bytes], dict[str, str]]:
    """The six files by name, and the checksums of what they came from."""
    names = [name for files in FILES.values() for name in files]
    if source is None:
        archive = fetch(ARCHIVE, downloads, remedy=_REMEDY, progress=progress)
        return _unpack(archive, names), {ARCHIVE.name: ARCHIVE.sha256}
    if os.path.isfile(source):
        checksum = check_sha256(source, ARCHIVE.sha256)  # before anything in it is unpacked
        return _unpack(source, names), {source.name: checksum}
    if os.path.isfile(source / ARCHIVE.name):
        return _contents(source / ARCHIVE.name, downloads, progress)
    folder = source / ARCHIVE_FOLDER if os.path.isdir(source / ARCHIVE_FOLDER) else source
    missing = [name for name in names if not os.path.isfile(folder / name)]
    if missing:
        raise DataError(f"{folder} has no {', '.join(missing)}: {_REMEDY}")
    most = RECORDS_PER_FILE * RECORD_BYTES
    contents = {name: read_file(folder / name, most) for name in names}
    return contents, {name: file_sha256(folder / name) for name in names}


def _unpack(archive: Path, names: list[str]) -> dict[str, bytes]:
    """The named members of the published archive. They are read in memory: no file gets a name that it chose."""
    with open_file(archive) as file, tarfile.open(fileobj=file) as tar:
        members = {name: tar.extractfile(f"{ARCHIVE_FOLDER}/{name}") for name in names}
        return {name: member.read() for name, member in members.items() if member is not None}


def _records_of(content: bytes, name: str) -> npt.NDArray[np.uint8]:
    """The records of one file, uint8 of shape (records, 3073)."""
    if len(content) != RECORDS_PER_FILE * RECORD_BYTES:
        raise DataError(
            f"{name} has {len(content)} bytes, not {RECORDS_PER_FILE} records of {RECORD_BYTES}: "
            "it is damaged, unpack the archive again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    highest = int(np.max(records[:, 0]))
    if highest >= LABELS:
        raise DataError(
            f"{name} has the label {highest}, CIFAR-10 has 0 to {LABELS - 1}: it is damaged"
        )
    return records


def _records(
    records: npt.NDArray[np.uint8],
    order: npt.NDArray[np.int64],
    files: tuple[str, ...],
    mean: MeanImage | None,
    what: str,
    progress: Progress,
) -> Iterator[Record]:
    for index, place in enumerate(reported(order.tolist(), len(order), what, progress)):
        image = records[place, 1:].reshape(SHAPE)
        if mean:
            mean.add(image)
        # The name says where a shuffled record came from.
        name = f"{files[place // RECORDS_PER_FILE]}:{place % RECORDS_PER_FILE}"
        yield raw_record(record_key(index, name), image, int(records[place, 0]))
