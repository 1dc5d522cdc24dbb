"""A process that lives as long as we need it, whatever happens to the terminal or the group that we were started in."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

# Those that a closed terminal, `timeout`, systemd or a shutdown send to all processes at once. Only the command itself
# answers them: it needs the others to test and export what was trained.
_SENT_TO_ALL: Final = (signal.SIGHUP, signal.SIGTERM)


def start_in_background(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that SIGTERM and SIGHUP do not end; the options are Popen's."""
    with deaf_children():
        return subprocess.Popen(command, start_new_session=True, **options)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that this thread starts in here, and all that those start, do not hear SIGTERM and SIGHUP.

    The signals are blocked, and not ignored, because a program may install a handler of its own.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
