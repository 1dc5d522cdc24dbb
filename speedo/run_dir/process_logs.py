"""The logs of a run's processes: whose they are, and when their lines were written.

Caffe, Ray, Python and users' scripts write into a log, few of them with a time. So the sizes of the logs are noted
beside them several times a second, in the file `times`: a line was written before the first size that has it whole.
A process that is killed or crashes need do nothing for that.
"""

from __future__ import annotations

import heapq
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from caffenets.files import last_bytes, read_bytes
from speedo.run_dir.directory import HOSTS, LOG, LOGS
from speedo.system.foreign_text import clean_text

TIMES: Final = "times"
COMMANDS: Final = ("master", "worker", "server", "doctor")
LOOK_S: Final = 0.25  # so exact are the times of lines
END_S: Final = 2.0  # for the last look; a disk that hangs is not waited for
STAMP: Final = "%Y-%m-%d %H:%M:%S%z"  # before each line of train.log
MOST_TIMES_BYTES: Final = 64 << 20
_NAMED: Final = re.compile(r"^(worker|server|tester)-(\d+)$")
_TIME: Final = re.compile(rb"^(\d+\.\d+) (\d+) (\S+)$", re.MULTILINE)
_STAMPED: Final = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}) (.*)$")


class LogTimes:
    """A context that notes the sizes of the logs in `folder` as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._over = folder, threading.Event()
        self._known: dict[str, tuple[float, int]] = {}  # when it had which size
        self._noted: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="log-times", daemon=True)

    def __enter__(self) -> Self:
        self._known = self._sizes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()
        self._look()

    def _sizes(self) -> dict[str, tuple[float, int]]:
        found = {}
        with suppress(OSError):
            for path in self._folder.glob("*.log"):
                with suppress(OSError):
                    status = path.stat()
                    found[path.name] = (status.st_mtime, status.st_size)
        return found

    def _look(self) -> None:
        lines = []
        for name, (written, size) in self._sizes().items():
            before, former = self._known.get(name, (written, 0))
            if size == former:
                continue
            if former and name not in self._noted:  # what it had before this run, or its resumption
                lines.append(f"{before:.3f} {former} {name}\n")
            lines.append(f"{written:.3f} {size} {name}\n")
            self._known[name] = (written, size)
            self._noted.add(name)
        if lines:
            with suppress(OSError), (self._folder / TIMES).open("a") as file:  # a full disk
                file.writelines(lines)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log. `at` is in seconds since 1970, and no earlier than that of the line before it.

    `end` is the place in the file behind it; 0 if the line is not whole yet.
    """

    at: float
    log: ProcessLog
    text: str
    end: int = 0


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """The log of one process, named as people know it; `host` is empty on the master's machine."""

    path: Path
    process: str
    host: str = ""

    def lines(self) -> Iterator[LogLine]:
        """All lines, and what there is of one that is not whole."""
        times = self._times()
        sizes, at = [size for _, size in times], 0.0
        with suppress(OSError), self.path.open("rb") as file:
            written, cut, end = self.path.stat().st_mtime, self._cut(times), 0
            for raw in file:
                end += len(raw)
                place = bisect_left(sizes, end + cut)
                text = raw.decode(errors="replace").rstrip("\n")
                own = written if place == len(times) else times[place][0]
                if self.path.name == LOG and (found := _STAMPED.match(text)):
                    own, text = datetime.strptime(found[1], STAMP).timestamp(), found[2]
                at = max(at, own)
                yield LogLine(at, self, text, end if raw.endswith(b"\n") else 0)

    def until(self, at: float, most: int) -> str:
        """Its last `most` bytes that were written by then, as text."""
        times = self._times()
        end = next((size for when, size in reversed(times) if when <= at), None)
        if end is None:
            return last_bytes(self.path, most).decode(errors="replace")
        with suppress(OSError), self.path.open("rb") as file:
            end = max(0, end - self._cut(times))
            file.seek(max(0, end - most))
            return file.read(min(end, most)).decode(errors="replace")
        return ""

    def _cut(self, times: list[tuple[float, int]]) -> int:
        """Bytes that its beginning lacks: of a long log only the end is brought home."""
        return max(0, times[-1][1] - self.path.stat().st_size) if times else 0

    def _times(self) -> list[tuple[float, int]]:
        try:
            data = read_bytes(self.path.with_name(TIMES), MOST_TIMES_BYTES)
        except OSError:
            return []
        name = self.path.name.encode()
        found = [(float(at), int(size)) for at, size, whose in _TIME.findall(data) if whose == name]
        return sorted(found, key=lambda one: one[1])


def logs_of(run_dir: Path, host: str | None = None) -> list[ProcessLog]:
    """The logs that are in the run's directory: its own, and those that were brought home; of one `host`, if named."""
    found = [ProcessLog(run_dir / LOG, "command")] if (run_dir / LOG).is_file() else []
    for path in sorted((run_dir / LOGS).glob("*.log")):
        found.append(ProcessLog(path, process_of(path)))
    hosts = run_dir / HOSTS
    for path in sorted(hosts.rglob("*.log")):
        host_of, *below = path.relative_to(hosts).parts
        # What a command of `speedo launch` printed
        command = len(below) == 1 and path.stem in COMMANDS
        name = f"speedo {path.stem}" if command else process_of(path)
        found.append(ProcessLog(path, name, host_of))
    return [one for one in found if host is None or one.host == host]


def process_of(log: Path) -> str:
    """The process whose log has this name: `worker 1`, `master`."""
    named = _NAMED.match(log.stem)
    return f"{named[1]} {named[2]}" if named else clean_text(log.stem)


def lines_of(logs: list[ProcessLog]) -> Iterator[LogLine]:
    """The lines of several logs in the order of their times."""
    return heapq.merge(*(log.lines() for log in logs), key=lambda line: line.at)


def line_now(log: ProcessLog, text: str) -> LogLine:
    """A line that a log has gained just now."""
    found = _STAMPED.match(text) if log.path.name == LOG else None
    return LogLine(time.time(), log, found[2] if found else text)


def shown(line: LogLine) -> str:
    """A line as `speedo logs` prints it: its time, host and process before it."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
    where = f"{line.log.process} on {line.log.host}" if line.log.host else line.log.process
    return f"{when}.{int(line.at * 10) % 10} {where}: {clean_text(line.text)}"
