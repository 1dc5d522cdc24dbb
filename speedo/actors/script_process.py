"""The process of a user's script, which the kernel ends with the actor that starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from speedo.actors.ray_node.session import users_environment
from speedo.run.script import loaded_python
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.system import dies_with_parent


def environment_of(settings: RunSettings, threads: int) -> dict[str, str]:
    """Of a script with so many threads, but for its place."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONHASHSEED": str(settings.seed % (1 << 32)),  # a set has one order in all workers
        **users_environment(),
    }


class ScriptProcess:
    """Once `ended` is set, `status` is what its command ended with."""

    def __init__(self) -> None:
        self.ended, self.status = threading.Event(), 0
        self._loaded: subprocess.Popen[bytes] | None = None  # waits to become the script

    def load(self, job: ScriptJob, environment: dict[str, str]) -> None:
        """Have a Python load what the script imports, where one can stand in for it; returns once it has."""
        if program := loaded_python.command(job.command, job.folder):
            ready = threading.Event()
            threading.Thread(
                target=self._load, args=(program, job.folder, environment, ready), daemon=True
            ).start()
            ready.wait()

    def begin(
        self, job: ScriptJob, environment: dict[str, str], log: Path, then: Callable[[], None]
    ) -> None:
        """Start the script, whose output goes to `log`, as that of this process does; `then` is called at its end."""
        # The kernel ends the script with the thread that started it, so that one lives as long.
        threading.Thread(target=self._run, args=(job, environment, log, then), daemon=True).start()

    def _load(
        self, program: list[str], folder: str, environment: dict[str, str], ready: threading.Event
    ) -> None:
        try:
            self._loaded = subprocess.Popen(
                dies_with_parent.command(program),
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self._loaded.stdout is not None
            self._loaded.stdout.readline()
        finally:
            ready.set()
        self._loaded.wait()

    def _run(
        self, job: ScriptJob, environment: dict[str, str], log: Path, then: Callable[[], None]
    ) -> None:
        try:
            child = self._told(job, environment, log) or subprocess.Popen(
                dies_with_parent.command(job.command),
                env=environment,
                cwd=job.folder,
                stdin=subprocess.DEVNULL,
                stdout=2,  # the log
                stderr=2,
            )
            self.status = child.wait()
        except OSError as error:
            print(f"{job.command[0]} cannot be started: {error.strerror}", file=sys.stderr)
            self.status = 127
        self.ended.set()
        then()

    def _told(
        self, job: ScriptJob, environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes] | None:
        """The Python that waited, and becomes the script now; None if there is none."""
        if self._loaded is None or self._loaded.poll() is not None:
            return None
        assert self._loaded.stdin is not None
        place = loaded_python.place(environment, log, os.sched_getaffinity(0))
        with suppress(OSError):
            self._loaded.stdin.write(place)
            self._loaded.stdin.close()
            return self._loaded
        return None
