"""Reads the records of an LMDB, and counts what they are: shapes, labels, and those that Caffe cannot use."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import lmdb
from google.protobuf.message import DecodeError

from caffenets.caffe_schema import caffe_pb2
from speedo.data.base import Shape
from speedo.data.database import DATA_FILE, Record
from speedo.data.leveldb import converted, is_leveldb
from speedo.data.picture import FORMATS
from speedo.data.pixels import UnreadablePictureError, decoded, shape_of
from speedo.data.wire import is_annotated
from speedo.errors import DataError
from speedo.system.bounds import said

SHOWN_FAULTS: Final = 20


@contextmanager
def opened(database: Path) -> Iterator[lmdb.Transaction]:
    """A reading transaction of an LMDB, a folder or a file; raises `DataError` if it is none, or damaged."""
    file = database / DATA_FILE if database.is_dir() else database
    if not file.is_file():  # LMDB waits for what comes out of a pipe
        raise DataError(f"{database} is not a database: name the folder of an LMDB or a LevelDB")
    try:
        environment = lmdb.open(
            os.fsencode(database),
            readonly=True,
            lock=False,
            subdir=database.is_dir(),
            max_readers=1,
        )
    except lmdb.Error as error:
        raise _damaged(database, error) from error
    with environment:
        pages = environment.info()["last_pgno"] + 1
        if pages * environment.stat()["psize"] > file.stat().st_size:
            # LMDB maps the file: a page beyond its end would kill the process.
            raise DataError(f"{database} is cut short: copy it again, or create it again")
        with environment.begin() as transaction:
            yield transaction


def as_lmdb(database: Path) -> Path:
    """The database itself, or for a LevelDB its conversion in the cache. Raises `DataError`."""
    return converted(database) if is_leveldb(database) else database


def read_records(database: Path, transaction: lmdb.Transaction) -> Iterator[Record]:
    """Key and value of every record, in the order of the database; raises `DataError`."""
    try:
        for key, value in transaction.cursor():
            yield bytes(key), bytes(value)
    except lmdb.Error as error:
        raise _damaged(database, error) from error


def read_keys(database: Path, transaction: lmdb.Transaction) -> list[bytes]:
    """The key of every record, in the order of the database; raises `DataError`."""
    try:
        return [bytes(key) for key in transaction.cursor().iternext(values=False)]
    except lmdb.Error as error:
        raise _damaged(database, error) from error


def read_record(database: Path, transaction: lmdb.Transaction, key: bytes) -> bytes:
    """The value of this key, which is there; raises `DataError`."""
    try:
        return bytes(transaction.get(key, b""))
    except lmdb.Error as error:
        raise _damaged(database, error) from error


def _damaged(database: Path, error: lmdb.Error) -> DataError:
    return DataError(
        f"{database} is damaged, or no LMDB ({error}): copy it again, or create it again"
    )


@dataclass
class Survey:
    """What the records are that `add` was given. `faults` are the first of `faulty` records, each with its key.

    Of images with boxes `labels` are those of the boxes. `cut` are the keys of JPEGs that lack their end.
    """

    records: int = 0
    encoded: int = 0
    shapes: Counter[Shape] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)
    faulty: int = 0
    faults: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    def add(self, record: Record, *, decode: bool = False) -> None:
        """Count one record; with `decode` an encoded image is decoded as a whole, otherwise its header is read."""
        key, value = record
        self.records += 1
        shown = said(key.decode("utf-8", "backslashreplace"))
        problem, datum, labels = "", caffe_pb2.Datum(), None
        try:
            if is_annotated(value):
                annotated = caffe_pb2.AnnotatedDatum.FromString(value)
                datum, groups = annotated.datum, annotated.annotation_group
                labels = {group.group_label: len(group.annotation) for group in groups}
            else:
                datum.ParseFromString(value)
        except DecodeError:
            problem = "is not a Datum of Caffe"
        else:
            try:
                shape, is_cut = (
                    _image(datum, decode) if datum.encoded else (_raw_shape(datum), False)
                )
                self.shapes[shape] += 1
                self.cut += [shown] * is_cut
                self.encoded += bool(datum.encoded)
                self.labels.update({datum.label: 1} if labels is None else labels)
            except _FaultError as fault:
                problem = str(fault)
        if problem:
            self.faulty += 1
            if len(self.faults) < SHOWN_FAULTS:
                self.faults.append(f"{shown} {problem}")

    @property
    def shape(self) -> Shape | None:
        """The shape of all records; None if they differ."""
        return next(iter(self.shapes)) if len(self.shapes) == 1 else None


class _FaultError(Exception):
    """What is wrong with a record; follows its key."""


def _raw_shape(datum: Any) -> Shape:
    """As Caffe reads a raw datum (Caffe: data_transformer.cpp): bytes if there are any, else floats."""
    shape = (datum.channels, datum.height, datum.width)
    needed = shape[0] * shape[1] * shape[2]
    held = len(datum.data) or len(datum.float_data)
    if min(shape) < 1:
        raise _FaultError(f"has the shape {text_of(shape)}")
    if held < needed:
        raise _FaultError(
            f"is short: it holds {held:,} values, its shape {text_of(shape)} needs {needed:,}"
        )
    return shape


def _image(datum: Any, decode: bool) -> tuple[Shape, bool]:
    """The shape, and whether it is a JPEG that lacks its end."""
    try:
        shape = shape_of(BytesIO(datum.data), "own", FORMATS)
        return shape, decode and decoded(datum.data, "color", formats=FORMATS, in_record=True).cut
    except UnreadablePictureError as error:
        raise _FaultError(f"holds a file that {error}") from error


def text_of(shape: Shape) -> str:
    """As in `3 x 32 x 32`."""
    return " x ".join(map(str, shape))
