"""The run directory: its file names, creating it without overwriting anything, and writing files atomically."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from caffenets.files import written_whole
from speedo.errors import HIDDEN, ConfigError
from speedo.system.json_lines import plain

# What a run leaves.
METRICS: Final = "metrics.jsonl"
CONFIG: Final = "config.yaml"
RESULT: Final = "result.json"
MODEL: Final = "model.caffemodel"
SCRIPT_MODEL: Final = "model.npz"
BEST_MODEL: Final = "best.caffemodel"
BEST: Final = "best.json"
LOG: Final = "train.log"
LOGS: Final = "logs"
CAFFE_LOG: Final = "caffe.log"
CHECKPOINTS: Final = "checkpoints"
EPOCH: Final = "epoch"
LOCK: Final = "lock"
FAILURE: Final = "failure.json"
HOSTS: Final = "hosts"  # logs of other machines, that were brought home

FILES: Final = (
    CONFIG, MODEL, SCRIPT_MODEL, BEST_MODEL, BEST, LOG, EPOCH, LOCK, CAFFE_LOG, FAILURE,
)  # fmt: skip
FOLDERS: Final = (CHECKPOINTS, LOGS)


def check_run_dir(folder: Path, snapshots: str = "") -> None:
    """Raises `ConfigError` if the directory holds a run, or a file under a name that a run would write to.

    `snapshots` is the prefix of the names of the run's snapshots; empty if it writes none.
    """
    try:
        _check(folder, snapshots)
    except OSError as error:
        raise _unfit(folder, error) from None


def create_run_dir(folder: Path, snapshots: str = "") -> Path:
    """Make an empty run directory, checked as by `check_run_dir`; raises `ConfigError` if it cannot be written."""
    check_run_dir(folder, snapshots)
    try:
        make_own_folders(folder)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, 4096)
        (folder / LOGS).mkdir(exist_ok=True)
    except OSError as error:
        raise _unfit(folder, error) from None
    return folder.resolve()


def make_own_folders(folder: Path) -> None:
    """Make the folder and its missing parents for this user alone; existing folders are not changed.

    Models, logs and options are private unless their owner changes that. Raises `OSError`.
    """
    for missing in reversed([one for one in (folder, *folder.parents) if not os.path.exists(one)]):
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # what is there and is no folder is an error


def discard_run_dir(folder: Path, *, logs: bool = False) -> None:
    """Remove what a run that never began has made here, unless a process has written a log there.

    With `logs` these go, too, if nothing was trained.
    """
    try:
        written = list((folder / LOGS).iterdir())
        if written and (not logs or (folder / METRICS).exists()):
            return
        for log in written:
            log.unlink()
        for name in (LOG, LOCK):
            (folder / name).unlink(missing_ok=True)
        (folder / LOGS).rmdir()
        folder.rmdir()
    except OSError:
        return  # it holds other things, or its disk fails, and why the run never began is what counts


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically; raises `OSError`, and leaves no partial file behind."""
    with written_whole(path) as file:
        file.write(text.encode())


def link_or_copy(file: Path, other: Path) -> None:
    """Give a file a second name, or copy it atomically where the file system has no links."""
    temporary = other.with_name(f".{other.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        try:
            os.link(file, temporary)
        except OSError:
            shutil.copyfile(file, temporary)
        temporary.replace(other)
    finally:
        temporary.unlink(missing_ok=True)  # renaming a file onto itself leaves both names


def write_config(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the configuration in the form that `--config` reads; the caller has hidden secrets. Raises `OSError`."""
    text = yaml.safe_dump(dict(values), sort_keys=False)
    if HIDDEN in text:
        why = (
            "stands for a secret, which is not kept here: name these URIs again on the command line"
        )
        text = f"# {HIDDEN} {why}.\n{text}"
    write_whole(folder / CONFIG, text)


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the result as JSON, atomically; raises `OSError`."""
    write_whole(folder / RESULT, json.dumps(plain(result), indent=2) + "\n")


def _check(folder: Path, snapshots: str) -> None:
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise ConfigError(f"run_dir {folder} is no directory; give another with --run-dir")
    for name in (METRICS, RESULT):
        if os.path.lexists(folder / name):
            raise ConfigError(
                f"run_dir {folder} already holds a run; give another, or remove that one"
            )
    found = [name for name in FILES if os.path.lexists(folder / name)]
    found += [name for name in FOLDERS if _is_taken(folder / name)]
    if snapshots:
        for kind in ("caffemodel", "solverstate"):
            found += [path.name for path in folder.glob(f"{glob.escape(snapshots)}_iter_*.{kind}*")]
    if found:
        names = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise ConfigError(
            f"run_dir {folder} holds {names}, which the run would write over; give another directory with "
            "--run-dir, or move that away"
        )


def _is_taken(place: Path) -> bool:
    """Whether there is anything other than an empty folder."""
    if not os.path.lexists(place):
        return False
    return not os.path.isdir(place) or any(place.iterdir())


def _unfit(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"run_dir {folder} cannot be written: {error.strerror}; make room there, or give another with --run-dir"
    )
