"""Lets a process compute for a share of the time only, as on a slower machine: it is stopped and continued in turn.

The kernel's own limit (a control group's quota of processor time) counts by its tick: at 250 Hz a process at a tenth
computes for 4 ms, then stands for 36 ms, for which others of its team wait in each round; a slow machine never pauses.
"""

import contextlib
import os
import signal
import threading

PERIOD_S = 0.005


def throttle(process: int, share: float, over: threading.Event) -> None:
    """Until it is `over`, or the process is. Takes a core at once if this user may."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(process, signal.SIGSTOP)
            over.wait((1.0 - share) * PERIOD_S)
            os.kill(process, signal.SIGCONT)
            over.wait(share * PERIOD_S)
