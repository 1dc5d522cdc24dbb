"""The journal of a master: what another one needs, besides the center, to take its place.

The master writes it right before each version of the center can be seen. On one machine these are two mapped files,
written by turns, each with length and checksum. So after a death at any instruction one of them is whole, and is that
of a version that is in the store, or of the one before. It costs no call of the system, unless an entry needs a larger
file. Where a standby on another machine may follow, it is in the run's Redis, written in one step with the version
(`speedo.storage.conditional`). It is no checkpoint: workers' solver histories are not in it.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import xxhash
from pydantic import TypeAdapter, ValidationError

from speedo.messages import Merge, Part
from speedo.run_dir.checkpoint_file import Counters
from speedo.storage.conditional import Guard
from speedo.system.json_lines import line_of, values_of

FIRST_BYTES: Final = 1 << 20  # of each file; entries of very many workers or records take more
_NAME: Final = "journal-"  # epoch and number follow
_HEAD: Final = struct.Struct("<QQ")  # length and checksum
_COUNTERS: Final = TypeAdapter(Counters)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A master's counters at a version. `merges` made it since the version that was published before.

    `merged` has the ticket of the last result of each worker that is in the center, `incarnations` those that workers
    had, `members` those that were in the run; `exchanged` are the turns and results so far. Without `whole` it takes
    what is kept beside the center (`speedo.master.kept_state`), too. `tests`: a test was under way. `records` is as in
    a checkpoint.
    """

    counters: Counters
    merges: tuple[Merge, ...] = ()
    merged: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)
    whole: bool = True
    tests: bool = False
    records: bytes = b""
    members: tuple[int, ...] = ()
    exchanged: tuple[int, int] = (0, 0)


class JournalPlace(Protocol):
    """Where a master writes its journal."""

    def write(self, line: bytes) -> None:
        """The entry of the version that is about to be published."""
        ...

    def seen(self) -> None:
        """A version of this master's can be seen: the entries of former ones are needed no more."""
        ...


class JournalFile:
    """The journal of the master of this epoch in `folder`, in shared memory.

    Without room for it there is none from then on, and `lost` is called with the error.
    """

    def __init__(self, folder: Path, epoch: int, lost: Callable[[OSError], None]) -> None:
        self._files = [folder / f"{_NAME}{epoch}-{number}" for number in range(2)]
        self._former = [path for path in folder.glob(f"{_NAME}*") if path not in self._files]
        self._lost, self._at = lost, 0
        self._memories: list[mmap.mmap] = []
        try:
            self._memories += [_mapped(path, FIRST_BYTES) for path in self._files]
        except OSError as error:
            self._lose(error)

    def write(self, line: bytes) -> None:
        """See `JournalPlace.write`: into the file that does not have the newest entry."""
        if not self._memories:
            return
        at, size = self._at, _HEAD.size + len(line)
        self._at = 1 - at
        try:
            if size > len(self._memories[at]):
                self._memories[at] = _mapped(self._files[at], 2 * size)
        except OSError as error:
            self._lose(error)
            return
        memory = self._memories[at]
        _HEAD.pack_into(memory, 0, 0, 0)
        memory[_HEAD.size : size] = line
        _HEAD.pack_into(memory, 0, len(line), xxhash.xxh3_64_intdigest(line))

    def _lose(self, error: OSError) -> None:
        """Leave no entry of an older version than those that will be seen."""
        self._memories.clear()
        for path in self._files:
            path.unlink(missing_ok=True)
        self._lost(error)

    def seen(self) -> None:
        while self._former:
            self._former.pop().unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class JournalInStore:
    """The journal of a master that has a lease: an entry is written with its version, in one step."""

    guard: Guard

    def write(self, line: bytes) -> None:
        self.guard.entry = line

    def seen(self) -> None:
        """See `JournalPlace.seen`: it has been replaced."""


class Journal:
    """Writes what another master needs to take this one's place.

    `counters`, `whole` and alike give what an entry has; `merged` and `incarnations` continue those of a
    former master."""

    def __init__(
        self,
        place: JournalPlace,
        counters: Callable[[], Counters],
        *,
        whole: Callable[[], bool] = lambda: True,
        tests: Callable[[], bool] = lambda: False,
        records: Callable[[], bytes] = bytes,
        members: Callable[[], Iterable[int]] = tuple,
        exchanged: Callable[[], tuple[int, int]] = lambda: (0, 0),
        merged: Mapping[int, int] = MappingProxyType({}),
        incarnations: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._place = place
        self._counters, self._whole = counters, whole
        self._tests, self._records = tests, records
        self._members, self._exchanged = members, exchanged
        self._merges: list[Merge] = []
        self._seen = False
        self._merged, self._incarnations = dict(merged), dict(incarnations)

    def merging(self, action: Merge) -> None:
        """This merge is about to be carried out."""
        if self._seen:
            self._place.seen()
            self._seen = False
            self._merges.clear()
        self._merges.append(action)
        for part in action.parts:
            self._merged[part.worker] = part.ticket
            self._incarnations[part.worker] = part.incarnation

    def publishing(self) -> None:
        """The present version is about to be published."""
        self._seen = True
        said: dict[str, Any] = {
            "counters": self._counters(),
            "merged": list(self._merged.items()),
            "incarnations": list(self._incarnations.items()),
            "whole": self._whole(),
            "tests": self._tests(),
            "records": self._records().decode(),
            "members": list(self._members()),
            "exchanged": self._exchanged(),
            "merges": self._merges,
        }
        self._place.write(line_of(said))


def _mapped(path: Path, size: int) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def read_journals(folder: Path) -> list[JournalEntry]:
    """The whole entries of all masters that have written in this folder, the newest first."""
    found = []
    for path in folder.glob(f"{_NAME}*"):
        with suppress(OSError):
            found.append(_entry(path.read_bytes()))
    entries = [entry for entry in found if entry is not None]
    return sorted(entries, key=lambda one: (one.counters.epoch, one.counters.version), reverse=True)


def _entry(data: bytes) -> JournalEntry | None:
    if len(data) < _HEAD.size:
        return None
    length, digest = _HEAD.unpack_from(data)
    line = data[_HEAD.size : _HEAD.size + length]
    if not length or len(line) != length or xxhash.xxh3_64_intdigest(line) != digest:
        return None
    return entry_of(line)


def entry_of(line: bytes) -> JournalEntry | None:
    """The entry that was written as this line; None if it is empty, or of another version of SpeeDO."""
    try:
        said = values_of(line)
        return JournalEntry(
            _COUNTERS.validate_json(line_of(said["counters"])),
            tuple(_merge(one) for one in said["merges"]),
            dict(said["merged"]),
            dict(said["incarnations"]),
            said["whole"],
            said["tests"],
            said["records"].encode(),
            tuple(said["members"]),
            tuple(said["exchanged"]),
        )
    except (ValueError, TypeError, LookupError, ValidationError):
        return None


def _merge(values: dict[str, Any]) -> Merge:
    return Merge(**{**values, "parts": tuple(map(_part, values["parts"])), "timings": ()})


def _part(values: dict[str, Any]) -> Part:
    losses = tuple(map(_number, values["losses"]))
    records = tuple(map(tuple, values["records"]))
    return Part(**{**values, "loss": _number(values["loss"]), "losses": losses, "records": records})


def _number(value: float | None) -> float:
    return math.nan if value is None else value
