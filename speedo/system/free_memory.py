"""How much memory processes here can still allocate."""

from __future__ import annotations

from pathlib import Path

import psutil


def free_memory() -> int:
    """Bytes of memory that processes here can still allocate: the machine's, or less if the container has a limit."""
    free = int(psutil.virtual_memory().available)
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):  # fmt: skip
        limit, taken = _words(most), _words(used)
        if limit and taken and limit[0].isdigit() and taken[0].isdigit():
            free = min(free, max(int(limit[0]) - int(taken[0]), 0))
    return free


def _words(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="ascii").split()
    except OSError:
        return []
