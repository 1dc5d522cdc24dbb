"""A run of the real command, seen and ill-treated from outside."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from speedo.watch.first_failure import FirstFailure, kept_failure
from tests.support.commands import Commands, described, how_loaded, interrupt
from tests.support.invariants import Line, check_run

HANG_S = 120.0  # nothing takes so long unless it hangs, on however busy a machine
GAP_S = 60.0  # nor does a healthy worker's merge
# For faults of Redis, which workers on one machine could do without
BY_REDIS = (
    "--redis",
    "same_node=redis",
)
# Sync as the other modes: a result of each worker; teams have rows of their own
EACH_BY_ITSELF = (
    "--team",
    "off",
)
# Turns that overlap. Stale results of two workers with momentum, added whole, let this net diverge at its own rate.
OVERLAP = ("--overlap", "all", "--lr", "0.0002")
OVERLAPPING = ("async", "easgd")
STEPS_OF_THE_END = (  # after the last merge
    "master-finished",
    "master-testing",
    "master-tested",
    "master-exported",
    "master-ended",
)
BEGUN = 12  # versions: enough for the gate to know what is usual


def stand_still(process: psutil.Process) -> None:
    """Stop a process, and return when none of its threads runs any more.

    The signal is handled by one thread, which stops the others once it gets a core; until then they go on.
    """
    process.suspend()
    end = time.monotonic() + HANG_S
    with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        while set(states(process)) - set("TZX"):
            assert time.monotonic() < end, f"{process} does not stop"
            time.sleep(0.001)


def states(process: psutil.Process) -> list[str]:
    """A letter for each thread, as `ps` has it."""
    stats = Path(f"/proc/{process.pid}/task").glob("*/stat")
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]


class Watched:
    """A command that is started and its run, in the directory `name`."""

    process: subprocess.Popen[str]

    def __init__(self, speedo: Commands, mode: str, name: str = "run") -> None:
        self.speedo, self.mode = speedo, mode
        self.dir = speedo.folder / name
        self._lines: list[Line] = []
        self._read = self._file = 0

    # ------------------------------------------------------------ what it says

    def lines(self, *events: str) -> list[Line]:
        """Lines of the log so far, of these kinds."""
        self._look()
        return [line for line in self._lines if not events or line["event"] in events]

    def _look(self) -> None:
        file = self.dir / "metrics.jsonl"
        if not file.exists():
            return
        with file.open("rb") as opened:
            number = file.stat().st_ino
            if number != self._file:  # a resumed run writes another file
                self._file, self._read, self._lines = number, 0, []
            opened.seek(self._read)
            whole, found, _ = opened.read().rpartition(b"\n")
        self._read += len(whole) + len(found)
        self._lines += [json.loads(line) for line in whole.splitlines()]

    def merged(self, worker: int | None = None, incarnation: int | None = None) -> list[Line]:
        return [
            line
            for line in self.lines("result")
            if line["decision"] == "merged"
            and worker in (None, line["worker"])
            and incarnation in (None, line["incarnation"])
        ]

    def merged_after(self, line: Line) -> list[Line]:
        """What was merged since this line of the log."""
        lines = self.lines()
        return [one for one in lines[lines.index(line) :] if one.get("decision") == "merged"]

    def rounds_before_death(self, victim: int, until: int) -> int:
        """How many rounds of the stretch in which this worker died were merged, once for each of its members.

        Up to line `until` no result is lost.
        """
        lines = self.lines()[:until]
        assert [one for one in lines if one.get("decision") in ("refused", "discarded")] == []
        left = next(at for at, one in enumerate(lines) if one["event"] == "left")
        merged = [one for one in lines if one.get("decision") == "merged"]
        (last,) = [
            one
            for one in merged
            if (one["worker"], one["incarnation"]) == (victim, 1) and lines.index(one) > left
        ]
        together = [one for one in merged if one["version"] == last["version"]]
        assert len({one["worker"] for one in together}) == len(together) > 1
        (steps,) = {one["steps"] for one in together}
        return int(steps)

    def results(self, *decisions: str) -> list[Line]:
        return [line for line in self.lines("result") if line["decision"] in decisions]

    @property
    def version(self) -> int:
        """The last that was merged; 0 before."""
        merged = self.merged()
        return merged[-1]["version"] if merged else 0

    def log(self) -> str:
        file = self.dir / "train.log"
        return file.read_text() if file.exists() else ""

    def failed_first(
        self, process: str, cause: str = "", words: str = "", host: str = ""
    ) -> FirstFailure:
        """What is left of the run, or its log, names this process, on a host whose name begins so, and the cause."""
        found = kept_failure(self.dir)
        assert found is not None
        assert (found.process, host) == (process, found.host[: len(host)]), found
        assert cause in found.cause, found
        assert words in found.last_words, found
        return found

    # ------------------------------------------------------------ waiting

    def wait_for(self, what: Callable[[], Any], seconds: float = HANG_S) -> None:
        """Until it holds, while the command runs."""
        began = time.monotonic()
        while not what():
            assert self.process.poll() is None, self.process.communicate()[1]
            late = time.monotonic() > began + seconds * how_loaded()
            assert not late, (described(what), self.lines()[-5:], self.log()[-2000:])
            time.sleep(0.05)

    def has_begun(self, version: int = BEGUN) -> None:
        """Wait until so many versions are merged."""
        self.wait_for(lambda: self.version >= version)

    def goes_on(self, versions: int = 10) -> None:
        """Wait for so many versions more."""
        self.has_begun(self.version + versions)

    def recovery(self, since: float, seconds: float = HANG_S) -> float:
        """Seconds from the fault, which was just made, until the next version."""
        before = self.version
        self.wait_for(lambda: self.version > before, seconds)
        return time.monotonic() - since

    # ------------------------------------------------------------ its processes

    def workers(self) -> dict[int, psutil.Process]:
        return self.speedo.workers()

    def the(self, name: str) -> psutil.Process:
        (found,) = self.speedo.named(name)
        return found

    # ------------------------------------------------------------ the end

    def ends(self, status: int) -> str:
        """What it said when it ended by itself."""
        _, errors = self.process.communicate(timeout=HANG_S)
        assert self.process.returncode == status, errors
        assert "Traceback" not in errors
        return errors


class Run(Watched):
    """`speedo train`, or `speedo master` with what belongs to it, on a solver of `nets`."""

    def __init__(
        self,
        speedo: Commands,
        solver: Path,
        mode: str,
        *options: str,
        command: str = "train",
        name: str = "run",
        environment: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        super().__init__(speedo, mode, name)
        self.solver = solver
        if "--redis" in options:
            options += BY_REDIS
        if mode == "sync" and "--team" not in options:
            options += EACH_BY_ITSELF
        arguments = (
            command, str(solver), "--mode", mode, "--max-iter", "100000000", "--test-interval", "0",
            "--run-dir", name,
        )  # fmt: skip
        self.process = speedo.start(*arguments, *options, environment=environment, inside=inside)

    def resume(
        self, *options: str, command: str = "train", environment: Mapping[str, str] | None = None
    ) -> None:
        """Go on with it in a new command, which is `process` from now on."""
        self.process = self.speedo.start(
            command, "--resume", str(self.dir), *options, environment=environment
        )

    def workers(self) -> dict[int, psutil.Process]:
        return self.speedo.workers()

    def stop(self) -> None:
        """End it as Ctrl-C does, and see that it ends well."""
        interrupt(self.process)
        _, errors = self.process.communicate(timeout=HANG_S)
        assert self.process.returncode == 130, errors
        assert "Traceback" not in errors

    def check(self, *, gap_s: float = GAP_S) -> list[Line]:
        """The promises hold in what it left."""
        return check_run(self.dir, self.solver.with_name("net.prototxt"), gap_s=gap_s)

    def stop_and_check(self, *, gap_s: float = GAP_S) -> list[Line]:
        self.stop()
        return self.check(gap_s=gap_s)
