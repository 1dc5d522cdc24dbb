"""Child processes that end with the measurement, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO

import psutil

FAREWELL_S = 60.0
MARK = "SPEEDO_BENCH_MARK"  # in the environment of all processes of a run
NAMES = {
    "worker": "ray::WorkerActor",
    "script": "own_loop_script.py",
    "tester": "ray::TesterActor",
    "master": "ray::MasterActor",
    "raylet": "raylet/raylet",
    "GCS": "gcs_server",
    "keeper": "ray::NodeKeeper",
    "server": "ray::ServerActor",
    "host command": "-m speedo worker",
    "command": "-m speedo train",
}


@contextmanager
def child(
    command: Sequence[str],
    *,
    log: IO[str],
    talk: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, so that Ctrl-C reaches it through us alone; gone at the end.

    It is asked to end first, and has time to stop what it started; a second Ctrl-C cuts that short.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
        stdout=subprocess.PIPE if talk else log,
        stderr=log,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield process
    finally:
        try:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(FAREWELL_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()


def processes(kind: str, mark: str) -> list[psutil.Process]:
    """The living processes of this kind in the run with this mark."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        try:
            line = " ".join(process.info["cmdline"] or [])
            if kind == "redis":  # it overwrites its environment; its parent keeps the mark
                parent = process.parent() if process.info["name"] == "redis-server" else None
                ours = parent is not None and parent.environ().get(MARK) == mark
            else:
                # A shell that starts a command again has its words, too; and a command those of its script.
                ours = NAMES[kind] in line and process.info["name"] != "sh"
                ours = ours and not (kind == "script" and " -m speedo " in line)
                ours = ours and process.environ().get(MARK) == mark
        except psutil.Error:
            continue
        if ours:
            found.append(process)
    return found


def end_by_signals() -> None:
    """Let SIGTERM and SIGHUP end us as Ctrl-C does: through every `finally`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


def last_words(log: IO[str]) -> str:
    """The last lines that a child wrote."""
    log.flush()
    with open(log.name, encoding="utf-8", errors="replace") as file:
        return " | ".join(line.strip() for line in file.readlines()[-5:]) or "it said nothing"
