"""Commands as forks, seen as `subprocess.Popen` shows them."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import IO, Final

import psutil

from tests.support.commands import scaled
from tests.support.forked import interpreter
from tests.support.forked.interpreter import ROOT
from tests.support.forked.server import PADDING, Order, ask, status_of
from tests.support.left_behind import MARK, short_folder

START_S: Final = 120.0
LOOK_S: Final = 0.5
DEATHS: Final = 6000  # characters
_FOLDER: Final = "SPEEDO_TEST_FORKS"


def share_a_server() -> None:
    """Of this process and the test processes that it starts, whichever needs the server first starts it."""
    folder = short_folder("sf-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "owner").write_text(f"{os.getpid()} {os.environ[MARK]}")
    os.environ[_FOLDER] = str(folder)


def server() -> str:
    """Where it listens; it ends with the process that has called `share_a_server`."""
    folder = Path(os.environ[_FOLDER])
    at = folder / "forks"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(map(_is_there, server_process())):
            at.unlink(missing_ok=True)
            _start(at)
    return str(at)


def _start(at: Path) -> None:
    owner, mark = at.with_name("owner").read_text().split()
    padding = {"SPEEDO_PADDING": "x" * PADDING}
    with at.with_name("log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked.server", str(at), owner, "x" * PADDING],
            env={**padding, **os.environ, "PYTHONPATH": str(ROOT), MARK: mark},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    with process.stdout as said:
        ready = wait_for([said], START_S)
        assert ready, at.with_name("log").read_text()
        assert said.readline() == "ready\n", at.with_name("log").read_text()
    program = interpreter.place(at.parent, str(at))
    command = at.with_name("virtualenv") / "bin" / "speedo"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {program} -m speedo "$@"\n')
    command.chmod(0o700)
    at.with_name("process").write_text(str(process.pid))


def _is_there(number: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    return False


def python() -> str:
    """The program that stands for Python's: what it is to run, a fork of the server runs."""
    return str(Path(server()).with_name("python"))


def virtualenv() -> Path:
    """A folder with bin/speedo, as that of a virtual environment: what it is to run, a fork of the server runs."""
    return Path(server()).with_name("virtualenv")


def server_process() -> list[int]:
    """Its number, once it is there."""
    try:
        return [int(Path(os.environ[_FOLDER], "process").read_text())]
    except (KeyError, OSError):
        return []


def native_deaths() -> str:
    """The last lines that dying forks have written."""
    with suppress(KeyError, OSError):
        return Path(os.environ[_FOLDER], "log").read_text(errors="replace")[-DEATHS:]
    return ""


class ForkedProcess:
    """The command `speedo` as a fork: its output is read through pipes. Its timeouts are those of a machine with
    nothing else to do."""

    stdin = None
    returncode: int | None = None

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.args = [sys.executable, "-m", "speedo", *arguments]
        out, out_end = os.pipe()
        errors, errors_end = os.pipe()
        at = server()
        order = Order(tuple(arguments), self.args, environment, str(folder), python())
        with open(os.devnull, "rb") as nothing:
            self.pid, self._status = ask(order, (nothing.fileno(), out_end, errors_end), at)
        os.close(out_end)
        os.close(errors_end)
        self.stdout: IO[str] = os.fdopen(out)
        self.stderr: IO[str] = os.fdopen(errors)
        self._lock = threading.Lock()
        self._said: dict[str, str] = {}
        self._readers: dict[str, threading.Thread] = {}

    def poll(self) -> int | None:
        with self._lock:
            # The server may be busy with other forks when this one ends, and say so a little later.
            patience = 0.0 if _is_there(self.pid) else START_S
            if self.returncode is None and wait_for([self._status], patience):
                self.returncode = status_of(self._status)
                self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        patience = scaled(timeout)
        end = None if patience is None else time.monotonic() + patience
        while (status := self.poll()) is None:
            left = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
            if left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            wait_for([self._status], left)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:
        patience = scaled(timeout)
        end = None if patience is None else time.monotonic() + patience
        for name in ("stdout", "stderr"):
            if name not in self._readers:
                self._readers[name] = threading.Thread(target=self._read, args=(name,), daemon=True)
                self._readers[name].start()
        for reader in self._readers.values():
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(timeout)
        return self._said["stdout"], self._said["stderr"]

    def _read(self, name: str) -> None:
        self._said[name] = getattr(self, name).read()
