"""How much memory processes here can still allocate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
# Limit, use, and in memory.stat the files that the kernel drops first: of cgroup v2 and of v1.
_V2: Final = ("memory.max", "memory.current", "inactive_file")
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Bytes of memory that processes here can still allocate: the machine's, or less if a cgroup around has a limit.

    `cgroups` is where they are mounted, `own` says which one this process is in.
    """
    free = int(psutil.virtual_memory().available)
    for folder, names in _groups(cgroups, own):
        free = min(free, _left(folder, *names))
    return free


def _groups(cgroups: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """This process's cgroup and those around it, as far as they are mounted here."""
    for line in _lines(own):
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, names = (cgroups / "memory", _V1) if controllers else (cgroups, _V2)
        folder = base / place.lstrip("/")
        yield from ((one, names) for one in (folder, *folder.parents) if one.is_relative_to(base))


def _left(folder: Path, most: str, used: str, dropped: str) -> int:
    limit, taken = _words(folder / most), _words(folder / used)
    if not (limit and taken and limit[0].isdigit() and taken[0].isdigit()):
        return sys.maxsize
    words = _words(folder / "memory.stat")
    files = dict(zip(words[::2], words[1::2], strict=False)).get(dropped, "0")
    return max(int(limit[0]) - int(taken[0]) + int(files), 0)


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
