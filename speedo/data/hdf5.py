"""Reads records out of HDF5 files as Caffe's HDF5Data layer does: a dataset of values and one of labels, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.caffe_schema import caffe_pb2
from caffenets.weight_files.hdf5_storage import OWN_COPY, ForeignStorageError, own_dataset
from speedo.data.base import PROGRESS_RECORDS, Progress
from speedo.data.database import BATCH_BYTES, Record, record_key
from speedo.data.files import open_file, read_file
from speedo.errors import DataError
from speedo.system.bounds import LARGEST_INT32

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_MOST_LIST_BYTES: Final = 64 << 20
_AXES: Final = 4


def hdf5_files(path: Path, root: Path | None) -> list[Path]:
    """The file itself, or those that a list of names has, relative to `root` or the list's folder."""
    if is_hdf5(path):
        return [path]
    names = read_file(path, _MOST_LIST_BYTES).decode("utf-8", "surrogateescape").split()
    if not names:
        raise DataError(f"{path} names no HDF5 file: write one name per line")
    return [(root or path.absolute().parent) / name for name in names]


def is_hdf5(path: Path) -> bool:
    """Whether the file begins as HDF5 files do. Raises `DataError` if it cannot be read."""
    with open_file(path) as stream:
        return stream.read(len(SIGNATURE)) == SIGNATURE


def read_hdf5(files: list[Path], data: str, label: str, progress: Progress) -> Iterator[Record]:
    """A record for each row of the dataset `data`, of shape (rows, channels[, height[, width]]).

    Bytes stay bytes, other numbers become float32, as Caffe reads them. Raises `DataError` for files without these
    datasets, with other shapes than the first, or with labels that are not whole numbers.
    """
    import h5py

    index, first = 0, None
    for number, file in enumerate(files):
        try:
            with h5py.File(file, "r") as opened:
                values, labels = _dataset(opened, file, data), _dataset(opened, file, label)
                shape = _shape(values, file, data)
                first = first or shape
                if shape != first:
                    raise DataError(
                        f"{file} has values of shape {shape}, {files[0]} {first}: use one shape"
                    )
                if labels.size != len(values) or labels.shape[:1] != values.shape[:1]:
                    raise DataError(
                        f"{file} has {len(values):,} rows of {data!r}, but {label!r} is of shape {labels.shape}: an "
                        "LMDB has one label for each record; stay with HDF5Data for others"
                    )
                at_once = max(1, min(1000, BATCH_BYTES // max(1, 4 * int(np.prod(shape)))))
                for start in range(0, len(values), at_once):
                    rows = values[start : start + at_once]
                    for row, one in zip(
                        rows, np.ravel(labels[start : start + at_once]), strict=True
                    ):
                        yield record_key(index), _datum(row, shape, _whole(one, file, index))
                        index += 1
                        if index % PROGRESS_RECORDS == 0:
                            progress(number, len(files), "reading files")
        except OSError as error:
            why = error.strerror or str(error).partition("\n")[0]
            raise DataError(
                f"{file} cannot be read as HDF5 ({why}): correct the name, or create it again"
            ) from error
        progress(number + 1, len(files), "reading files")


def _dataset(opened: Any, file: Path, name: str) -> Any:
    import h5py

    try:
        found = own_dataset(opened, name)
    except ForeignStorageError as error:
        raise DataError(f"{file} {error}: {OWN_COPY}") from None
    if not isinstance(found, h5py.Dataset) or not found.shape:
        there = ", ".join(sorted(opened)) or "none"
        raise DataError(
            f"{file} has no dataset {name!r}, but {there}: give its names with --data-name and --label-name"
        )
    return found


def _shape(values: Any, file: Path, name: str) -> tuple[int, int, int]:
    if not 2 <= values.ndim <= _AXES or min(values.shape[1:]) < 1 or values.dtype.kind not in "uif":
        raise DataError(
            f"{file}: {name!r} is of shape {values.shape} and type {values.dtype}: a record in an LMDB has one to "
            "three axes of numbers; stay with HDF5Data for others"
        )
    channels, height, width = (*values.shape[1:], 1, 1)[:3]
    return int(channels), int(height), int(width)


def _datum(row: npt.NDArray[Any], shape: tuple[int, int, int], label: int) -> bytes:
    datum: Any = caffe_pb2.Datum(channels=shape[0], height=shape[1], width=shape[2], label=label)
    if row.dtype == np.uint8:
        datum.data = row.tobytes()
    else:
        datum.float_data.extend(row.astype(np.float32).ravel())
    return bytes(datum.SerializeToString())


def _whole(label: Any, file: Path, index: int) -> int:
    if not np.isfinite(label) or int(label) != label or abs(int(label)) > LARGEST_INT32:
        raise DataError(
            f"{file}: record {index:,} has the label {label}: an LMDB holds whole numbers; stay with "
            "HDF5Data for others"
        )
    return int(label)
