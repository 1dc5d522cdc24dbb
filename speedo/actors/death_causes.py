"""Finds why a process that is not our child died: from its log, and from the kernel's out-of-memory counters."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from caffenets.files import last_bytes
from speedo.engines.native_failures import caught_fault, fatal_line, signal_hint

SCRIPTS_OWN: Final = "its script "  # begins the cause of an end that is a script's own
SILENT: Final = f"died without a message, as after SIGKILL ({signal_hint('SIGKILL')})"
_TAIL_BYTES: Final = 20_000
_WORD_BYTES: Final = 4096


def cause_in(log: Path, begin: int = 0, layer: str = "") -> str | None:
    """Caffe's FATAL line, or the signal that was caught, in what the log holds from byte `begin` on.

    `layer` is what the process noted of the layer that computed (`speedo.engines.layer_notes`).
    """
    text = last_bytes(log, _TAIL_BYTES, begin).decode("utf-8", "replace")
    fatal = fatal_line(text)
    if fatal is not None:
        return fatal
    fault = caught_fault(text)
    where = f" in {layer}" if layer else ""
    return None if fault is None else f"native code failed{where}: {fault}; see {log}"


def died_natively(log: Path) -> bool:
    """Whether the last process that wrote this log was ended by a fault in native code."""
    return caught_fault(last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace")) is not None


def size_of(log: Path) -> int:
    """Bytes that a log holds; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def memory_kills() -> int:
    """How many processes the kernel's out-of-memory killer has ended so far, on this machine or in this container."""
    total = 0
    for file in _counters():
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def silent_death(kills_before: int, log: Path) -> str:
    """The cause of a death that left nothing in its log; `kills_before` is `memory_kills()` while the process lived.

    Only what the kernel reported is stated as the cause; everything else is named as a possibility.
    """
    if memory_kills() > kills_before:
        return "killed by the kernel because memory ran out: use a smaller batch, or fewer workers on this node"
    full = _refusal(log)
    if full:
        return f"died without a message, because {log} cannot be written ({full}): make room there"
    return SILENT


def _refusal(log: Path) -> str:
    """Why nothing can be appended to the log now; empty if it can."""
    try:
        with log.open("ab", buffering=0) as file:
            end = file.tell()
            os.posix_fallocate(file.fileno(), end, _WORD_BYTES)
            os.ftruncate(file.fileno(), end)
    except OSError as error:
        return error.strerror or str(error)
    return ""


@cache
def _counters() -> tuple[Path, ...]:
    """The kernel's counters for the machine, for this process's control group (v2 or v1), for the container."""
    found = [Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                found.append(Path(f"/sys/fs/cgroup{group}/memory.events"))
            elif "memory" in controllers.split(","):
                found.append(Path(f"/sys/fs/cgroup/memory{group}/memory.oom_control"))
    return tuple(dict.fromkeys(path.resolve() for path in found))
