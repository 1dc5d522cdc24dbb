"""Turns what an aborted Caffe wrote into one sentence.

A native CHECK that fails writes a glog FATAL line to file descriptor 2 and aborts the process: no Python exception,
no cleanup. So a process that runs Caffe redirects descriptor 2 to a file, and its parent reads that file after an
abort.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import sys
import traceback
from contextlib import suppress
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

# "F1121 12:00:00.123456 4711 net.cpp:12] text"; since glog 0.6 the date carries the year.
_FATAL: Final = re.compile(r"^F\d{4,8} [\d:.]+\s+\d+ (?P<where>[^\]]+)\] ?(?P<text>.*)$")
_LOG_LINE: Final = re.compile(r"^[IWEF]\d{4,8} [\d:.]+\s+\d+ ")
# Caffe: util/io.cpp. Before it aborts over an image of a record, which it does not name.
_UNDECODED: Final = re.compile(r"\] Could not (?:decode datum|open or find file)")
LAST_WORDS_BYTES: Final = 64 << 10
# Python's fault handler, and Ray's, name the signal that they caught; nobody catches signal 9.
_CAUGHT: Final = re.compile(r"^Fatal Python error: (.+)$|^\*\*\* (SIG\w+) received", re.MULTILINE)
# Of Python's fault handler (CPython: Modules/faulthandler.c); Ray says the name itself.
_FAULTS: Final = {
    "Bus error": "SIGBUS",
    "Segmentation fault": "SIGSEGV",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}
_FRAME: Final = re.compile(r'^\s*File "([^"]+)", line (\d+),? in (\S+)$')
_STACK: Final = re.compile(
    r'^(?:Current thread|Thread) 0x|^\s+File ".*", line \d+ in |^\s+<no Python frame>'
)
_TRACEBACK: Final = "Traceback (most recent call last):"
ENDED: Final = "speedo: ended by its host: "  # last in the log of who hangs, behind the stacks
_CURRENT: Final = "Current thread "  # its main one, if Python can answer the signal
STACK_SIGNAL: Final = signal.SIGUSR2  # to it our processes answer with their stacks, in their logs
_KEEP_SIZE: Final = 1  # linux/falloc.h: FALLOC_FL_KEEP_SIZE
_SIGNALS: Final = {
    signal.SIGKILL: "possible causes: a manual kill, a batch system, lack of memory",
    signal.SIGSEGV: "a segmentation fault in native code: a native layer or library is at fault",
    signal.SIGABRT: "native code aborted: its last output is in the worker's stderr file",
    signal.SIGBUS: "a bus error; possible causes: a full disk or full shared memory under a mapped file, or "
    "a mapped file that was cut short",
    signal.SIGILL: "an illegal instruction: Caffe or its BLAS was built for another processor",
    signal.SIGFPE: "an arithmetic fault in native code, such as an integer division by zero",
    signal.SIGTERM: "another process asked it to stop",
}


def capture_stderr(path: Path) -> int:
    """Append file descriptor 2 of this process to `path`; returns a duplicate of the former one.

    Room for last words is set aside, in case that the disk is full when they come. Where there is none the
    descriptor stays as it was, and from now on what Python prints there raises nothing for the disk's sake.
    `STACK_SIGNAL` has every thread's stack written there, also of a process that hangs in native code.
    """
    sys.stderr.flush()
    former = os.dup(2)
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        print(f"{path} cannot be written: {error.strerror}", file=sys.stderr)
    else:
        os.dup2(target, 2)
        os.close(target)
        _set_aside(2)
    sys.stderr = TextIOWrapper(
        cast(BinaryIO, _Patient(2, "wb", closefd=False)),
        line_buffering=True,
        errors="backslashreplace",
    )
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    return former


class _Patient(FileIO):
    """A file that takes everything; what the disk refuses is lost."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _set_aside(descriptor: int) -> None:
    """Keep blocks of the disk behind the end of this file, where the file system can."""
    end = os.fstat(descriptor).st_size
    with suppress(AttributeError, OSError):
        allocate = ctypes.CDLL(None, use_errno=True).fallocate64
        allocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        allocate(descriptor, _KEEP_SIZE, end, LAST_WORDS_BYTES)


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
        if any(_UNDECODED.search(before) for before in lines[max(0, number - 3) : number]):
            found += " (an image cannot be decoded; of a database `speedo data check` names it)"
    return found


def is_about_image(text: str) -> bool:
    """Whether Caffe says in this that it could not decode an image."""
    return _UNDECODED.search(text) is not None


def caught_fault(text: str) -> str | None:
    """The fault that was caught last, with its possible causes: `SIGSEGV (...)`; None if there was none."""
    caught = _CAUGHT.findall(text)
    if not caught:
        return None
    fault = caught[-1][0] or caught[-1][1]
    name = _FAULTS.get(fault, fault)
    hint = signal_hint(name)
    return f"{name} ({hint})" if hint else fault


def last_words(text: str) -> str:
    """What a process has written last that says why it ended: Caffe's FATAL line; the signal that it caught, and where
    Python was; an exception with its place; else its last line. Empty if it has written nothing.
    """
    fatal = fatal_line(text)
    if fatal is not None:
        return fatal
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if (fault := caught_fault(text)) is not None:
        begin = max(at for at, line in enumerate(lines) if _CAUGHT.match(line))
        frames = filter(None, map(_FRAME.match, lines[begin:]))
        innermost = next(frames, None)
        return f"{fault}{_place(innermost)}"
    if _TRACEBACK in (line.strip() for line in lines):
        begin = max(at for at, line in enumerate(lines) if line.strip() == _TRACEBACK)
        found = [match for line in lines[begin:] if (match := _FRAME.match(line))]
        raised = next((line for line in lines[begin + 1 :] if not line[0].isspace()), "")
        if raised:
            return f"{raised}{_place(found[-1] if found else None)}"
    said = [line for line in lines if not _STACK.match(line)]  # stacks that somebody asked for
    last = said[-1].strip() if said else ""
    if not last.startswith(ENDED):
        return last
    ours = [at for at, line in enumerate(lines) if line.startswith(_CURRENT)]
    stack = map(_FRAME.match, lines[ours[-1] :] if ours else ())
    return last + _place(next(filter(None, stack), None))


def _place(frame: re.Match[str] | None) -> str:
    return "" if frame is None else f" ({frame[1]}:{frame[2]}, in {frame[3]})"


def signal_hint(name: str) -> str:
    """What a signal of this name means or may come from; empty if nothing is known of it."""
    number = getattr(signal, name, None)
    return _SIGNALS.get(number, "") if isinstance(number, signal.Signals) else ""


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
    end = describe_exit(returncode) if returncode is not None else "ended without a message"
    return f"{end}; its last line was: {words[-1]}" if words else end


def describe_exception(error: BaseException) -> str:
    """The traceback's last line, with the place in the file that raised it."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{last} ({frames[-1].filename}:{frames[-1].lineno})" if frames else last
