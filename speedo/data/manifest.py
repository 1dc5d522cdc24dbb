"""`dataset.json`: the content of a dataset folder and its options. A database that it does not name is incomplete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from caffenets.files import read_bytes, written_whole
from speedo.data.base import MANIFEST, PreparedDataset, Shape
from speedo.data.database import DATA_FILE
from speedo.errors import DataError
from speedo.system.bounds import said

FORMAT: Final = 1
MOST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Database:
    """One database: `channels` names their order, `options` are what it was made with, `sources`
    the SHA-256 of the files it was made from, `sha256` that of its keys and values in order."""

    records: int
    shape: Shape | None
    channels: str
    encoded: bool
    file_bytes: int
    sha256: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0
    skipped_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean file, of which database, and its checksum."""

    file: str
    database: str
    sha256: str
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A dataset folder; `pending` names what an unfinished replacement may have left behind."""

    dataset: str
    databases: Mapping[str, Database]
    mean: Mean | None = None
    pending: tuple[str, ...] = ()

    def prepared(self, folder: Path, *, built: bool) -> PreparedDataset:
        """The folder as callers see it."""
        shapes = {database.shape for database in self.databases.values()}
        lines = [line for database in self.databases.values() for line in database.skipped_lines]
        return PreparedDataset(
            folder=folder,
            counts={name: database.records for name, database in self.databases.items()},
            shape=shapes.pop() if len(shapes) == 1 else None,
            mean=folder / self.mean.file if self.mean else None,
            built=built,
            skipped=sum(database.skipped for database in self.databases.values()),
            skipped_lines=tuple(lines),
        )

    def intact(self, folder: Path, name: str) -> bool:
        """Whether the files of one database, and of the mean made from it, are there with their
        sizes."""
        database = self.databases.get(name)
        if database is None or _size(folder / name / DATA_FILE) != database.file_bytes:
            return False
        if self.mean is None or self.mean.database != name:
            return True
        return _size(folder / self.mean.file) == self.mean.file_bytes


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None if there is none or it cannot be understood, so that it is
    made again."""
    try:
        content = read_bytes(folder / MANIFEST, MOST_BYTES)
        form = json.loads(content)["format"]
        if form != FORMAT:
            raise DataError(
                f"{folder / MANIFEST} is of format {said(form)}, "
                f"this SpeeDO writes {FORMAT}: use another folder, or the SpeeDO that wrote it"
            )
        return TypeAdapter(Manifest).validate_json(content, strict=True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest whole or not at all: it comes last, so everything that it names is
    there."""
    content = {"format": FORMAT} | asdict(manifest)
    with written_whole(folder / MANIFEST) as stream:
        stream.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
