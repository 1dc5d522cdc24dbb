"""Real disks that are small, full or read-only, for tests."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of this size in a folder; only root can make one."""
    if os.geteuid() != 0:
        told = "FULL DISKS ARE NOT TRIED: mounting a small one needs root"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    folder.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whoever opens anything below the folder from now on finds it read-only; what is open stays as it was."""
    mount("--bind", str(folder), str(folder))
    try:
        mount("-o", "remount,ro,bind", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path, name: str = "somebody's file") -> Path:
    """Take the last byte of the disk that the folder lies on; the file that holds them."""
    file = folder / name
    with file.open("wb", buffering=0) as taker:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    taker.write(bytes(size))
    return file


def has_room(error: OSError) -> None:
    """For what is called where there is none."""
    raise error


def is_full(folder: Path) -> bool:
    try:
        with (folder / "probe").open("wb", buffering=0) as probe:
            probe.write(b"1")
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        (folder / "probe").unlink(missing_ok=True)
    return False
