"""Turns Ctrl-C, SIGTERM and SIGHUP into a request to stop, instead of an exception at an arbitrary point."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

_NAMES: Final = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
# `timeout` and some shells send a signal to the process, then to its group.
_SAME_WISH_S: Final = 0.5
_causes: list[str] = []  # why this process asks itself to stop


def ask_to_stop(cause: str = "") -> None:
    """Have `stop_signals` receive Ctrl-C; with a `cause`, which completes "stopped by", that instead of its name."""
    if cause:
        _causes.append(cause)
    os.kill(os.getpid(), signal.SIGINT)


def end_as(name: str) -> NoReturn:
    """End this command as the signal would have that `stop_signals` received under this name."""
    if name == "Ctrl-C":
        raise KeyboardInterrupt
    raise SystemExit(128 + signal.Signals[name])


@contextmanager
def stop_signals() -> Iterator[list[str]]:
    """Yields the list of signals that asked for an end so far, those of one wish once; a second Ctrl-C interrupts.

    A SIGHUP that was ignored when the program started, as under `nohup`, stays ignored.
    """
    received: list[str] = []
    first = 0.0

    def on_signal(number: int, frame: object) -> None:
        nonlocal first
        if not received:
            first = time.monotonic()
            received.append(_causes[0] if _causes else _NAMES[signal.Signals(number)])
        elif time.monotonic() > first + _SAME_WISH_S:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            received.append(_NAMES[signal.Signals(number)])

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    former = {
        number: signal.signal(number, on_signal)
        for number in _NAMES
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
