"""The types of this package: a sample, a prepared dataset, a progress callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

# How the command line calls this package; error messages send the reader there.
COMMAND: Final = "speedo data"
MANIFEST: Final = "dataset.json"
MEAN_FILE: Final = "mean.binaryproto"
TRAIN_DATABASE: Final = "train_lmdb"
TEST_DATABASE: Final = "test_lmdb"

# Between two calls of a progress callback.
PROGRESS_RECORDS: Final = 5000

Shape = tuple[int, int, int]
"""Channels, height, width: the order in which Caffe holds an image."""

Progress = Callable[[int, int, str], None]
"""Called with the number done, the number in all, and what is being done."""

Item = TypeVar("Item")


def silent(done: int, total: int, what: str) -> None:
    """Report nothing."""


def reported(records: Iterable[Item], total: int, what: str, progress: Progress) -> Iterator[Item]:
    """These records, `total` of them, with a report before every so many and before the last."""
    for done, record in enumerate(records, 1):
        if done % PROGRESS_RECORDS == 0 or done == total:
            progress(done, total, what)
        yield record


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    """A dataset folder that is complete.

    `counts` gives the records of each database; `shape` is None where images differ in size;
    `built` is False if the folder was found complete. Of the lines that were skipped,
    `skipped_lines` shows the first few. `notes` are sentences about what its user may not expect, if it was built now.
    """

    folder: Path
    counts: Mapping[str, int]
    shape: Shape | None
    mean: Path | None
    built: bool
    skipped: int = 0
    skipped_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
