"""What a dead Caffe leaves behind, as one sentence.

A native CHECK that fails writes a glog FATAL line to file descriptor 2 and aborts the process: no
Python exception, no cleanup. So whoever runs Caffe keeps descriptor 2 in a file, and whoever finds
it dead reads it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

# "F1121 12:00:00.123456 4711 net.cpp:12] text"; since glog 0.6 the date carries the year.
_FATAL: Final = re.compile(r"^F\d{4,8} [\d:.]+\s+\d+ (?P<where>[^\]]+)\] ?(?P<text>.*)$")
_LOG_LINE: Final = re.compile(r"^[IWEF]\d{4,8} [\d:.]+\s+\d+ ")
_SIGNALS: Final = {
    signal.SIGKILL: "perhaps out of memory: use a smaller batch or fewer workers on this node",
    signal.SIGSEGV: "a segmentation fault in native code: a native layer or library is at fault",
    signal.SIGABRT: "native code gave up: its last words are in the worker's stderr file",
    signal.SIGBUS: "a bus error: the disk or shared memory is full, or a mapped file was cut short",
    signal.SIGILL: "an illegal instruction: Caffe or its BLAS was built for another processor",
    signal.SIGFPE: "an arithmetic fault in native code, such as an integer division by zero",
    signal.SIGTERM: "someone or something asked it to stop",
}


def capture_stderr(path: Path) -> int:
    """Append file descriptor 2 of this process to `path`; returns a duplicate of the former one."""
    sys.stderr.flush()
    former = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 2)
    os.close(target)
    return former


def restore_stderr(former: int) -> None:
    """Undo `capture_stderr`."""
    sys.stderr.flush()
    os.dup2(former, 2)
    os.close(former)


def fatal_line(text: str) -> str | None:
    """The last FATAL message of glog in `text` as one sentence, or None if there is none."""
    found: str | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = _FATAL.match(line)
        if match is None:
            continue
        message = [match["text"]]
        for following in lines[number + 1 :]:
            if following.startswith("***") or _LOG_LINE.match(following) or not following.strip():
                break
            message.append(following.strip())
        found = f"Caffe stopped at {match['where']}: {' '.join(message).strip()}"
    return found


def describe_exit(returncode: int) -> str:
    """How a process ended; negative codes are signals, as `subprocess` gives them."""
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        number = signal.Signals(-returncode)
    except ValueError:
        return f"killed by signal {-returncode}"
    hint = _SIGNALS.get(number)
    return f"killed by {number.name}" + (f" ({hint})" if hint else "")


def describe_death(stderr: str, returncode: int | None = None) -> str:
    """The best sentence that the remains allow: Caffe's FATAL line, else how it ended."""
    fatal = fatal_line(stderr)
    if fatal is not None:
        return fatal
    words = [line.strip() for line in stderr.splitlines() if line.strip()]
    end = describe_exit(returncode) if returncode is not None else "ended without a word"
    return f"{end}; its last line was: {words[-1]}" if words else end


def describe_exception(error: BaseException) -> str:
    """The traceback's last line, with the place in the file that raised it."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{last} ({frames[-1].filename}:{frames[-1].lineno})" if frames else last
