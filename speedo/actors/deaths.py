"""Why a process died that is not our child, from what it left: its last words, and the kernel's counters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from speedo.engines.fatal import fatal_line

_COUNTERS: Final = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_TAIL_BYTES: Final = 20_000
# Python's fault handler, and Ray's, name the signal that they caught; nobody catches signal 9.
_CAUGHT: Final = re.compile(r"^Fatal Python error: (.+)$|^\*\*\* (SIG\w+) received", re.MULTILINE)


def cause_in(log: Path, begin: int = 0) -> str | None:
    """Caffe's FATAL line, or the signal that was caught, in what the log holds from byte `begin` on."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(begin, end - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    fatal = fatal_line(text)
    if fatal is not None:
        return fatal
    caught = _CAUGHT.findall(text)
    return f"native code failed: {caught[-1][0] or caught[-1][1]}; see {log}" if caught else None


def size_of(log: Path) -> int:
    """Bytes that a log holds; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def memory_kills() -> int:
    """How many processes the kernel has ended so far because memory ran out, on this machine or in this container."""
    total = 0
    for file in _COUNTERS:
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def silent_death(kills_before: int) -> str:
    """The cause of a death without a word; `kills_before` is `memory_kills()` of earlier."""
    if memory_kills() > kills_before:
        return "killed because memory ran out: use a smaller batch, or fewer workers on this node"
    return "killed by signal 9 (out of memory?)"
