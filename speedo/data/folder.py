"""Builds a dataset folder completely or not at all, in one process at a time.

All files are written into a hidden folder beside the target and renamed at the end. A new target appears in one
rename. Databases that are added to an existing target are renamed one by one, and the manifest last: only what the
manifest names is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from caffenets.files import sync_folder
from speedo.data.base import COMMAND, MANIFEST, MEAN_FILE, PreparedDataset
from speedo.data.lock import locked
from speedo.data.manifest import Database, Manifest, Mean, read_manifest, write_manifest
from speedo.errors import DataError

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Options = Mapping[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """The dataset wanted in a folder, and the options of each of its databases.

    `alone` says that the databases are the whole dataset, not some among others.
    """

    dataset: str
    databases: Mapping[str, Options]
    alone: bool = True


@dataclass(frozen=True, slots=True)
class Built:
    """What a builder left in the staging folder; `files` are further ones that all databases share."""

    databases: Mapping[str, Database]
    mean: Mean | None
    files: tuple[str, ...] = ()


def prepare_folder(
    folder: Path,
    request: DatasetRequest,
    build: Callable[[Path], Built],
    *,
    force: bool = False,
) -> PreparedDataset:
    """Return the folder if it is complete, otherwise `build` it in a staging folder and publish
    that.

    Raises DataError: the folder was made with other options, holds what is not ours, is locked for
    longer than `LOCK_WAIT_SECONDS`, or cannot be written.
    """
    folder = Path(os.path.expanduser(folder)).absolute()
    if not force and (found := _complete(folder, request)):
        return found.prepared(folder, built=False)
    with errors_named(folder):
        _refuse_file(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            # The process that held the lock before may have made what we came for.
            if not force and (found := _complete(folder, request)):
                return found.prepared(folder, built=False)
            _refuse_foreign(folder, request, force)
            with _staging(folder) as staging:
                built = build(staging)
                return _publish(staging, folder, request, built).prepared(folder, built=True)


def replace_folder(
    folder: Path,
    dataset: str,
    build: Callable[[Path], Result],
    *,
    force: bool = False,
) -> Result:
    """Let `build` make a new folder in a staging folder, which then gets its name as a whole; returns its answer.

    Raises DataError: the folder is there and not empty, unless it holds the same kind of `dataset` and `force` is
    given; and as `prepare_folder`.
    """
    folder = Path(os.path.expanduser(folder)).absolute()
    with errors_named(folder, "as the argument"):
        _refuse_file(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            there = folder.exists() and any(folder.iterdir())
            former = read_manifest(folder) if there else None
            if there and (former is None or former.dataset != dataset):
                raise DataError(
                    f"{folder} is there, and was not made by `{COMMAND} {dataset}`: use another folder"
                )
            if there and not force:
                raise DataError(f"{folder} is there: use another folder, or --force to replace it")
            with _staging(folder) as staging:
                result = build(staging)
                if there:
                    folder.rename(staging.with_name("old"))
                staging.rename(folder)
                sync_folder(folder.parent)
                return result


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file that its manifest names."""
    manifest = read_manifest(folder)
    return (
        manifest is not None
        and not manifest.pending
        and all(manifest.intact(folder, name) for name in manifest.databases)
    )


def _complete(folder: Path, request: DatasetRequest) -> Manifest | None:
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    if manifest.dataset != request.dataset:
        raise DataError(
            f"{folder} holds the dataset {manifest.dataset}, not {request.dataset}: "
            "use another folder"
        )
    for name, options in request.databases.items():
        if not manifest.intact(folder, name):
            return None
        made_with = dict(manifest.databases[name].options)
        if made_with != dict(options):
            differing = sorted(
                key
                for key in made_with.keys() | options.keys()
                if made_with.get(key) != options.get(key)
            )
            told = ", ".join(
                f"{key} {made_with.get(key)}, not {options.get(key)}" for key in differing
            )
            raise DataError(
                f"{folder / name} was prepared with {told}: use another folder, "
                "or --force to replace it"
            )
    return manifest


def _refuse_file(folder: Path) -> None:
    if not folder.name:
        raise DataError(f"{folder} cannot be a dataset's folder: name one in it")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise DataError(f"{folder} is a file: name a folder")


def _refuse_foreign(folder: Path, request: DatasetRequest, force: bool) -> None:
    """Raise if something stands where a database or mean file shall go and we did not write it."""
    _refuse_file(folder)
    manifest = read_manifest(folder)
    ours = {*manifest.databases, *manifest.pending} if manifest else set()
    if manifest and manifest.mean:
        ours.add(manifest.mean.file)
    for name in (*request.databases, MEAN_FILE):
        if (folder / name).exists() and name not in ours and not force:
            raise DataError(
                f"{folder / name} is there but {MANIFEST} does not name it: move it away, "
                "use another folder, or --force to replace it"
            )


def _publish(staging: Path, folder: Path, request: DatasetRequest, built: Built) -> Manifest:
    whole = Manifest(request.dataset, built.databases, built.mean)
    old = read_manifest(folder)
    if not folder.exists() or not any(folder.iterdir()):
        write_manifest(staging, whole)
        staging.rename(folder)
        sync_folder(folder.parent)
        return whole
    entries = [*built.databases, *([built.mean.file] if built.mean else []), *built.files]
    kept = {
        name: database
        for name, database in (old.databases if old and not request.alone else {}).items()
        if name not in built.databases
    }
    kept_mean = old.mean if old and old.mean and old.mean.database in kept else None
    # From here to the last line a reader of the manifest finds that these entries are not done.
    write_manifest(folder, Manifest(request.dataset, kept, kept_mean, pending=tuple(entries)))
    if old and old.mean and not kept_mean:
        # The mean of a database that goes must go too, even if no other takes its place.
        _move(folder / old.mean.file, staging / f"old-{old.mean.file}")
    for entry in entries:
        _move(folder / entry, staging / f"old-{entry}")
        (staging / entry).rename(folder / entry)
    sync_folder(folder)
    merged = replace(whole, databases=kept | dict(built.databases), mean=built.mean or kept_mean)
    write_manifest(folder, merged)
    return merged


def _move(path: Path, target: Path) -> None:
    if path.exists():
        path.rename(target)


@contextlib.contextmanager
def errors_named(folder: Path, how: str = "with SPEEDO_DATA or as the argument") -> Iterator[None]:
    """Turn errors of LMDB and of the disk into DataError; `how` says how to choose another folder."""
    try:
        yield
    except lmdb.DiskError as error:
        raise _no_space(folder, how) from error
    except lmdb.Error as error:
        raise DataError(f"LMDB could not write {folder}: {error}") from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _no_space(folder, how) from error
        raise DataError(
            f"{folder} could not be prepared: {error.strerror or error} "
            f"({error.filename or folder}): choose a folder that can be written, {how}"
        ) from error


def _no_space(folder: Path, how: str) -> DataError:
    free = ""
    with contextlib.suppress(OSError):
        free = f" ({shutil.disk_usage(folder.parent).free >> 20} MiB free now)"
    return DataError(
        f"no space is left for {folder}{free}: free some, or choose another disk "
        f"{how}; nothing half-written was kept"
    )


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A new folder beside it, for all who may read its parent; the one around it goes at the end, and hides it.

    What killed preparations left goes first: the caller holds the lock, so nobody is using it.
    """
    prefix = f".{folder.name}.partial-"
    for entry in folder.parent.iterdir():
        if entry.name.startswith(prefix):
            shutil.rmtree(entry, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True
    ) as hidden:
        staging = Path(hidden) / "new"
        staging.mkdir()
        yield staging
