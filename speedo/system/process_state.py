"""What the kernel says of a process of this machine: whether it runs, and where it waits."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
LOOK_S: Final = 0.2  # over which the use of the processor is measured
_STATES: Final = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a disk or a file server, and cannot be killed meanwhile",
    "T": "stopped by a signal (SIGSTOP); SIGCONT lets it go on",
    "t": "stopped by a debugger",
    "Z": "ended",
    "X": "ended",
}
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class NativeThread:
    """A thread: its name, its state's letter, the kernel's function that it waits in, and its kernel stack if shown."""

    name: str
    state: str
    waits_in: str
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessState:
    """`state` is the letter of `ps`; `cores` is the use of processors, 1.0 for one of them."""

    pid: int
    state: str
    cores: float
    threads: tuple[NativeThread, ...] = ()

    @property
    def hangs(self) -> bool:
        """Whether it does nothing until somebody lets it."""
        return self.state in "DTt"

    @property
    def words(self) -> str:
        """As people say it: `running, 0.9 cores`."""
        text = _STATES.get(self.state, self.state)
        main = self.threads[0].waits_in if self.threads and self.state in "SD" else ""
        text += f" in {main}" if main else ""
        return f"{text}, {self.cores:.1f} cores" if self.cores >= 0.05 else text


def states_of(pids: list[int]) -> dict[int, ProcessState]:
    """Of those of these processes that are there; takes `LOOK_S`."""
    before = {pid: _used(pid) for pid in pids}
    time.sleep(LOOK_S)
    found = {}
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            used, former = _used(pid), before[pid]
            cores = 0.0 if used is None or former is None else (used - former) / LOOK_S
            found[pid] = ProcessState(pid, _letter(PROC / str(pid)), cores, tuple(_threads(pid)))
    return found


def takes_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal: otherwise it might end by it."""
    try:
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def writes_to(folder: Path) -> dict[int, Path]:
    """Processes of this user whose standard error is a file in this folder, with that file."""
    found = {}
    place = os.path.realpath(folder)
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                target = os.readlink(entry / "fd" / "2")
                if os.path.dirname(target) == place:
                    found[int(entry.name)] = Path(target)
    return found


def title_of(pid: int) -> str:
    """Its command line, as `ps` shows it; empty if it is gone."""
    try:
        return (
            (PROC / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def _letter(place: Path) -> str:
    return (place / "stat").read_text().rpartition(")")[2].split()[0]


def _used(pid: int) -> float | None:
    """Seconds of processors that it has used."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None


def _threads(pid: int) -> list[NativeThread]:
    found = []
    for task in sorted((PROC / str(pid) / "task").iterdir(), key=lambda one: int(one.name)):
        with suppress(OSError, IndexError):
            waits_in = _read(task / "wchan")
            stack = tuple(line.partition("] ")[2] for line in _read(task / "stack").splitlines())
            name = _read(task / "comm")
            found.append(
                NativeThread(name, _letter(task), "" if waits_in == "0" else waits_in, stack)
            )
    return found


def _read(path: Path) -> str:
    """What it says; empty where the kernel does not tell this user."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
