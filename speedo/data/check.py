"""Checks databases: every record, and the counts and checksums of `dataset.json`, if there is one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from speedo.data.base import MANIFEST, Progress, reported, silent
from speedo.data.database import DATA_FILE
from speedo.data.leveldb import is_leveldb
from speedo.data.manifest import Database, Manifest, read_manifest
from speedo.data.survey import Survey, as_lmdb, opened, read_records
from speedo.errors import DataError


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in one database. `problems` are sentences about the whole of it; `sha256` is over all keys and
    values in order."""

    database: Path
    survey: Survey
    sha256: str
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.problems and not self.survey.faulty


def check(path: Path, *, progress: Progress = silent) -> list[Checked]:
    """Read all records of a database, or of each database in a dataset's folder.

    Raises `DataError` if there is none, or one cannot be read.
    """
    return [_check(database, described, progress) for database, described in _databases(path)]


def _databases(path: Path) -> Iterator[tuple[Path, Database | None]]:
    if not path.is_dir() or (path / DATA_FILE).exists() or is_leveldb(path):
        manifest, name = _manifest_of(path)
        yield path, manifest.databases.get(name) if manifest else None
        return
    manifest = read_manifest(path)
    if manifest is None or not manifest.databases:
        raise DataError(
            f"{path} is neither a database nor a folder with {MANIFEST}: name the folder of an LMDB or a LevelDB"
        )
    for name, described in manifest.databases.items():
        yield path / name, described


def _manifest_of(database: Path) -> tuple[Manifest | None, str]:
    """The manifest that names this database, in one of the two folders above it."""
    whole = database.absolute()
    for folder in (whole.parent, whole.parent.parent):
        manifest, name = read_manifest(folder), whole.relative_to(folder).as_posix()
        if manifest is not None and name in manifest.databases:
            return manifest, name
    return None, ""


def _check(database: Path, described: Database | None, progress: Progress) -> Checked:
    survey, digest, problems = Survey(), hashlib.sha256(), list[str]()
    with opened(as_lmdb(database)) as transaction:
        total = transaction.stat()["entries"]
        records = read_records(database, transaction)
        for record in reported(records, total, f"reading {database.name}", progress):
            survey.add(record, decode=True)
            digest.update(record[0])
            digest.update(record[1])
    if not survey.records:
        problems.append("it holds no record")
    if len({shape[0] for shape in survey.shapes}) > 1:
        forced = " without force_color: true in transform_param" if survey.encoded else ""
        problems.append(f"its records differ in channels, which Caffe refuses{forced}")
    if any(label < 0 for label in survey.labels):
        problems.append("it has labels below 0")
    if described is not None and described.records != survey.records:
        problems.append(f"{MANIFEST} says {described.records:,} records")
    elif described is not None and described.sha256 != digest.hexdigest():
        problems.append(f"its checksum is not that of {MANIFEST}: it was changed or damaged")
    return Checked(database, survey, digest.hexdigest(), tuple(problems))
