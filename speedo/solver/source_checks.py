"""Whether the files and databases behind a layer are there and hold something."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from speedo.errors import SolverError
from speedo.files import read_bytes
from speedo.solver.data_layers import LARGEST_BATCH, SOURCES, batch_of, source_of
from speedo.solver.paths import SearchPath


def source_problems(layer: Any, search: SearchPath) -> Iterator[str]:
    """The problems of a data layer's source, as what follows `layer 'x' `."""
    if layer.type not in SOURCES:
        return
    if not batch_of(layer):
        yield "has no batch_size: add it"
    elif batch_of(layer) > LARGEST_BATCH:
        yield f"has batch_size {batch_of(layer)}, more than Caffe can count: use at most {LARGEST_BATCH}"
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
        yield from _file_problem("needs the mean file", transform.mean_file, search)
    if layer.type == "HDF5Data" and layer.HasField("transform_param"):
        yield "has transform_param, which HDF5Data does not take: remove it"
    matrix = layer.infogain_loss_param.source
    if matrix:
        yield from _file_problem("needs the infogain matrix", matrix, search)


def _file_problem(owner: str, name: str, search: SearchPath) -> Iterator[str]:
    """Caffe would wait for ever for what comes out of a pipe."""
    found = search.find(name)
    if found is None:
        yield f"{owner} {search.missing(name)}"
    elif not os.path.isfile(found):
        yield f"{owner} {name!r}, but {found} is no regular file: correct the path"


def read_list(path: Path) -> list[str]:
    """The non-empty lines of a list file; raises `SolverError` if it cannot be read."""
    try:
        text = read_bytes(path).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise SolverError(
            f"the list {path} cannot be read ({error.strerror}): correct source"
        ) from None
    return [line for line in text.splitlines() if line.strip()]


def image_root(layer: Any, lines: list[str], search: SearchPath) -> Path | None:
    """The folder that the list's relative names start from; None if the first image is nowhere."""
    root = layer.image_data_param.root_folder
    name = lines[0].rpartition(" ")[0]
    # Caffe puts root and name together as text (Caffe: layers/image_data_layer.cpp).
    found = search.find(root + name)
    if found is None:
        return None
    whole = str(found)
    return Path(whole[: -len(name)]) if whole.endswith(name) else found.parent


def _database(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    is_lmdb = layer.data_param.backend == layer.data_param.LMDB
    if not is_lmdb and os.path.exists(found / "data.mdb"):
        yield f"reads {found} as LevelDB, but it is an LMDB: add `backend: LMDB` to data_param"
    elif is_lmdb and not os.path.isfile(found / "data.mdb"):
        other = (
            "a LevelDB: set `backend: LEVELDB`" if os.path.exists(found / "CURRENT") else "no LMDB"
        )
        yield f"reads {found} as LMDB, but it is {other}" + (
            "" if other.startswith("a") else ": make it anew or correct source"
        )
    elif is_lmdb:
        yield from _lmdb_problem(found)
    elif not os.path.isfile(found / "CURRENT"):
        yield f"reads {found} as LevelDB, but it is none: make it anew or correct source"
    elif not any(file.stat().st_size for file in found.glob("*.*") if file.suffix in _LEVELDB):
        yield f"reads {found}, which holds no record: make it anew"


_LEVELDB = (".ldb", ".sst", ".log")


def _lmdb_problem(found: Path) -> Iterator[str]:
    try:
        # Without locks: a second handle's closing would drop the locks of Caffe's own handle.
        with lmdb.open(str(found), readonly=True, lock=False) as environment:
            if not environment.stat()["entries"]:
                yield f"reads {found}, which holds no record: make it anew"
    except lmdb.Error as error:
        yield f"reads {found}, which cannot be opened ({error}): make it anew"


def _hdf5(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    names = " ".join(read_list(found)).split()
    if not names:
        yield f"reads the list {found}, which is empty: write the names of HDF5 files into it"
    for name in names:
        yield from _file_problem(f"reads the list {found}, whose file", name, search)


def _images(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    lines = read_list(found)
    if not lines:
        yield f"reads the list {found}, which is empty: write lines `image label` into it"
    elif image_root(layer, lines, search) is None:
        name = layer.image_data_param.root_folder + lines[0].rpartition(" ")[0]
        yield f"reads the list {found}, whose first image {search.missing(name)}"
    image = layer.image_data_param
    if bool(image.new_height) != bool(image.new_width):
        yield "has only one of new_height and new_width: give both or none"


def _windows(layer: Any, found: Path, search: SearchPath) -> Iterator[str]:
    if not read_list(found):
        yield f"reads the window file {found}, which is empty: make it anew"


_CHECKS: dict[str, Callable[[Any, Path, SearchPath], Iterator[str]]] = {
    "Data": _database,
    "HDF5Data": _hdf5,
    "ImageData": _images,
    "WindowData": _windows,
}
