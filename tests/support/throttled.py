"""Lets processes compute for a share of the time only, as on slower machines: they are stopped and continued in turn.

The kernel's own limit (a control group's quota of processor time) counts by its tick: at 250 Hz a process at a tenth
computes for some ms, then stands for 30 to 70 ms, for which others of its team wait in each round; a slow machine never
pauses.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

PERIOD_S = 0.005
LEAST = 0.2  # of a period: a slice that is shorter passes with filling the caches; so one comes in some periods only


def throttle(shares: Mapping[int, float], over: threading.Event) -> None:
    """Until it is `over`: `shares` by process. Takes a core at once if this user may.

    One begins where the one before it ends, so no more than the sum of the shares, rounded up, compute at once.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    turns, begin = list[tuple[float, int, signal.Signals, int]](), 0.0
    for process, share in shares.items():
        every = max(1, round(LEAST / share))
        end = begin + share * every
        turns.append((begin % 1, process, signal.SIGCONT, every))
        turns.append((end % 1, process, signal.SIGSTOP, every))
        begin = end
    turns.sort()
    since, number = time.monotonic(), 0
    while not over.is_set():
        number += 1
        for at, process, order, every in turns:
            if number % every and order is signal.SIGCONT:
                continue
            time.sleep(max(0.0, since + at * PERIOD_S - time.monotonic()))
            with suppress(ProcessLookupError):
                os.kill(process, order)
        since = max(since + PERIOD_S, time.monotonic() - PERIOD_S)
    for process in shares:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
