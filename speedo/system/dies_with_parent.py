"""Runs a program that the kernel ends when the thread that started it ends: `python -m ... PARENT SIGNAL PROGRAM ...`.

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


def command(program: Sequence[str], how: signal.Signals = signal.SIGKILL) -> list[str]:
    """What starts this program so, from the calling thread; it is ended by that signal."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(int(how)), *program]


def main() -> None:
    """Become the program."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(sys.argv[2]), 0, 0, 0)
    if os.getppid() == int(sys.argv[1]):  # otherwise it has ended meanwhile
        os.execvp(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
