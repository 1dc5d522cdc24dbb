"""One run of a comparison, in a process of its own that ends with this one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import yaml

from caffenets.files import last_bytes
from speedo.actors.signals import stop_signals
from speedo.errors import ConfigError
from speedo.master.reasons import AT_MAX_ITER
from speedo.run_dir.checkpoint_file import checkpoints_in
from speedo.run_dir.directory import CHECKPOINTS, CONFIG, METRICS, RESULT
from speedo.run_dir.read_back import count_of, object_in, read_result
from speedo.study.comparison.wish import Planned
from speedo.system import dies_with_parent
from speedo.watch.report.figures import SEQUENTIAL

FAREWELL_S: Final = 120.0  # for a run that is asked to end: its checkpoint, a last test, its model
KILLED_S: Final = 5.0
LOOK_S: Final = 0.5
TAIL_BYTES: Final = 8192
STOPPED: Final = "stopped by"  # how the reason of a run begins that a signal ended

State = Literal["new", "broken", "finished"]
Look = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run in the comparison's folder."""

    folder: Path
    name: str

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs" / self.name

    @property
    def config(self) -> Path:
        return self.folder / "configs" / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"

    def state(self, max_iter: int) -> State:
        """`finished` is also a run that a stopping rule ended, or that diverged: it would do so again."""
        if not self.run_dir.exists():
            return "new"
        result = read_result(self.run_dir / RESULT)
        if result is None:
            return "broken"
        reason = str(result["reason"])
        by_a_rule = not reason.startswith(AT_MAX_ITER)
        complete = result.get("complete") is True and (result["iteration"] >= max_iter or by_a_rule)
        return "finished" if complete or "diverge" in reason else "broken"

    def has_checkpoint(self, run: Planned) -> bool:
        """Whether the run can continue where it was broken off; Caffe alone keeps nothing to do so."""
        if run.mode == SEQUENTIAL or not (self.run_dir / CONFIG).is_file():
            return False
        return bool(checkpoints_in(self.run_dir / CHECKPOINTS))

    def ended_early(self) -> str:
        """Why a run that is over ended before its last iteration; empty if it did not."""
        result = read_result(self.run_dir / RESULT)
        return "" if result is None or result.get("complete") is True else str(result["reason"])

    def iteration(self) -> int:
        """How far the run has come, by the end of its log; 0 where that does not say."""
        for line in reversed(last_bytes(self.run_dir / METRICS, TAIL_BYTES).splitlines()):
            found = object_in(line) or {}
            if found.get("event") == "result" and found.get("decision") == "merged":
                return count_of(found, "iteration")
        return 0

    def last_words(self) -> str:
        """The last line that the process wrote."""
        lines = last_bytes(self.log, TAIL_BYTES).decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return said[-1].removeprefix("speedo: ") if said else "it said nothing"


def make(place: RunFiles, run: Planned, command: list[str], look: Look) -> str:
    """Make the run by this command; returns what went wrong, or nothing.

    `look` is called with the iteration from time to time. On Ctrl-C, or another signal, the run is asked to end, which
    keeps a checkpoint; then `KeyboardInterrupt` is raised. An exception in the midst of `Popen.wait` could leave its
    lock taken, and all later waits would be without end.
    """
    try:
        place.log.parent.mkdir(parents=True, exist_ok=True)
        with place.log.open("ab") as log, stop_signals() as stopped:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            try:
                while (status := _status(process, LOOK_S)) is None and not stopped:
                    look(place.iteration())
            finally:
                _end(process)
            if stopped:
                raise KeyboardInterrupt
    except OSError as error:
        raise ConfigError(
            f"{place.log} cannot be written: {error.strerror}; make room there"
        ) from None
    if place.state(run.max_iter) == "finished":
        return ""
    return f"status {status}: {place.last_words()}"


def ends_with_us(module: str, *words: str) -> list[str]:
    """What starts this module as a program that ends with this process."""
    return dies_with_parent.command([sys.executable, "-P", "-m", module, *words], signal.SIGTERM)


def remove_former(place: RunFiles) -> None:
    """Remove what an earlier try has left of the run. Raises `ConfigError`."""
    try:
        if place.run_dir.exists():
            shutil.rmtree(place.run_dir)
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be removed: {error.strerror}; remove it, or give another --out"
        ) from None


def command_of(place: RunFiles, run: Planned) -> list[str]:
    """Of a run with the options of `run`; a broken one continues from its last checkpoint. Raises `ConfigError`."""
    train = ends_with_us("speedo", "train")
    if place.has_checkpoint(run):
        return [*train, "--resume", str(place.run_dir), "--max-iter", str(run.max_iter)]
    remove_former(place)
    try:
        place.config.parent.mkdir(parents=True, exist_ok=True)
        place.config.write_text(
            yaml.safe_dump(dict(run.options), sort_keys=False), encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}; make room there"
        ) from None
    if run.mode == SEQUENTIAL:
        sequential = "speedo.study.comparison.sequential"
        return ends_with_us(sequential, str(place.config), str(place.run_dir))
    return [*train, "--config", str(place.config), "--run-dir", str(place.run_dir)]


def _status(process: subprocess.Popen[bytes], within_s: float) -> int | None:
    """The status of a process that ends in time."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(within_s)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process that is still there to end, and wait; a second Ctrl-C cuts that short."""
    if process.poll() is not None:
        return
    try:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        _status(process, FAREWELL_S)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _status(process, KILLED_S)
