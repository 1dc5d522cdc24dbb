"""HDF5Data: the rows of datasets in HDF5 files. Caffe: layers/hdf5_data_layer.cpp."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.files import read_names
from caffenets.layer import Shape
from speedo.engines.pytorch.data.prefetch import Batch
from speedo.engines.pytorch.data.source import BatchSource
from speedo.errors import EngineError

Floats = npt.NDArray[np.float32]


class HDF5Data(BatchSource):
    """Caffe's HDF5Data layer: each top has the rows of the dataset of its name, (N, ...), float32.

    Shards as in `Data`. The rows of all files, one file after the other, are one sequence, which begins again after
    the last; a batch may hold rows of two files, and rows twice if there are fewer than it needs. `shuffle` changes the
    order of the files before every epoch and of the rows in each, by the place's seed and rank; then rank and count
    are not looked at, since a worker's list has its rows alone (`speedo.engines.solver.hdf5_shares`).
    """

    @property
    def samples(self) -> int:
        return int(self.param.hdf5_data_param.batch_size)

    def open(self) -> list[Shape]:
        if self.param.HasField("transform_param"):
            raise self.refuse("has transform_param, which HDF5Data does not take: remove it")
        self._files = self._read_list()
        self._order = np.arange(len(self._files))
        self._shuffles = self.draws("shuffle") if self.param.hdf5_data_param.shuffle else None
        if self._shuffles is not None:
            self._shuffles.shuffle(self._order)
        self._shapes: list[Shape] = []
        self._at = 0
        self._load()
        shards = self.place.phase == "TRAIN" and self._shuffles is None
        self._step = self.place.count if shards else 1
        self._row = 0
        self._advance(self.place.rank if shards else 0)
        return [(self.samples, *shape) for shape in self._shapes]

    def read(self) -> Batch:
        tops = [self.empty((self.samples, *shape)) for shape in self._shapes]
        arrays = [top.numpy() for top in tops]
        done = 0
        for part in self.in_a_row(self.samples):
            end = done + part
            while done < end:
                # Where this file's rows end, those of the shard among them.
                rows = self._rows[self._row :: self._step][: end - done]
                for out, values in zip(arrays, self._values, strict=True):
                    values.take(rows, axis=0, out=out[done : done + len(rows)], mode="clip")
                done += len(rows)
                self._advance(len(rows) * self._step)
        return tops

    def pass_over(self, batches: int) -> None:
        self._advance(batches * self.samples * self._step)

    def seek(self, record: int) -> None:
        ends = self._ends
        record %= ends[-1]
        file = bisect_right(ends, record)
        if file != self._at:
            self._at = file
            self._load()
        self._step, self._row = 1, record - (ends[file - 1] if file else 0)

    @cached_property
    def _ends(self) -> list[int]:
        """The number of the row behind the last, for each file."""
        import h5py

        rows = []
        for file in self._files:
            try:
                with h5py.File(file, "r") as opened:
                    rows.append(len(opened[str(self.param.top[0])]))
            except (OSError, KeyError, TypeError) as error:
                raise self._bad(file, f"cannot be read ({error}): create it again") from error
        return list(accumulate(rows))

    def release(self) -> None:
        """Free the rows in memory."""
        self._values: list[Floats] = []

    def _advance(self, rows: int) -> None:
        """Move on by this many rows of the sequence."""
        self._row += rows
        while self._row >= len(self._rows):
            self._row -= len(self._rows)
            self._next_file()

    def _next_file(self) -> None:
        if len(self._files) > 1:
            self._at += 1
            if self._at == len(self._files):
                self._at = 0
                if self._shuffles is not None:
                    self._shuffles.shuffle(self._order)
            self._load()
        elif self._shuffles is not None:
            self._shuffles.shuffle(self._rows)

    def _load(self) -> None:
        """Read the present file's datasets into memory, as Caffe does."""
        import h5py

        file = self._files[self._order[self._at]]
        self._values = []
        try:
            with h5py.File(file, "r") as opened:
                self._values = [self._dataset(opened, file, str(top)) for top in self.param.top]
        except OSError as error:
            raise self._bad(file, f"cannot be read ({error}): create it again") from error
        rows = {len(values) for values in self._values}
        if len(rows) != 1 or not rows.pop():
            shapes = ", ".join(
                f"{top} {values.shape}"
                for top, values in zip(self.param.top, self._values, strict=True)
            )
            raise self._bad(
                file, f"does not have the same number of rows, 1 or more, in each: {shapes}"
            )
        shapes_of_rows: list[Shape] = [values.shape[1:] for values in self._values]
        self._shapes = self._shapes or shapes_of_rows
        for top, shape, first in zip(self.param.top, shapes_of_rows, self._shapes, strict=True):
            if shape != first:
                raise self._bad(
                    file,
                    f"has rows of shape {shape} in {top}, and the first file {first}: use one shape",
                )
        self._rows = np.arange(len(self._values[0]))
        if self._shuffles is not None:
            self._shuffles.shuffle(self._rows)

    def _dataset(self, opened: Any, file: Path, name: str) -> Floats:
        import h5py

        found = opened.get(name)
        if not isinstance(found, h5py.Dataset):
            held = ", ".join(sorted(opened)) or "nothing"
            raise self._bad(
                file, f"has no dataset {name!r} (it has {held}): rename the top or the dataset"
            )
        if found.dtype.kind not in "fiu" or not found.shape:
            raise self._bad(
                file,
                f"has {name!r} of type {found.dtype} and shape {found.shape}: write rows of numbers",
            )
        out = np.empty(found.shape, np.float32)
        if found.size:
            found.read_direct(out)
        return out

    def _read_list(self) -> list[Path]:
        source = self.find(self.param.hdf5_data_param.source, "list of HDF5 files")
        try:
            names = read_names(source)
        except OSError as error:
            raise self.refuse(
                f"needs the list {source}, which cannot be read ({error.strerror}): correct source"
            ) from error
        if not names:
            raise self.refuse(
                f"needs the list {source}, which is empty: write the names of HDF5 files into it"
            )
        return [self.find(name, "HDF5 file") for name in names]

    def _bad(self, file: Path, what: str) -> EngineError:
        return self.refuse(f"reads {file}, which {what}")


LAYERS: Final = (HDF5Data,)
