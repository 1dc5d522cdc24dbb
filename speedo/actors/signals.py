"""Ctrl-C and SIGTERM as a wish to stop, not as an exception in the middle of something."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[list[str]]:
    """Names of the signals that asked for an end; a second Ctrl-C interrupts at once."""
    received: list[str] = []

    def on_signal(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    former = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
