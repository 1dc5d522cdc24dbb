"""Who failed in a run, as far as its log and its notes tell: each as a `Trouble`, on the clock of the run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from caffenets.files import last_bytes
from speedo.errors import SpeedoError, StoreError
from speedo.run_dir.directory import LOG, METRICS
from speedo.run_dir.process_logs import STAMP
from speedo.run_dir.read_back import count_of, number_of, object_in, text_of

TOGETHER_S: Final = 15.0  # a death is noticed within 10 s, and what follows from it soon after
ANOTHER_MASTER: Final = "its process ended; another master went on from its last checkpoint"
MOST_REFUSED: Final = 10_000
NOTES_BYTES: Final = 1 << 20  # of train.log
_MERGED: Final = b'"decision":"merged"'


# How a process came to fail: by itself, with its reason; without a word, so that another may have ended it; only
# because another had failed. Or it was asked to go.
OWN: Final = 0
SILENT: Final = 1
FOLLOWS: Final = 2
_ASKED: Final = re.compile(
    r"its script has ended$|fewer workers are wanted|takes a new shard|its host was stopped by|the run is over"
    r"|given up$|its place in the cluster is gone|a newer one took its place|it did not start$"
)
# Causes of workers that left, and what they mean; in the others the process says why.
_SILENT: Final = re.compile(
    r"died without a message, as after|^no result for|its channel did not open|made no step"
)
_OF_HOST: Final = re.compile(
    r"^(?:its process died|its host has left|its host came back without it|its host is gone.*)$"
)
_FOLLOWS: Final = re.compile(
    r"^server \d+ is at another host now|^worker \d+ has left the team|^its team lost"
)
_WAITED: Final = re.compile(r"(?:no (?:result|answer) for|tested for|not let go on within) (\d+) s")
# How a run ended, and whose failure that is; `process` is a group or a text of its own.
_ENDS: Final = (
    (re.compile(r"^nothing was trained: (?P<rest>.*)$", re.DOTALL), "", OWN),
    (re.compile(r"^every worker (?:died|was set aside)|^no node of the Ray cluster|workers were left, \d+ are needed"
                r"|^only \d+ of \d+ (?:workers|servers)|^every script has ended|^every worker of this host died"),
     "", FOLLOWS),
    (re.compile(r"Ray's (?P<process>\S+) process on this machine died"), "Ray's {process}", OWN),
    (re.compile(r"^(?P<process>the master|the tester|worker \d+|server \d+) (?:could|did) not start"),
     "{process}", OWN),
    (re.compile(r"^the master's process died: killed|^the master's process did not answer"), "the master", SILENT),
    (re.compile(r"^the master(?:'s process)? (?:died|failed)|^the master cannot follow"), "the master", OWN),
    (re.compile(r"^(?P<process>server \d+) at (?P<host>\S+) is lost"), "{process}", SILENT),
    (re.compile(r"has not answered for \d+ s: its disk hangs"), "the disk", OWN),
    (re.compile(r"^layer .* reads |reads the (?:record|label)"), "the data", OWN),
    (re.compile(r"^stopped by an exception in (?P<process>.*?):"), "the callback {process}", OWN),
    (re.compile(r"^the tester has finished no batch"), "the tester", SILENT),
    (re.compile(r"^the last test failed"), "the tester", OWN),
)  # fmt: skip
_REFUSED_NODE: Final = re.compile(r"^(?:warning: )?node (?P<host>\S+) is not used: (?P<why>.*)$")
_GONE_NODE: Final = re.compile(r"^(?P<host>\S+): the node is gone$")
_SILENT_HOST: Final = re.compile(
    r"^(?P<why>(?:warning: )?nothing was heard of host (?P<host>\S+) for (?P<waited>\d+) s.*)$"
)
_HEARD_HOST: Final = re.compile(r"^host (?P<host>\S+) is heard of again$")
_LOST_SERVER: Final = re.compile(r"^warning: (?P<process>server \d+) is lost: (?P<why>.*)$")
_STAMPED: Final = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}) (.*)$")
# What others run on comes before who runs on it.
_DEPENDS: Final = (
    "Ray's",
    "the disk",
    "the store",
    "host",
    "the master",
    "server",
    "worker",
    "the tester",
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One process that failed or was given up, `seconds` after the run began. `kind` says whose doing it was.

    `is_loss`: the run lost something by it; otherwise it only helps to explain another one. `worker` is its slot, which
    was waited for until it was `given_up`.
    """

    process: str
    seconds: float
    cause: str
    kind: int = OWN
    host: str = ""
    pid: int = 0
    is_loss: bool = True
    worker: int = -1
    given_up: float = 0.0

    @property
    def rank(self) -> tuple[int, int, float]:
        """Who is first is the least."""
        if self.kind == OWN:
            return (OWN, 0, self.seconds)
        found = (at for at, name in enumerate(_DEPENDS) if self.process.startswith(name))
        return (self.kind, next(found, len(_DEPENDS)), self.seconds)


@dataclass(slots=True)
class Story:
    """What the log of a run tells of failures."""

    troubles: list[Trouble] = field(default_factory=list)
    # The latest results that were not merged: when, whose, why.
    refused: deque[tuple[float, int, str]] = field(
        default_factory=lambda: deque(maxlen=MOST_REFUSED)
    )
    # Seconds of the run, and of 1970, at the beginning of each master.
    clocks: list[tuple[float, float]] = field(default_factory=list)
    hosts: dict[int, tuple[str, int]] = field(default_factory=dict)  # of each worker: host, process
    ended: tuple[float, bool, str] | None = None  # when, whether complete, why
    last: float = 0.0

    def wall(self, seconds: float) -> float:
        """A time of the run in seconds since 1970; 0 if it is not known."""
        begun = [clock for clock in self.clocks if clock[0] <= seconds] or self.clocks[:1]
        return begun[-1][1] + seconds - begun[-1][0] if begun else 0.0

    def seconds_at(self, wall: float) -> float:
        """A date and time in seconds of the run."""
        begun = [clock for clock in self.clocks if clock[1] <= wall + 1.0] or self.clocks[:1]
        return begun[-1][0] + wall - begun[-1][1] if begun else 0.0


def read_story(run_dir: Path) -> Story:
    """That of the run in this directory; lines that were edited are left out."""
    story = Story()
    for line in map(object_in, _lines_in(run_dir / METRICS)):
        with suppress(ValueError):  # an edited line
            _take(story, line or {})
    _take_notes(story, run_dir / LOG)
    return story


def _lines_in(path: Path) -> Iterable[bytes]:
    """All lines but those of merged results, which are the most by far; a few of them, for the time of the last."""
    if not path.is_file():
        return
    kept = b""
    with path.open("rb") as file:
        for raw in file:
            if _MERGED in raw:
                kept = raw
            else:
                yield raw
    yield kept


def _take(story: Story, line: Mapping[str, Any]) -> None:
    seconds, event = number_of(line, "time"), line.get("event")
    story.last = max(story.last, seconds)
    match event:
        case "clock":
            begun = datetime.fromisoformat(text_of(line, "at")).timestamp()
            story.clocks.append((seconds, begun))
        case "joined":
            pid = count_of(line, "process") if line.get("process") else 0
            story.hosts[count_of(line, "worker")] = (_host(text_of(line, "host")), pid)
        case "left" if story.ended is None:
            story.troubles += _of_left(
                story, count_of(line, "worker"), text_of(line, "cause"), seconds
            )
        case "set-aside":
            worker, why = count_of(line, "worker"), text_of(line, "reason")
            first = _first_of_row(story.refused, worker, seconds)
            host, pid = story.hosts.get(worker, ("", 0))
            story.troubles.append(
                Trouble(f"worker {worker}", first, why, OWN, host, pid, worker=worker)
            )
        case "result" if line.get("decision") in ("refused", "discarded"):
            story.refused.append((seconds, count_of(line, "worker"), text_of(line, "reason")))
        case "store":
            _take_store(story, text_of(line, "problem"), seconds)
        case "test" if problem := text_of(line, "problem"):
            over = story.ended is not None  # the last test is part of the work
            kind = OWN if over else SILENT
            story.troubles.append(Trouble("the tester", seconds, problem, kind, is_loss=over))
        case "resumed":
            if story.ended is None:
                story.troubles.append(Trouble("the master", seconds, ANOTHER_MASTER, SILENT))
            story.ended = None
        case "finish":
            story.ended = (seconds, line.get("complete") is True, text_of(line, "reason"))


def _take_store(story: Story, problem: str, seconds: float) -> None:
    """A trouble that is over before anything was lost explains no later loss."""
    if problem:
        story.troubles.append(Trouble("the store", seconds, problem, OWN, is_loss=False))
    elif story.troubles and story.troubles[-1].process == "the store":
        story.troubles.pop()


def _host(name: str) -> str:
    return "" if name == "here" else name


def _of_left(story: Story, worker: int, cause: str, seconds: float) -> list[Trouble]:
    if _ASKED.search(cause):
        return []
    host, pid = story.hosts.get(worker, ("", 0))
    one = Trouble(f"worker {worker}", seconds, cause, OWN, host, pid, worker=worker)
    if waited := _WAITED.search(cause):
        one = replace(one, seconds=max(0.0, seconds - float(waited[1])), given_up=seconds)
    if _OF_HOST.match(cause):
        if not host:
            return [replace(one, kind=SILENT)]
        why = "its Ray node or the process that keeps its workers died, or it cannot be reached"
        found = [
            one
            for one in story.troubles
            if one.process == f"host {host}" and seconds - one.seconds < TOGETHER_S
        ]
        gone = [] if found else [Trouble(f"host {host}", seconds, why, SILENT, host)]
        return [*gone, replace(one, kind=FOLLOWS)]
    if _FOLLOWS.match(cause):
        return [replace(one, kind=FOLLOWS)]
    return [replace(one, kind=SILENT) if _SILENT.search(cause) else one]


def _first_of_row(refused: Iterable[tuple[float, int, str]], worker: int, seconds: float) -> float:
    """When the first of the last results was refused for which a worker is set aside."""
    own = [when for when, whose, _ in refused if whose == worker][-3:]
    return own[0] if own else seconds


def _take_notes(story: Story, log: Path) -> None:
    """Hosts that were refused or are gone, from the notes on the console."""
    for line in last_bytes(log, NOTES_BYTES).decode(errors="replace").splitlines():
        found = _STAMPED.match(line)
        if found is None:
            continue
        seconds = max(0.0, story.seconds_at(datetime.strptime(found[1], STAMP).timestamp()))
        if refused := _REFUSED_NODE.match(found[2]):
            why = refused["why"]
            kind = FOLLOWS if why.startswith("every worker there died") else OWN
            one = Trouble(f"host {refused['host']}", seconds, why, kind, refused["host"])
        elif gone := _GONE_NODE.match(found[2]):
            why = "its node is gone: its Ray died, or it cannot be reached"
            one = Trouble(f"host {gone['host']}", seconds, why, SILENT, gone["host"])
        elif silent := _SILENT_HOST.match(found[2]):
            began, host = max(0.0, seconds - float(silent["waited"])), silent["host"]
            why = silent["why"].removeprefix("warning: ")
            one = Trouble(f"host {host}", began, why, SILENT, host, is_loss=False)
        elif heard := _HEARD_HOST.match(found[2]):
            _end_silence(story, heard["host"], seconds)
            continue
        elif lost := _LOST_SERVER.match(found[2]):
            one = Trouble(lost["process"], seconds, lost["why"], SILENT)
        else:
            continue
        story.troubles.append(one)


def _end_silence(story: Story, host: str, seconds: float) -> None:
    """A host that is heard again before one of its workers was lost explains no loss."""
    since = [one for one in story.troubles if one.process == f"host {host}" and not one.is_loss]
    lost = [one for one in story.troubles if one.host == host and one.is_loss]
    if since and not any(
        since[-1].seconds - TOGETHER_S <= one.seconds <= seconds + 2.0 for one in lost
    ):
        story.troubles.remove(since[-1])


def hosts_of(run_dir: Path) -> set[str]:
    """The names of the machines that had workers, without the master's own."""
    return {host for host, _ in read_story(run_dir).hosts.values() if host}


def end_of(story: Story, error: BaseException | None) -> Trouble | None:
    """How the run ended, if it ended badly."""
    if error is not None:
        if not isinstance(error, SpeedoError):
            return Trouble("the command", story.last, f"{type(error).__name__}: {error}", OWN)
        end = _classified(str(error), story.last)
        if isinstance(error, StoreError) and end.process == "the run":
            return replace(end, process="the store")
        return end
    if story.ended is None or story.ended[1]:
        return None
    seconds, _, reason = story.ended
    if reason.startswith("stopped by ") and not reason.startswith("stopped by an exception"):
        return None
    return _classified(reason, seconds)


def _classified(text: str, seconds: float) -> Trouble:
    for pattern, process, kind in _ENDS:
        if (found := pattern.search(text)) is None:
            continue
        groups = found.groupdict()
        if "rest" in groups:
            return _classified(groups["rest"], seconds)
        who = process.format(**groups) if process else "the run"
        return Trouble(who, seconds, text, kind, groups.get("host") or "", is_loss=True)
    return Trouble("the run", seconds, text, OWN)
