"""Writes records into an LMDB, and reads them: batched, synced only at the end, in a map that grows on demand."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
import numpy.typing as npt

from speedo.data.wire import datum

DATA_FILE: Final = "data.mdb"
FIRST_MAP_BYTES: Final = 64 << 20
# One transaction: large enough that commits cost nothing, small enough to be held twice in memory.
BATCH_RECORDS: Final = 1000
BATCH_BYTES: Final = 16 << 20
# Caffe links LMDB 0.9, which cannot read the file format of 1.0; newer bindings carry both engines.
_CAFFE_ENGINE: Final[dict[str, Any]] = (
    {"lib_version": 0} if hasattr(lmdb.Environment, "lib_version") else {}
)
# LMDB takes keys of up to 511 bytes; the number and a separator come before the name.
NAME_BYTES: Final = 400
# A disk with less free than this is full: no batch of images is smaller.
_FULL_BYTES: Final = 1 << 20

Record = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: records, bytes of the file, and SHA-256 over all keys and values in
    order."""

    records: int
    file_bytes: int
    sha256: str


def record_key(index: int, name: str = "") -> bytes:
    """The key that puts a record at `index` in reading order: eight digits, and its name if it has
    one."""
    tail = name.encode("utf-8", "surrogateescape")[-NAME_BYTES:]
    return b"%08d" % index + (b"_" + tail if tail else b"")


def raw_record(key: bytes, image: npt.NDArray[np.uint8], label: int) -> Record:
    """An image of shape (channels, height, width) as a record of raw bytes."""
    channels, height, width = image.shape
    return key, datum((channels, height, width), image.tobytes(), label).SerializeToString()


def write_database(
    folder: Path, records: Iterable[Record], *, map_bytes: int = FIRST_MAP_BYTES
) -> Written:
    """Write records, whose keys must rise, into a new database in `folder`.

    Nothing is synchronised before the end: an interrupted database is thrown away as a whole.
    Raises lmdb.Error, or OSError, as they come; the caller knows what was being prepared.
    """
    folder.mkdir(parents=True)
    digest = hashlib.sha256()
    count = 0
    # No lock file: nobody else knows of the folder yet, and a reader makes its own.
    environment = lmdb.Environment(
        str(folder),
        map_size=map_bytes,
        lock=False,
        sync=False,
        metasync=False,
        mode=0o644,
        **_CAFFE_ENGINE,
    )
    try:
        for batch in _batches(records):
            _commit(environment, batch)
            for key, value in batch:
                digest.update(key)
                digest.update(value)
            count += len(batch)
        environment.sync(True)
    finally:
        environment.close()
    return Written(count, (folder / DATA_FILE).stat().st_size, digest.hexdigest())


def _commit(environment: lmdb.Environment, batch: list[Record]) -> None:
    while True:
        try:
            _put(environment, batch)
            return
        except lmdb.MapFullError:
            # The transaction was undone as a whole: double the map and do it again.
            environment.set_mapsize(2 * environment.info()["map_size"])
        except lmdb.Error as error:
            # LMDB calls a write that the disk cut short an I/O error (mdb.c, mdb_page_flush).
            if shutil.disk_usage(environment.path()).free < _FULL_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise


def _put(environment: lmdb.Environment, batch: list[Record]) -> None:
    with environment.begin(write=True) as transaction:
        for key, value in batch:
            # Appending fills pages wholly: the file comes out smallest and in reading order.
            if not transaction.put(key, value, append=True):
                raise ValueError(f"key {key!r} does not come after the one before it")


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record[1])
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
