"""Commands as forks, seen as `subprocess.Popen` shows them."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.support.commands import scaled
from tests.support.forked.server import FOLDER, PADDING, SOCKET, Order, ask, status_of
from tests.support.left_behind import short_folder

START_S: Final = 120.0
LOOK_S: Final = 0.5
ROOT: Final = Path(__file__).parents[3]
_server: subprocess.Popen[str] | None = None
_at = ""


def server() -> str:
    """Where it listens; there is one for all tests of this process, which ends with it."""
    global _server, _at
    if SOCKET in os.environ:  # in a fork
        return os.environ[SOCKET]
    if _server is None or _server.poll() is not None:
        _at = str(short_folder("sf-") / "forks")
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
    return _at


def server_process() -> list[int]:
    return [] if _server is None else [_server.pid]


class Fork:
    """A fork that calls a function, `module:name`; others see `words` as its command line.

    Its working folder is `folder`, the sockets of its actors are in `actors`, and `files` its standard ones.
    """

    returncode: int | None = None

    def __init__(
        self,
        function: str,
        arguments: tuple[Any, ...],
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        actors: Path,
        files: Sequence[int],
    ) -> None:
        self.args = list(words)
        at = server()
        own = {**environment, SOCKET: at, FOLDER: str(actors)}
        self.pid, self._status = ask(
            Order(function, arguments, self.args, own, str(folder)), files, at
        )
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self.returncode = status_of(self._status)
                self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
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


class ForkedProcess(Fork):
    """One whose output is read through pipes. Its timeouts are those of a machine with nothing else to do."""

    stdin = None

    def __init__(
        self,
        function: str,
        arguments: tuple[Any, ...],
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        actors: Path,
    ) -> None:
        out, out_end = os.pipe()
        errors, errors_end = os.pipe()
        with open(os.devnull, "rb") as nothing:
            files = (nothing.fileno(), out_end, errors_end)
            super().__init__(function, arguments, words, folder, environment, actors, files)
        os.close(out_end)
        os.close(errors_end)
        self.stdout: IO[str] = os.fdopen(out)
        self.stderr: IO[str] = os.fdopen(errors)
        self._said: dict[str, str] = {}
        self._readers: dict[str, threading.Thread] = {}

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(scaled(timeout))

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


def forked_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], actors: Path
) -> ForkedProcess:
    """The command `speedo` with these arguments."""
    words = [sys.executable, "-m", "speedo", *arguments]
    return ForkedProcess(
        f"{__name__}:be_command", (tuple(arguments),), words, folder, environment, actors
    )


def be_command(arguments: tuple[str, ...]) -> None:
    """In the fork."""
    from speedo.cli.main import main

    sys.argv = [str(ROOT / "speedo" / "__main__.py"), *arguments]
    sys.path.append("")
    main()


class Children:
    """In place of the module `subprocess` in a module of the product: programs of ours that it starts are forks."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    @staticmethod
    def Popen(words: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes], **_: Any) -> Fork:
        module, *arguments = words[words.index("-m") + 1 :]
        with open(os.devnull, "rb") as nothing:
            return Fork(
                *(f"{__name__}:be_program", (module, *arguments), words),
                *(Path.cwd(), os.environ, Path(os.environ[FOLDER])),
                (nothing.fileno(), stdout.fileno(), stderr.fileno()),
            )


def be_program(module: str, *arguments: str) -> None:
    """In the fork."""
    if module == "speedo":
        be_command(arguments)
    else:
        importlib.import_module(module).main([*arguments])
