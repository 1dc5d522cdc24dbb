"""Converts a LevelDB into an LMDB once, because only one process at a time can open a LevelDB and a run has several.

The conversion is kept in the user's cache folder, named after the database, its path and the state of its files: a
database that changed is converted again. It is written into a temporary folder and renamed, so an incomplete one is
never used. LevelDB writes into a database even to read it, so the database is opened through links in a temporary
folder and is never changed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from speedo.data.base import PROGRESS_RECORDS, Progress, silent
from speedo.data.database import DATA_FILE, Record, Written, write_database
from speedo.data.folder import errors_named
from speedo.data.lock import locked
from speedo.data.roots import CACHE_VARIABLE, cache_root
from speedo.errors import DataError
from speedo.system.remedies import install_extra

ORIGIN: Final = "converted-from.json"
_TABLES: Final = (".ldb", ".sst")
_LONGEST_KEY: Final = 511  # bytes that LMDB takes
_UNUSED_S: Final = 30 * 86400.0  # after which a conversion makes room
# The same for one whose database has changed since: a run may still read it.
_OUTDATED_S: Final = 86400.0
_REMEDY: Final = "create it again, or give an LMDB"


class _LongKeyError(Exception):
    """A key that LMDB would not take."""


def is_leveldb(folder: Path) -> bool:
    """Whether a LevelDB is there."""
    return (folder / "CURRENT").is_file()


def converted(database: Path, note: Callable[[str], None] = lambda line: None) -> Path:
    """The folder of an LMDB with this LevelDB's records, made now unless it was before.

    Raises DataError: the database is damaged or being written, or there is no room or no right to write.
    """
    database = database.resolve()
    if not is_leveldb(database):
        raise DataError(
            f"{database} is not a LevelDB: correct source or backend, or create it again"
        )
    place = cache_root() / "leveldb"
    state = state_of(database)
    path_digest = hashlib.sha256(os.fsencode(database)).hexdigest()[:12]
    digest = hashlib.sha256(json.dumps([str(database), state]).encode()).hexdigest()[:16]
    folder = place / f"{database.name}-{path_digest}-{digest}"
    if _is_whole(folder):
        return folder
    with errors_named(folder, f"with {CACHE_VARIABLE}"):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(place / f"{database.name}-{path_digest}"):
            if _is_whole(folder):  # the process that held the lock before came for the same
                return folder
            _make_room(place, path_digest)
            size = sum(bytes_ for _, bytes_, *_ in state)
            _check_room(place, database, size)
            note(
                f"converting {database} ({size / 1e6:,.0f} MB) from LevelDB, which only one process can open, to "
                f"an LMDB in {place}; this is done once"
            )
            with tempfile.TemporaryDirectory(
                prefix=f".partial-{path_digest}-", dir=place, ignore_cleanup_errors=True
            ) as staging:
                made = Path(staging) / "lmdb"
                count = write_copy(database, made, Path(staging) / "links").records
                if not count:
                    raise DataError(f"{database} holds no record: {_REMEDY}")
                if state_of(database) != state:
                    raise DataError(
                        f"{database} changed while it was converted: wait until it is complete, then start again"
                    )
                origin = {"source": str(database), "records": count,
                          "file_bytes": (made / DATA_FILE).stat().st_size}  # fmt: skip
                (made / ORIGIN).write_text(json.dumps(origin) + "\n", encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    return folder


def state_of(database: Path) -> list[tuple[str, int, int, int]]:
    """Name, size, time and inode of every file that holds records or lists the files that do."""
    state = []
    try:
        for file in sorted(database.iterdir()):
            if _holds_records(file):
                found = file.stat()
                state.append((file.name, found.st_size, found.st_mtime_ns, found.st_ino))
    except OSError as error:
        raise DataError(
            f"{error.filename or database} cannot be read: {error.strerror}; correct its rights, or wait until "
            "the database is complete"
        ) from error
    return state


def _holds_records(file: Path) -> bool:
    named = file.name == "CURRENT" or file.name.startswith("MANIFEST-")
    return named or file.suffix in (*_TABLES, ".log")


def _is_whole(folder: Path) -> bool:
    """Whether a complete conversion exists; marks it as in use."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        if (folder / DATA_FILE).stat().st_size != origin["file_bytes"]:
            return False
        with contextlib.suppress(OSError):
            os.utime(folder)
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make_room(place: Path, path_digest: str) -> None:
    """Remove what killed conversions of this database left, and conversions that nobody uses any more."""
    os.utime(place)
    now = place.stat().st_mtime  # by the clock that the entries' times are from
    for entry in place.iterdir():
        with contextlib.suppress(OSError):
            age = now - entry.stat().st_mtime
            partial = entry.name.startswith(f".partial-{path_digest}-")
            outdated = f"-{path_digest}-" in entry.name and age > _OUTDATED_S
            if entry.is_dir() and (partial or outdated or age > _UNUSED_S):
                shutil.rmtree(entry, ignore_errors=True)


def _check_room(place: Path, database: Path, size: int) -> None:
    free = shutil.disk_usage(place).free
    if size > free:  # at the least: LevelDB compresses
        raise DataError(
            f"{place} has {free >> 20} MiB free, and {database}, which has {size >> 20} MiB, is to be converted "
            f"there: free some, or name a folder on another disk with {CACHE_VARIABLE}"
        )


def write_copy(database: Path, folder: Path, links: Path, progress: Progress = silent) -> Written:
    """Write all records of a LevelDB into a new LMDB `folder`, in their order and under their keys.

    Keys that LMDB would not take are numbered, all of them. `links` is a new folder for LevelDB to write in.
    """
    links.mkdir()
    for file in database.iterdir():
        if file.suffix in _TABLES:
            # LevelDB writes tables as .ldb and reads .sst too: what it writes never goes through a link.
            (links / file.with_suffix(".sst").name).symlink_to(file)
        elif _holds_records(file):  # to which LevelDB still writes
            shutil.copyfile(file, links / file.name)

    def records(*, numbered: bool) -> Iterator[Record]:
        for done, record in enumerate(_records(database, links, numbered=numbered), 1):
            if done % PROGRESS_RECORDS == 0:
                progress(done, 0, "reading records")  # LevelDB does not say how many there are
            yield record

    try:
        return write_database(folder, records(numbered=False))
    except _LongKeyError:
        shutil.rmtree(folder)
        return write_database(folder, records(numbered=True))


def _records(database: Path, links: Path, *, numbered: bool) -> Iterator[Record]:
    try:
        import plyvel
    except ImportError as error:  # it has no wheel for Python 3.13
        raise DataError(
            f"{database} is a LevelDB, and the package that reads it is not here ({error}): install it with "
            f"{install_extra('leveldb')}, or convert the database to LMDB on another machine (speedo data convert)"
        ) from None
    try:
        with contextlib.closing(
            plyvel.DB(str(links), create_if_missing=False, paranoid_checks=True, max_open_files=100)
        ) as opened:
            for index, (key, value) in enumerate(
                opened.iterator(verify_checksums=True, fill_cache=False)
            ):
                if numbered:
                    yield b"%012d_" % index + key[-400:], value
                elif 0 < len(key) <= _LONGEST_KEY:
                    yield key, value
                else:
                    raise _LongKeyError
    except plyvel.Error as error:
        said = str(error).replace(str(links), str(database))
        if os.strerror(errno.ENOSPC) in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise DataError(f"{database} cannot be read as LevelDB ({said}): {_REMEDY}") from error
