"""Has Caffe's data layers read the records that they are told: out of small sources that have these alone.

They read a source from its beginning, one record after the other, and have no way to move (Caffe:
layers/data_layer.cpp). So the records of the next turns are put into a small source of their own, and a net that has
only data layers reads it, with Caffe's own transformation. Its batches take the place of those of the train net's data
layers, which do not run. Of a database the records are copied, of a list the lines; HDF5 rows are virtual, and stay
where they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from caffenets.checks.sources import read_hdf5_list, read_list
from caffenets.data_layers import PLACEABLE, SOURCES
from caffenets.shared_lmdb import SharedLmdb
from speedo.engines.forward_pass import ForwardPass, as_a_solver_alone
from speedo.engines.solver.hdf5_shares import rows_in, write_rows
from speedo.errors import EngineError, SolverError

Ranges = Sequence[tuple[int, int]]

MOST_BYTES: Final = 64 << 20  # of a source, unless the records that are wanted now are more
_PAGE: Final = 4096


class PlacedRecords:
    """The next records of the data layers of `parameter`, the train net's; small files are in `scratch`."""

    def __init__(self, caffe: Any, parameter: Any, batch: int, scratch: Path) -> None:
        self._caffe, self._parameter, self._batch, self._scratch = caffe, parameter, batch, scratch
        self._sources = {
            str(layer.name): _source_of(layer)
            for layer in parameter.layer
            if layer.type in PLACEABLE
        }
        self._net: Any = None
        self._made = 0
        self._folder: Path | None = None
        self._numbers: NDArray[np.int64] = np.empty(0, np.int64)  # that the net is going to read

    def feed(self, forward: ForwardPass) -> None:
        """Give this pass its batches."""
        forward.read_from(self.fill, self._sources)

    def place(self, ranges: Ranges, ahead: int) -> None:
        """Read these records next; as many as `ahead` after them will probably be wanted then."""
        wanted = _numbers_in(ranges)
        if np.array_equal(self._numbers[: len(wanted)], wanted):
            return
        last = ranges[-1][1]
        room = min(source.most for source in self._sources.values())
        if ahead := min(ahead, max(0, room - len(wanted))):
            ranges = [*ranges, (last, last + ahead)]
        self._read(_joined(ranges))
        self._numbers = _numbers_in(ranges)

    def fill(self, net: Any) -> None:
        """Put the next batch where the data layers of `net` would put it."""
        if len(self._numbers) < self._batch:
            raise EngineError(
                f"a batch of {self._batch} is wanted, and {len(self._numbers)} records were placed"
            )
        with as_a_solver_alone():
            self._net._forward(0, len(self._net.layers) - 1)
        self._numbers = self._numbers[self._batch :]
        for name, read in self._net.blobs.items():
            top = net.blobs[name]
            if tuple(top.shape) != tuple(read.shape):
                top.reshape(*read.shape)
            top.data[...] = read.data

    def close(self) -> None:
        """Free the net, and its reading thread."""
        self._net = None
        for source in self._sources.values():
            source.close()

    def _read(self, ranges: Ranges) -> None:
        """Build the net that reads these."""
        former, self._made = self._folder, self._made + 1
        self._folder = folder = self._scratch / f"records-{self._made}"
        folder.mkdir()
        own = type(self._parameter)(name="records")
        for number, layer in enumerate(self._parameter.layer):
            source = self._sources.get(str(layer.name))
            if source is not None:
                read = own.layer.add()
                read.CopyFrom(layer)
                read.ClearField("include")
                read.ClearField("exclude")
                try:
                    source.write(read, ranges, folder / str(number))
                except (OSError, lmdb.Error, SolverError) as error:
                    raise EngineError(
                        f"layer {layer.name!r} cannot be read at the records of its turn ({error}): make room in "
                        f"{self._scratch}, or use --data-share shard"
                    ) from error
        file = folder / "records.prototxt"
        file.write_text(text_format.MessageToString(own))
        self._net = None  # its thread reads the former files
        with as_a_solver_alone():
            self._net = self._caffe.Net(str(file), self._caffe.TRAIN)
        if former is not None:
            shutil.rmtree(former, ignore_errors=True)


def _numbers_in(ranges: Ranges) -> NDArray[np.int64]:
    return np.concatenate([np.arange(start, stop) for start, stop in ranges])


def _joined(ranges: Ranges) -> list[tuple[int, int]]:
    """In the same order, with what follows each other as one."""
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _wrapped(ranges: Ranges, records: int) -> Iterator[tuple[int, int]]:
    """The same of a source with this many records, which begins again after its last."""
    for start, stop in ranges:
        while start < stop:
            at = start % records
            end = min(records, at + stop - start)
            yield at, end
            start += end - at


class _Database:
    """An LMDB."""

    def __init__(self, layer: Any) -> None:
        self._path = Path(layer.data_param.source)
        self._shared = SharedLmdb(self._path)
        environment = self._shared.environment
        self._records = int(environment.stat()["entries"])
        self._transaction = environment.begin(buffers=True)
        self._cursor = self._transaction.cursor()
        self._cursor.first()
        self._at = 0
        self.most = max(1, MOST_BYTES // max(1, len(self._cursor.value())))

    def write(self, layer: Any, ranges: Ranges, folder: Path) -> None:
        records, size = list[tuple[bytes, bytes]](), 0
        for start, stop in _wrapped(ranges, self._records):
            self._seek(start)
            for number in range(start, stop):
                self._seek(number)
                value = self._cursor.value()
                size += len(value) // _PAGE * _PAGE + 2 * _PAGE
                records.append((b"%09d" % len(records), bytes(value)))
        made = lmdb.open(
            str(folder), map_size=2 * size + (1 << 20), sync=False, metasync=False, lock=False
        )
        try:
            with made.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(records, append=True)
        finally:
            made.close()
        layer.data_param.source = str(folder)

    def close(self) -> None:
        self._cursor.close()
        self._transaction.abort()
        self._shared.close()

    def _seek(self, number: int) -> None:
        if number < self._at:
            self._cursor.first()
            self._at = 0
        while self._at < number:
            self._cursor.next()
            self._at += 1


class _ImageList:
    """A list of images."""

    most = 1 << 16

    def __init__(self, layer: Any) -> None:
        self._lines = read_list(Path(layer.image_data_param.source))

    def write(self, layer: Any, ranges: Ranges, folder: Path) -> None:
        lines = [
            line
            for start, stop in _wrapped(ranges, len(self._lines))
            for line in self._lines[start:stop]
        ]
        text = "".join(f"{line}\n" for line in lines)
        folder.with_suffix(".txt").write_text(text, "utf-8", "surrogateescape", "")
        layer.image_data_param.source = str(folder.with_suffix(".txt"))
        layer.image_data_param.rand_skip = 0

    def close(self) -> None:
        pass


class _Rows:
    """The rows of HDF5 files."""

    def __init__(self, layer: Any) -> None:
        self._tops = [str(top) for top in layer.top]
        files = read_hdf5_list(Path(layer.hdf5_data_param.source))
        self._files, row_bytes = rows_in(files, self._tops, f"layer {layer.name!r}")
        self._records = sum(rows for _, rows in self._files)
        self.most = MOST_BYTES // max(1, row_bytes)  # Caffe has all of a file in memory

    def write(self, layer: Any, ranges: Ranges, folder: Path) -> None:
        parts: list[tuple[str, int, int]] = []
        for start, stop in _wrapped(ranges, self._records):
            before = 0
            for file, rows in self._files:
                first, end = max(start - before, 0), min(stop - before, rows)
                if first < end:
                    parts.append((file, first, end))
                before += rows
        made = folder.with_suffix(".h5")
        write_rows(parts, self._tops, made, f"layer {layer.name!r}")
        names = folder.with_suffix(".txt")
        names.write_text(f"{made}\n")
        layer.hdf5_data_param.source = str(names)

    def close(self) -> None:
        pass


_KINDS: Final = {
    "Data": _Database,
    "AnnotatedData": _Database,
    "ImageData": _ImageList,
    "HDF5Data": _Rows,
}


def _source_of(layer: Any) -> Any:
    try:
        return _KINDS[layer.type](layer)
    except (OSError, lmdb.Error, SolverError) as error:
        name = getattr(layer, SOURCES[layer.type]).source
        raise EngineError(
            f"layer {layer.name!r} cannot read {name} ({error}): create it again, or use --data-share shard"
        ) from error
