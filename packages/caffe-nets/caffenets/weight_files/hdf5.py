"""Caffe's weights and solver states in HDF5: where the values are. The HDF5 library reads only the table of contents.

It would follow links, read other files as values, and inflate what is compressed, all from a file of some hundred
bytes. So what Caffe itself writes is taken, datasets in one piece, and nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.extras import needed
from caffenets.weight_files.hdf5_storage import OWN_COPY, ForeignStorageError, hard_child
from caffenets.weight_files.stored import (
    DamagedError,
    Piece,
    Stored,
    StoredState,
    Table,
    exactly,
    reading,
    size_of,
    stored,
)

SIGNATURE: Final = b"\x89HDF"
_MOST_BLOBS: Final = 1000  # of a layer; an LSTM has three
_MOST_DEPTH: Final = 32  # of groups; a slash in a layer's name makes one
_MOST_TEXT_BYTES: Final = 1 << 16
_REPACK: Final = "copy it with `h5repack -f NONE -l CONTI OLD NEW`, and give the copy"

Blobs = tuple[Stored | None, ...]


def read_layers(path: Path) -> list[tuple[str, Blobs]]:
    """The layers of a `.caffemodel.h5`; None stands for a blob that it lacks. Raises `EngineError`."""
    with _opened(path, "a .caffemodel.h5") as file:
        data = file.child(file.root, "data")
        if not hasattr(data, "items"):
            raise DamagedError("is not a .caffemodel.h5: it has no group 'data'")
        return list(_layers(file, data, "", 0))


def write_layers(
    file: IO[bytes], layers: Iterable[str], blobs: Iterable[tuple[str, npt.NDArray[np.float32]]]
) -> None:
    """Write a `.caffemodel.h5` into an open file: the names of all layers, and blobs by LAYER/INDEX.

    Caffe: net.cpp, ToHDF5. Raises `ConfigError` without h5py.
    """
    with needed("h5py", "hdf5", "a .caffemodel.h5").File(file, "w") as out:
        data = out.create_group("data")
        for layer in layers:
            data.require_group(layer)  # "a/b" has made "a"
        for name, values in blobs:
            data.create_dataset(name, data=values)


def read_state(path: Path) -> StoredState:
    """A `.solverstate.h5`. Raises `EngineError`."""
    with _opened(path, "the state of a solver in HDF5") as file:
        history = file.child(file.root, "history")
        blobs = dict(file.children(history))
        return StoredState(
            file.number("iter"),
            file.text("learned_net"),
            file.number("current_step"),
            tuple(
                file.array(blobs[str(index)], f"blob {index} of the history")
                for index in range(len(blobs))
            ),
        )


class _File:
    """An open file; `root` is its first group."""

    def __init__(self, path: Path, stream: Any, root: Any) -> None:
        self._path, self._stream, self.root = path, stream, root
        self._table = Table(size_of(stream))

    def child(self, group: Any, name: str) -> Any:
        """What a group holds under this name, None for nothing. Raises `DamagedError` for a link."""
        self._table.entry()
        try:
            return hard_child(group, name)
        except ForeignStorageError as error:
            raise DamagedError(str(error), OWN_COPY) from None

    def children(self, group: Any) -> Iterator[tuple[str, Any]]:
        """All that a group holds. Raises `DamagedError` for a link."""
        self._table.entry(len(group))
        for name in group:
            yield name, self.child(group, name)

    def array(self, dataset: Any, what: str) -> Stored:
        """Where the values of a dataset are. Raises `DamagedError` for those that are not in one piece of the file."""
        import h5py

        created, kind = dataset.id.get_create_plist(), dataset.dtype
        if created.get_nfilters():
            raise DamagedError(
                f"has {what} compressed or filtered, which Caffe does not write", _REPACK
            )
        if created.get_layout() != h5py.h5d.CONTIGUOUS:
            raise DamagedError(
                f"has {what} in chunks or in a header, which Caffe does not write", _REPACK
            )
        if kind.kind not in "fiu" or h5py.h5t.py_create(kind) != dataset.id.get_type():
            raise DamagedError(f"has values of the type {kind} in {dataset.name:.100}")
        size = operator.index(dataset.size or 0)
        begin = dataset.id.get_offset() if size else 0
        if begin is None:
            raise DamagedError(f"declares {size:,} values for {what}, and holds none")
        pieces = [Piece(begin, size, np.dtype(kind.str))] if size else []
        return self._table.array(stored(self._path, what, dataset.shape or (), pieces))

    def number(self, name: str) -> int:
        """The first number of a dataset of the root."""
        found = self.child(self.root, name)
        if found is None:
            raise KeyError(name)
        one = self.array(found, repr(name))
        (piece,) = one.pieces
        content = exactly(self._stream, piece.begin, piece.kind.itemsize, repr(name))
        return int(np.frombuffer(content, piece.kind)[0])

    def text(self, name: str) -> str:
        """A text of the root; empty if there is none."""
        found = self.child(self.root, name)
        if found is None:
            return ""
        if found.dtype.kind != "S" or found.size != 1 or found.dtype.itemsize > _MOST_TEXT_BYTES:
            raise DamagedError(f"has no plain text under {name!r}")
        return bytes(found[()]).split(b"\0")[0].decode("utf-8", "replace")


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[_File]:
    import h5py  # beside Caffe's own library of HDF5, and only where it is asked for

    with reading(path, kind) as stream, h5py.File(stream, "r") as root:
        yield _File(path, stream, root)


def _layers(file: _File, group: Any, name: str, depth: int) -> Iterator[tuple[str, Blobs]]:
    if depth > _MOST_DEPTH:
        raise DamagedError(f"has groups within groups, more than {_MOST_DEPTH}")
    held = list(file.children(group))
    blobs = {int(key): one for key, one in held if _is_index(key) and hasattr(one, "shape")}
    if blobs and max(blobs) >= _MOST_BLOBS:
        raise DamagedError(f"has a blob {max(blobs)} in layer {name!r:.100}")
    if name:
        found = {
            at: file.array(one, f"blob {at} of layer {name!r:.100}") for at, one in blobs.items()
        }
        yield name, tuple(found.get(index) for index in range(max(found, default=-1) + 1))
    for key, one in held:
        if hasattr(one, "items"):  # a slash in a layer's name has made groups within groups
            yield from _layers(file, one, f"{name}/{key}" if name else key, depth + 1)


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 10
