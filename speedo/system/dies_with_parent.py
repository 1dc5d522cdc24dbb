"""Runs a program that the kernel ends when the thread that started it ends: `python -m ... PARENT PROGRAM ARGUMENT...`.

Linux: prctl(2), PR_SET_PDEATHSIG, which stays over exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_SET_DEATH_SIGNAL: Final = 1  # linux/prctl.h


def command(program: Sequence[str]) -> list[str]:
    """What starts this program so, from the calling thread."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), *program]


def main() -> None:
    """Become the program."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(sys.argv[1]):  # otherwise it has ended meanwhile
        os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
