"""Starts the real commands and makes sure that nothing of them is left behind."""

from __future__ import annotations

import inspect
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil

from tests.support.left_behind import KEEPERS, short_folder
from tests.support.processes import kill, lines_of, listening, name_of, standard_error, words_of

MARK = "SPEEDO_TEST_MARK"
LOADED = "speedo.run.script.loaded_python"
_NOT_OF_THE_SEED = random.SystemRandom()


def how_loaded() -> float:
    """By how much more than its cores this machine has to do, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port() -> int:
    """One of those that no system takes for itself, for a connection or for whoever asks for any: it stays free."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            # Each test process has another; below are those of Ray's workers
            port = _NOT_OF_THE_SEED.randrange(20000, 32000)
            probe.bind(("127.0.0.1", port))
            return port


class Command(subprocess.Popen[str]):
    """Its timeouts are those of a machine with nothing else to do."""

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        return super().communicate(input, scaled(timeout))

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(scaled(timeout))


def scaled(timeout: float | None) -> float | None:
    return None if timeout is None else timeout * how_loaded()


class Commands:
    """`speedo` commands of one test, marked through their environment, which all their children inherit.

    `environment` is added to that of every command.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = environment or {}
        self.mark = uuid.uuid4().hex
        self.token_file = folder / "token"
        # What a killed command leaves goes with the test. Sockets lie there: pytest's own names are too long.
        self.temporary = short_folder("st-")
        self._started: list[subprocess.Popen[str]] = []
        self._strangers = set(psutil.pids())

    def start(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
        terminal: int | None = None,
    ) -> subprocess.Popen[str]:
        """A command; `inside` is what is typed before it, as to run it on another host.

        It has the `terminal`, a descriptor, for its own, or else pipes.
        """
        variables = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "SPEEDO_TOKEN_FILE": str(self.token_file),
            "SPEEDO_RUNTIME_DIR": str(self.folder / "runtime"),
            "SPEEDO_CACHE": os.environ.get("SPEEDO_CACHE", str(self.folder / "cache")),
            **self.environment,
            **(environment or {}),
        }
        from tests.support.forked import commands as forked
        from tests.support.forked import interpreter

        process: subprocess.Popen[str]
        plain = terminal is not None or bool(variables.get(interpreter.PLAIN))
        if not inside and not plain:
            process = cast(
                "subprocess.Popen[str]", forked.ForkedProcess(arguments, self.folder, variables)
            )
            self._started.append(process)
            return process
        python = sys.executable if plain else forked.python()
        process = Command(
            [*inside, python, "-m", "speedo", *arguments],
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if terminal is None else None,
            stderr=subprocess.PIPE if terminal is None else None,
            text=True,
            start_new_session=terminal is None,
            preexec_fn=None if terminal is None else partial(log_in, terminal),
        )
        self._started.append(process)
        return process

    def left(self) -> list[psutil.Process]:
        """Processes of this test that are still there: those with its mark, and their children and sessions.

        Redis writes its title over its environment, and the mark with it. A process that is a stranger once remains
        one, as tests look some times a second and a machine may have hundreds.
        """
        from tests.support.forked.commands import server_process

        marked, others = {}, []
        becoming = {os.getpid(), *server_process()}
        sessions = {process.pid for process in self._started}
        numbers = set(psutil.pids())
        self._strangers &= numbers
        for number in numbers - self._strangers:
            try:
                process = psutil.Process(number)
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                variables, session = process.environ(), os.getsid(number)
                if variables.get(MARK) == self.mark:
                    marked[number] = process
                    sessions.add(session)
                else:
                    others.append((process.ppid(), session, variables, process))
            except (ProcessLookupError, psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        sessions.discard(os.getsid(0))  # that of the tests, and of the shell that has started them
        same = []
        for parent, session, variables, process in others:
            if parent in marked or session in sessions:
                same.append(process)
            elif MARK in variables or (variables and parent not in becoming):
                self._strangers.add(process.pid)  # any other may become one of ours right now
        return [*marked.values(), *same]

    def named(self, text: str) -> list[psutil.Process]:
        """Processes of this test that have the text in their command lines, as Ray's actors have their class."""
        return [process for process in self.left() if text in " ".join(words_of(process))]

    def programs(self, *names: str) -> list[psutil.Process]:
        """Processes of this test that run these programs, whatever their titles."""
        return [process for process in self.left() if name_of(process) in names]

    def scripts(self, script: Path) -> list[psutil.Process]:
        """Processes of Python that run this script, and none that waits to do so."""
        return [
            process
            for process in self.left()
            if (words := words_of(process))[1:2] == [str(script)]
            or (LOADED in words and str(script) in words and _of_worker(process))
        ]

    def workers(self) -> dict[int, psutil.Process]:
        """The worker processes by slot, told apart by the log that holds their standard error."""
        found = [(_of_worker(one), one) for one in self.named("ray::WorkerActor")]
        return {int(log[1]): one for log, one in found if log is not None}  # others just begin

    def listening(self) -> set[tuple[str, int]]:
        """Addresses at which processes of this test listen now."""
        return set().union(*map(listening, self.left()))

    def all_gone_within(self, seconds: float) -> bool:
        began = time.monotonic()
        while self.left():
            if time.monotonic() > began + seconds * how_loaded():
                return False
            time.sleep(0.1)
        return True

    def kill_all(self) -> None:
        """All but those that tidy up after the others."""
        kill(one for one in self.left() if not KEEPERS & set(words_of(one)))

    def stop_all(self) -> None:
        """Those that tidy up may do so, for a while."""
        self.kill_all()
        self.all_gone_within(5.0)
        kill(self.left())
        for started in self._started:
            _, errors = started.communicate()
            if errors:  # seen where the test has failed
                print(f"{started.args!r}\n{_last_words(errors)}")


def log_in(terminal: int) -> None:
    """In a child: a terminal of its own, whose end it is told of even if the tests themselves run under `nohup`."""
    os.login_tty(terminal)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def commands(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Commands]:
    """Ends with every process of the commands gone, and says so if one had to be killed."""
    made = Commands(folder, environment)
    try:
        yield made
        left = made.left() if not made.all_gone_within(15.0) else []
        assert not left, lines_of(left)
    finally:
        made.stop_all()
        shutil.rmtree(made.temporary, ignore_errors=True)


def still_open(addresses: set[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of the addresses where somebody answers; an address for all is tried on loopback."""
    found = []
    for host, port in sorted(addresses):
        place = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        with suppress(OSError), socket.create_connection((place, port), timeout=1.0):
            found.append((host, port))
    return found


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Return once it holds; within so many seconds of a machine with nothing else to do."""
    began = time.monotonic()
    while not (last := condition()):
        late = time.monotonic() > began + seconds * how_loaded()
        assert not late, f"not within {seconds} s: {described(condition)}; last {last!r}"
        time.sleep(0.05)


def described(condition: Callable[[], Any]) -> str:
    """What it is in the source, and the values that it has from there; of a file or a run's folder the end."""
    try:
        source = " ".join(inspect.getsource(condition).split())
        names = inspect.getclosurevars(condition).nonlocals
    except (OSError, TypeError):  # nothing of Python's, as a built-in method
        return repr(condition)
    seen = {name: end_of(one) if isinstance(one, Path) else one for name, one in names.items()}
    return f"`{source}`, where {seen}"


def _last_words(errors: str) -> str:
    """The end; of a native death what begins with the signal, before a long list of modules."""
    died = errors.find("Fatal Python error")
    return errors[-2000:] if died < 0 else errors[max(0, died - 1000) : died + 3000]


def end_of(path: Path, most: int = 1000) -> str:
    """Of a file, or of the logs of a run in this folder."""
    if path.is_file():
        return path.read_text(errors="replace")[-most:]
    logs = [log for name in ("metrics.jsonl", "train.log") for log in path.glob(f"**/{name}")]
    return "\n".join(f"{log} ends: {end_of(log)}" for log in logs) or f"{path}, without a log"


def wait_for_line(
    file: Path, text: str, seconds: float, process: subprocess.Popen[str] | None = None
) -> None:
    """Return once the file holds the text; within so many seconds of a machine with nothing else to do.

    Fails at once if the `process` that is to write it has ended.
    """
    began = time.monotonic()
    while not (file.exists() and text in file.read_text()):
        late = time.monotonic() > began + seconds * how_loaded()
        ended = process is not None and process.poll() is not None
        assert not late, f"no {text!r} within {seconds} s; {file} ends: {end_of(file)}"
        assert not ended, f"ended without {text!r}; {file} ends: {end_of(file)}"
        time.sleep(0.1)


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C as a terminal sends it: to the whole foreground process group."""
    os.killpg(process.pid, signal.SIGINT)


def _of_worker(process: psutil.Process) -> re.Match[str] | None:
    """The slot of the worker whose log has the process's standard error."""
    return re.fullmatch(r"worker-(\d+)\.log", standard_error(process))
