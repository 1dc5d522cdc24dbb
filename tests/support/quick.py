"""What `make check` does otherwise: it sets `SPEEDO_QUICK`, and tries a part of the random cases."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

QUICK = os.environ.get("SPEEDO_QUICK") == "1"
PART = 3
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_started: list[str] = []


def tried(cases: int) -> int:
    """Of so many random cases, those that this run tries."""
    return max(1, cases // PART) if QUICK else cases


def watch_starts() -> None:
    """From now on `no_process_started` knows of each."""

    def started(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            _started.append(f"{event}{arguments[:2]}")

    if QUICK:
        platform.processor()  # asks `uname` once
        sys.addaudithook(started)


def no_process_started() -> None:
    """Fail if there was one since the last call, in a run of tests that start none."""
    found = _started.copy()
    _started.clear()
    assert not found, f"starts a process, and has no marker `processes`: {found}"
