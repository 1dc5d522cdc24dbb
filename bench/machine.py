"""What figures depend on, in one line, and whether somebody else is computing."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from pathlib import Path

import numpy as np

from bench.runs import cores

BUSY = 1.0  # load average from which figures are worthless


class Clock:
    """Says lines on standard error, each with the seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {line}", file=sys.stderr, flush=True)


def machine(load: float) -> str:
    """Cores, processor, versions and the load average before anything was started."""
    return (
        f"{cores()} cores, {_processor()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"load average {load:.2f} at the start"
    )


def told_busy(load: float, say: Clock) -> None:
    """Warn, on both outputs, if figures will be worthless."""
    if load > BUSY:
        warning = f"The load average was {load:.2f}, above {BUSY:g}: the machine was busy, the figures are worthless."
        print(f"\n{warning}", flush=True)
        say(warning)


def heading(module: str) -> tuple[str, Clock]:
    """The first line of a bench, command and machine; printed with a warning if it is busy."""
    load = os.getloadavg()[0]
    say = Clock()
    line = f"`{shlex.join(['python', '-m', module, *sys.argv[1:]])}`: {machine(load)}."
    print(line, flush=True)
    told_busy(load, say)
    return line, say


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
