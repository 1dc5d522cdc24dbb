"""Commands as forks, seen as `subprocess.Popen` shows them."""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from tests.support.commands import scaled
from tests.support.forked import interpreter
from tests.support.forked.interpreter import ROOT
from tests.support.forked.server import PADDING, Order, ask, status_of
from tests.support.left_behind import short_folder

START_S: Final = 120.0
LOOK_S: Final = 0.5
_server: subprocess.Popen[str] | None = None
_at = ""


def server() -> str:
    """Where it listens; there is one for all tests of this process, which ends with it."""
    global _server, _at
    if _server is None or _server.poll() is not None:
        _at = str(short_folder("sf-") / "forks")
        atexit.register(shutil.rmtree, Path(_at).parent, ignore_errors=True)
        environment = {"SPEEDO_PADDING": "x" * PADDING, **os.environ, "PYTHONPATH": str(ROOT)}
        with Path(_at).with_name("log").open("w") as log:
            _server = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked.server", _at, "x" * PADDING],
                env=environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert _server.stdout is not None
        ready, _, _ = select.select([_server.stdout], [], [], START_S)
        said = _server.stdout.readline() if ready else ""
        assert said == "ready\n", Path(_at).with_name("log").read_text()
        interpreter.place(Path(_at).parent, _at)
    return _at


def python() -> str:
    """The program that stands for Python's: what it is to run, a fork of the server runs."""
    return str(Path(server()).with_name("python"))


def virtualenv() -> Path:
    """A folder with bin/speedo, as that of a virtual environment: what it is to run, a fork of the server runs."""
    folder = Path(server()).parent / "virtualenv"
    command = folder / "bin" / "speedo"
    if not command.exists():
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec {python()} -m speedo "$@"\n')
        command.chmod(0o700)
    return folder


def server_process() -> list[int]:
    return [] if _server is None else [_server.pid]


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
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
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
            select.select([self._status], [], [], left)
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
