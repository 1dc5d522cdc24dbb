"""What figures depend on, in one line, and whether somebody else is computing."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.support.runs import cores

BUSY = 0.3  # cores in use before a bench begins, from which its figures are worthless
LOOK_S = 2.0


class Clock:
    """Says lines on standard error, each with the seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {line}", file=sys.stderr, flush=True)


def busy_cores(seconds: float = LOOK_S) -> float:
    """How many cores others use now; of the load average the past minutes would be a part."""

    def idle_and_all() -> tuple[int, int]:
        ticks = [int(tick) for tick in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return ticks[3] + ticks[4], sum(ticks[:8])

    before = idle_and_all()
    time.sleep(seconds)
    idle, total = (now - then for now, then in zip(idle_and_all(), before, strict=True))
    return (os.cpu_count() or 1) * (1.0 - idle / max(total, 1))


def machine(busy: float) -> str:
    """Cores, processor, versions, and how much others used before anything was started."""
    return (
        f"{cores()} cores, {_processor()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{busy:.2f} cores busy at the start"
    )


def told_busy(busy: float, say: Clock) -> None:
    """Warn, on both outputs, if figures will be worthless."""
    if busy > BUSY:
        warning = (
            f"{busy:.2f} cores were busy at the start, above {BUSY:g}: the figures are worthless."
        )
        print(f"\n{warning}", flush=True)
        say(warning)


def status_of(failures: Sequence[str]) -> int:
    """Say what failed; the status to end with."""
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def heading(module: str) -> tuple[str, Clock]:
    """The first line of a bench, command and machine; printed with a warning if it is busy."""
    busy = busy_cores()
    say = Clock()
    line = f"`{shlex.join(['python', '-m', module, *sys.argv[1:]])}`: {machine(busy)}."
    print(line, flush=True)
    told_busy(busy, say)
    return line, say


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
