"""Checks whether the files and databases of a data layer exist and are not empty."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from caffenets.checks.paths import SearchPath
from caffenets.data_layers import SOURCES, batch_of, source_of
from caffenets.errors import SolverError
from caffenets.extras import lacking
from caffenets.files import read_bytes, read_names
from caffenets.host_program import caffe_schema
from caffenets.weight_files.hdf5_storage import OWN_COPY, ForeignStorageError, own_dataset

LARGEST_INT32: Final = 2**31 - 1
_MOST_MEAN_BYTES: Final = 1 << 30


def source_problems(layer: Any, search: SearchPath) -> Iterator[str]:
    """The problems of a data layer's source, each to follow `layer 'x' `."""
    if layer.type not in SOURCES:
        return
    if not batch_of(layer):
        written = getattr(layer, SOURCES[layer.type]).HasField("batch_size")
        yield "has batch_size 0: use 1 or more" if written else "has no batch_size: add it"
    elif batch_of(layer) > LARGEST_INT32:
        yield f"has batch_size {batch_of(layer)}, more than Caffe can count: use at most {LARGEST_INT32}"
    source = source_of(layer)
    if not source:
        yield "has no source: name the database or list to read"
        return
    found = search.find(source)
    if found is None:
        yield f"reads its records from {search.missing(source)}"
        return
    try:
        yield from _CHECKS[layer.type](layer, found, search)
    except SolverError as error:
        yield f"reads {error}"
    except OSError as error:
        yield f"reads {found}, which cannot be read ({error.strerror}): correct its permissions or source"


def transform_problems(layer: Any, search: SearchPath) -> Iterator[str]:
    """The problems of mean file and infogain matrix (Caffe: data_transformer.cpp)."""
    transform = layer.transform_param
    if transform.mean_file:
        if transform.mean_value:
            yield "has both mean_file and mean_value: keep one"
        mean = search.find(transform.mean_file)
        if mean is None:
            yield f"needs the mean file {search.missing(transform.mean_file)}"
        elif problem := _mean_problem(mean):
            yield f"needs the mean file {mean}, which {problem}: create it again, with the database"
    if layer.type == "HDF5Data" and layer.HasField("transform_param"):
        yield "has transform_param, which HDF5Data does not take: remove it"
    matrix = layer.infogain_loss_param.source
    if matrix:
        yield from file_problem("needs the infogain matrix", matrix, search)


def file_problem(owner: str, name: str, search: SearchPath) -> Iterator[str]:
    """Refuses pipes and devices, on which Caffe would wait forever."""
    found = search.find(name)
    if found is None:
        yield f"{owner} {search.missing(name)}"
    elif not os.path.isfile(found):
        yield f"{owner} {name!r}, but {found} is not a regular file: correct the path"


def _mean_problem(file: Path) -> str | None:
    """The problem of a BlobProto that is subtracted from every image, if any."""
    if not file.is_file():
        return "is no file"
    if file.stat().st_size > _MOST_MEAN_BYTES:
        return "is too large for one"
    blob = caffe_schema().BlobProto()
    try:
        blob.ParseFromString(file.read_bytes())
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except DecodeError:
        return "is not one, or is truncated"
    values = np.array(blob.data or blob.double_data, dtype=np.float32)
    shape = list(blob.shape.dim) or [blob.num, blob.channels, blob.height, blob.width]
    if not values.size or values.size != math.prod(shape):
        return f"holds {values.size:,} values and says that it has the shape {' x '.join(map(str, shape))}"
    return None if np.isfinite(values).all() else "holds NaN or infinity"


def read_list(path: Path) -> list[str]:
    """The non-empty lines of a list file, as Caffe takes them apart; raises `SolverError` if it cannot be read."""
    with _readable(path):
        text = read_bytes(path).decode("utf-8", "surrogateescape")
    return [line for line in text.split("\n") if line.strip()]


def read_hdf5_list(path: Path) -> list[str]:
    """The names of the files in a list of HDF5 files; raises `SolverError` if it cannot be read."""
    with _readable(path):
        return read_names(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SolverError(
            f"the list {path} cannot be read ({error.strerror}): correct source"
        ) from None


def image_name(line: str) -> str:
    """The file in a line `image label` (Caffe: layers/image_data_layer.cpp)."""
    return line.rpartition(" ")[0]


def _database(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    is_lmdb = layer.data_param.backend == layer.data_param.LMDB
    if not is_lmdb and os.path.exists(found / "data.mdb"):
        yield f"reads {found} as LevelDB, but it is an LMDB: add `backend: LMDB` to data_param"
    elif is_lmdb and not os.path.isfile(found / "data.mdb"):
        other = (
            "a LevelDB: set `backend: LEVELDB`" if os.path.exists(found / "CURRENT") else "no LMDB"
        )
        yield f"reads {found} as LMDB, but it is {other}" + (
            "" if other.startswith("a") else ": create it again or correct source"
        )
    elif is_lmdb:
        yield from _lmdb_problem(found)
    elif not os.path.isfile(found / "CURRENT"):
        yield f"reads {found} as LevelDB, but it is none: create it again or correct source"
    elif not any(file.stat().st_size for file in found.glob("*.*") if file.suffix in _LEVELDB):
        yield f"reads {found}, which holds no record: create it again"


_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LEVELDB = (".ldb", ".sst", ".log")


def _lmdb_problem(found: Path) -> Iterator[str]:
    if lack := lacking("lmdb", "lmdb", "a look into it"):
        yield f"reads {found}, which is not looked at: {lack}"
        return
    import lmdb

    from caffenets.shared_lmdb import SharedLmdb

    try:
        with SharedLmdb(found) as environment:
            stat = environment.stat()
            if not stat["entries"]:
                yield f"reads {found}, which holds no record: create it again"
            pages = environment.info()["last_pgno"] + 1
            if pages * stat["psize"] > (found / "data.mdb").stat().st_size:
                yield f"reads {found}, which is truncated: create it again, or copy it again"
    except lmdb.Error as error:
        yield f"reads {found}, which cannot be opened ({error}): create it again"


def _hdf5(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    names = read_hdf5_list(found)
    if not names:
        yield f"reads the list {found}, which is empty: write the names of HDF5 files into it"
    for name in names:
        file = search.find(name)
        if file is None:
            yield f"reads the list {found}, whose file {search.missing(name)}"
        elif not _is_hdf5(file):
            yield f"reads the list {found}, whose file {file} is not an HDF5 file: create it again or correct the list"
        elif problem := _foreign_storage(file, layer.top):
            yield f"reads the list {found}, whose file {file} {problem}: {OWN_COPY}, or list the other files"


def _foreign_storage(file: Path, datasets: Iterable[str]) -> str:
    """What of these datasets is not in the file itself; what else is wrong with a file, the engines tell."""
    if lack := lacking("h5py", "hdf5", "a look into it"):
        return f"is not looked at, because {lack}"
    import h5py

    try:
        with h5py.File(file, "r", locking=False) as opened:
            for name in datasets:
                own_dataset(opened, str(name))
    except ForeignStorageError as error:
        return str(error)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError):
        pass
    return ""


def _is_hdf5(file: Path) -> bool:
    """Whether the file has HDF5's signature, at its start or after a user block."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        for offset in (0, 512, 1024, 2048, 4096):
            content.seek(offset)
            if content.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE:
                return True
    return False


def _images(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    lines = read_list(found)
    if not lines:
        yield f"reads the list {found}, which is empty: write lines `image label` into it"
    image = layer.image_data_param
    if lines and search.before(image.root_folder, name := image_name(lines[0])) is None:
        yield f"reads the list {found}, whose first image {search.missing(image.root_folder + name)}"
    if bool(image.new_height) != bool(image.new_width):
        yield "has only one of new_height and new_width: give both or none"


def _windows(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    if not read_list(found):
        yield f"reads the window file {found}, which is empty: create it again"


_CHECKS: dict[str, Callable[[Any, Path, SearchPath], Iterator[str]]] = {
    "Data": _database,
    "AnnotatedData": _database,
    "HDF5Data": _hdf5,
    "ImageData": _images,
    "WindowData": _windows,
}
