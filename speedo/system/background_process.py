"""Processes that no signal to our terminal or process group ends, and the shells that clean up after this process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

# Those that a closed terminal, `timeout`, systemd or a shutdown send to all processes at once. Only the command itself
# answers them: it needs the others to test and export what was trained.
_SENT_TO_ALL: Final = (signal.SIGHUP, signal.SIGTERM)
_IGNORE_SIGNALS: Final = """
umask 077
trap '' HUP INT TERM
cd /
"""
# A process that ends more slowly than ours may still put a file there while the folder is being removed.
_REMOVE_FOLDER: Final = """
cd /
tries=0
while rm -rf -- "$1" && [ ! -e "$1" ] && exit; [ $tries -lt 40 ]; do
    tries=$((tries + 1))
    sleep 0.25
done
"""


def start_keeper(
    name: str, folder: str | Path, *arguments: str, script: str = "read -r _", **options: Any
) -> subprocess.Popen[bytes]:
    """Start a shell that runs `script` and then removes `folder`; the script waits for the end of its input.

    Its input is a pipe whose writing end only this process has, so however this process ends, the kernel closes it.
    In the script `$1` is the folder, followed by the `arguments`; the options are Popen's.
    """
    return start_in_background(
        ["/bin/sh", "-c", _IGNORE_SIGNALS + script + _REMOVE_FOLDER, name, str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,
    )


def start_grandchild_keeper(name: str, folder: str | Path) -> subprocess.Popen[bytes]:
    """As `start_keeper`, by a shell that is no child of this process: a Ray actor that ends kills its children first.

    `communicate` closes its input, and returns once the folder is gone.
    """
    script = "{" + _IGNORE_SIGNALS + "read -r _" + _REMOVE_FOLDER + "} <&3 3<&- &"
    child = start_in_background(
        ["/bin/sh", "-c", "exec 3<&0\n" + script, name, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,  # the grandchild holds it until it ends
        stderr=subprocess.DEVNULL,
    )
    child.wait()
    return child


def start_in_background(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that SIGTERM and SIGHUP do not end; the options are Popen's."""
    with deaf_children():
        return subprocess.Popen(command, start_new_session=True, **options)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that this thread starts inside this context, and their children, do not receive SIGTERM and SIGHUP.

    The signals are blocked, and not ignored, because a program may install a handler.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
