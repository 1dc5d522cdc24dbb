"""Each worker's share of HDF5 files whose rows are shuffled, as virtual files: they name rows and copy none.

Caffe shuffles with the C library's random numbers (Caffe: layers/hdf5_data_layer.cpp), which every thread of a process
draws from. So no two workers can be relied on to have one order, of which each would read its part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from speedo.errors import SolverError

# HDF5 takes a time that is the square of the number of stretches (10,000 of one row: 1.5 s).
_STRETCHES: Final = 32


def write_shares(
    files: Sequence[str], datasets: Sequence[str], rank: int, count: int, folder: Path, owner: str
) -> list[str]:
    """Files with a `count`-th of the rows of each of these; shares have no row in common, and differ by a row at most.

    A file without a row of this share is left out. HDF5 1.10 or later reads them. Raises `SolverError`, which begins
    with `owner`.
    """
    import h5py

    shares: list[str] = []
    all_rows = dealt = 0
    for file in files:
        share = folder / f"{len(shares)}.h5"
        try:
            with h5py.File(file, "r", locking=False) as opened:
                found = {name: opened[name] for name in datasets}
                rows = min(len(dataset) for dataset in found.values())
                own = list(_stretches(rows, (rank - dealt) % count, count))
                all_rows += rows
                dealt += rows % count
                if not own:
                    continue
                _write([(file, stretch) for stretch in own], datasets, share)
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SolverError(
                f"{owner} reads {file}, which cannot be divided between workers ({error}): create it again, with a "
                f"dataset for each of {', '.join(datasets)}"
            ) from error
        shares.append(str(share))
    if not shares:
        raise SolverError(
            f"{owner} reads {all_rows:,} rows, fewer than there are workers: use fewer workers, or --data-share same"
        )
    return shares


def rows_in(
    files: Sequence[str], datasets: Sequence[str], owner: str
) -> tuple[list[tuple[str, int]], int]:
    """Each file with the number of its rows, and the bytes of a row in memory, where Caffe has float32.

    Raises `SolverError`, which begins with `owner`.
    """
    import h5py

    found, row_bytes = [], 0
    for file in files:
        try:
            with h5py.File(file, "r", locking=False) as opened:
                found.append((file, min(len(opened[name]) for name in datasets)))
                row_bytes = sum(4 * math.prod(opened[name].shape[1:]) for name in datasets)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise SolverError(
                f"{owner} reads {file}, whose rows cannot be counted ({error})"
            ) from error
    return found, row_bytes


def write_rows(
    parts: Sequence[tuple[str, int, int]], datasets: Sequence[str], made: Path, owner: str
) -> None:
    """A virtual file of these rows of files, from the first to before the second number of each part."""
    try:
        _write([(file, range(first, end)) for file, first, end in parts], datasets, made)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise SolverError(f"{owner} reads rows that cannot be put together ({error})") from error


def _write(parts: Sequence[tuple[str, range]], datasets: Sequence[str], made: Path) -> None:
    """A virtual file of these rows of files, one part after another."""
    import h5py

    with h5py.File(made, "w") as written:
        for name in datasets:
            sources = []
            for file, _ in parts:
                with h5py.File(file, "r", locking=False) as opened:
                    shape, kind = opened[name].shape, opened[name].dtype
                # HDF5 replaces %b in the names of sources.
                sources.append(h5py.VirtualSource(file.replace("%", "%%"), name, shape))
            rows = sum(len(stretch) for _, stretch in parts)
            layout, at = h5py.VirtualLayout((rows, *shape[1:]), kind), 0
            for source, (_, one) in zip(sources, parts, strict=True):
                layout[at : at + len(one)] = source[one.start : one.stop : one.step]
                at += len(one)
            written.create_virtual_dataset(name, layout)


def _stretches(rows: int, rank: int, count: int) -> Iterator[range]:
    """The rows of share `rank`: some stretches, spread over the file, and of what is left every `count`-th row."""
    length = rows // (count * _STRETCHES)
    left = length * count * _STRETCHES
    if length:
        for first in range(rank * length, left, count * length):
            yield range(first, first + length)
    if rest := range(left + rank, rows, count):
        yield rest
