"""Between a worker's actor and the script that is its child: a unix socket in the worker's private folder.

The script gets its place, says what it trains, and is told where its turns come from. Later it asks for records, and
says when it has done its part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speedo.leases.lease import Lease, LeaseRequest, NoLease
from speedo.master.slots import Assignment
from speedo.run.settings import RunSettings
from speedo.vectors.vector import Blob

VARIABLE: Final = "SPEEDO_WORKER"  # the worker's folder
SOCKET: Final = "script"


@contextmanager
def address_in(folder: str | Path) -> Iterator[str]:
    """The address of the socket in that folder: short, however long the folder's name is."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{place}/{SOCKET}"
    finally:
        os.close(place)


@dataclass(frozen=True, slots=True)
class Start:
    """To the script: its place in the run."""

    settings: RunSettings
    place: Assignment
    in_rounds: bool  # whether all workers' steps are merged at once, as one batch


@dataclass(frozen=True, slots=True)
class Hello:
    """Of the script: what it trains, whose first weights lie in the store; `batch` is the records of one step."""

    blobs: tuple[Blob, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class Serve:
    """To the script: its turns come from the channel in this folder."""

    folder: str


@dataclass(frozen=True, slots=True)
class Done:
    """Of the script: it trains no more, though it may go on with other work."""


@dataclass(frozen=True, slots=True)
class Meet:
    """Of the script: it is at its first collective, or waits in one. Workers of one `place` share memory."""

    place: str


@dataclass(frozen=True, slots=True)
class Met:
    """To the script: the places of all workers, once all have come; or whose end has `broken` their collectives."""

    places: tuple[str, ...]
    broken: str = ""


@dataclass(frozen=True, slots=True)
class RunOver:
    """To the script: the run is over, and this version of the center is what it came to."""

    version: int


@dataclass(frozen=True, slots=True)
class Failed:
    """To the script: why what it asked for cannot be."""

    problem: str


FromScript = Hello | LeaseRequest | Meet | Done
ToScript = Start | Serve | Met | RunOver | Failed | Lease | NoLease
