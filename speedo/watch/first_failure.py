"""What failed first: which process of which host, when, with its own last words, and what only followed.

All that a run has told is put in order on the clock of its log: workers that left or were set aside, the store's
troubles, hosts that were refused or are gone, masters that were replaced, and how the run ended. What happened close
together is one incident. In it the first is who says by itself why it failed; if nobody does, what others depend on
(Ray, the store, a host) stands before who depends on it. The latest incident is told, because that is what ended a run.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from speedo.engines.native_failures import last_words
from speedo.errors import FencedError, SpeedoError, StoreError
from speedo.run_dir.directory import FAILURE, LOG, METRICS, write_whole
from speedo.run_dir.process_logs import STAMP, ProcessLog, logs_of
from speedo.run_dir.read_back import count_of, number_of, text_of
from speedo.system.files import last_bytes, read_bytes
from speedo.system.foreign_text import clean_text
from speedo.system.json_lines import values_of

TOGETHER_S: Final = 15.0  # a death is noticed within 10 s, and what follows from it soon after
AGAIN_S: Final = 120.0  # a worker that dies again within this is still the same failure
MOST_FOLLOWED: Final = 12
MOST_REFUSED: Final = 10_000
MOST_WORDS: Final = 600
TAIL_BYTES: Final = 32_000
MOST_FAILURE_BYTES: Final = 1 << 20
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
_WAITED: Final = re.compile(r"no (?:result|answer|step and tested) for (\d+) s|tested for (\d+) s")
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

    `is_loss`: the run lost something by it; otherwise it only helps to explain another one. `worker` is its slot.
    """

    process: str
    seconds: float
    cause: str
    kind: int = OWN
    host: str = ""
    pid: int = 0
    is_loss: bool = True
    worker: int = -1

    @property
    def rank(self) -> tuple[int, int, float]:
        """Who is first is the least."""
        if self.kind == OWN:
            return (OWN, 0, self.seconds)
        found = (at for at, name in enumerate(_DEPENDS) if self.process.startswith(name))
        return (self.kind, next(found, len(_DEPENDS)), self.seconds)


@dataclass(frozen=True, slots=True)
class Followed:
    """What came of it: `after_s` seconds later `what` happened to `process`."""

    process: str
    host: str
    after_s: float
    what: str


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The block. `at` is the date and time, empty if the log says none; `seconds` are those of the run.

    `log` is the file with its last words; `earlier` counts incidents before this one; `ended`: the run ended by it.
    """

    process: str
    host: str
    pid: int
    at: str
    seconds: float
    cause: str
    last_words: str
    log: str
    followed: tuple[Followed, ...]
    earlier: int = 0
    ended: bool = False

    def lines(self) -> list[str]:
        """The block as text."""
        where = f" on {self.host}" if self.host else ""
        which = f" (process {self.pid})" if self.pid else ""
        when = f"{self.seconds:.1f} s into the run" + (f", {self.at}" if self.at else "")
        found = [f"failed first: {self.process}{where}{which}, {when}", f"  cause: {self.cause}"]
        if self.last_words:
            found.append(f"  last words: {self.last_words}")
        for one in self.followed:
            host = f" on {one.host}" if one.host and one.host != self.host else ""
            found.append(f"  followed: {one.process}{host}, {one.after_s:.1f} s later: {one.what}")
        if self.log:
            found.append(f"  log: {self.log}")
        if self.earlier:
            found.append(
                f"  before that: {self.earlier} other failure{'s' if self.earlier > 1 else ''}"
            )
        return found


# ---------------------------------------------------------------- the run's own story


@dataclass(slots=True)
class _Story:
    """What the log of a run tells of failures."""

    troubles: list[Trouble]
    refused: deque[tuple[float, int, str]]  # the latest results: when, whose, why
    clocks: list[
        tuple[float, float]
    ]  # seconds of the run, and of 1970, at the beginning of each master
    hosts: dict[int, tuple[str, int]]  # of each worker: host and process
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


def _read(run_dir: Path) -> _Story:
    story = _Story([], deque(maxlen=MOST_REFUSED), [], {})
    for line in _lines_in(run_dir / METRICS):
        try:
            _take(story, line)
        except ValueError:
            continue  # an edited line
    _take_notes(story, run_dir / LOG)
    return story


def _lines_in(path: Path) -> Iterable[Mapping[str, Any]]:
    """All lines but those of merged results, which are the most by far; a few of them, for the time of the last."""
    if not path.is_file():
        return
    kept = b""
    with path.open("rb") as file:
        for raw in file:
            if _MERGED in raw:
                kept = raw
                continue
            yield from _object(raw)
    yield from _object(kept)


def _object(raw: bytes) -> Iterable[Mapping[str, Any]]:
    try:
        values = values_of(raw)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        yield values


def _take(story: _Story, line: Mapping[str, Any]) -> None:
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
                text = "its process ended; another master went on from its last checkpoint"
                story.troubles.append(Trouble("the master", seconds, text, SILENT))
            story.ended = None
        case "finish":
            story.ended = (seconds, line.get("complete") is True, text_of(line, "reason"))


def _take_store(story: _Story, problem: str, seconds: float) -> None:
    """A trouble that is over before anything was lost explains no later loss."""
    if problem:
        story.troubles.append(Trouble("the store", seconds, problem, OWN, is_loss=False))
    elif story.troubles and story.troubles[-1].process == "the store":
        story.troubles.pop()


def _host(name: str) -> str:
    return "" if name == "here" else name


def _of_left(story: _Story, worker: int, cause: str, seconds: float) -> list[Trouble]:
    if _ASKED.search(cause):
        return []
    host, pid = story.hosts.get(worker, ("", 0))
    one = Trouble(f"worker {worker}", seconds, cause, OWN, host, pid, worker=worker)
    if waited := _WAITED.search(cause):
        one = replace(one, seconds=max(0.0, seconds - float(waited[1] or waited[2])))
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


def _take_notes(story: _Story, log: Path) -> None:
    """Hosts that were refused or are gone, from the notes on the console."""
    for line in last_bytes(log, MOST_FAILURE_BYTES).decode(errors="replace").splitlines():
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
        elif lost := _LOST_SERVER.match(found[2]):
            one = Trouble(lost["process"], seconds, lost["why"], SILENT)
        else:
            continue
        story.troubles.append(one)


def hosts_of(run_dir: Path) -> set[str]:
    """The names of the machines that had workers, without the master's own."""
    return {host for host, _ in _read(run_dir).hosts.values() if host}


# ---------------------------------------------------------------- which was first


def first_failure(run_dir: Path, error: BaseException | None = None) -> FirstFailure | None:
    """The latest incident of the run in this directory, which `error` has ended, if one has; None if it had none."""
    story = _read(run_dir)
    end = _end(story, error)
    troubles = sorted(story.troubles, key=lambda one: one.seconds)
    incidents = _incidents(troubles)
    if end is not None:
        last = incidents[-1] if incidents else []
        if any(one.process == end.process for one in last):  # it was waited for, in vain
            end = replace(end, process="the run", kind=FOLLOWS)
        near = last and (end.kind == FOLLOWS or end.seconds - last[-1].seconds <= TOGETHER_S)
        if near:
            last.append(end)
        else:
            incidents.append([end])
    incidents = [one for one in incidents if any(trouble.is_loss for trouble in one)]
    if not incidents:
        return None
    incident = incidents[-1]
    first = min(incident, key=lambda one: one.rank)
    found = _told(run_dir, story, first, incident, ended=end is not None)
    return replace(found, earlier=len(incidents) - 1)


def _incidents(troubles: Sequence[Trouble]) -> list[list[Trouble]]:
    found: list[list[Trouble]] = []
    for one in troubles:
        if found and _belongs(one, found[-1]):
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _belongs(one: Trouble, incident: Sequence[Trouble]) -> bool:
    gap = one.seconds - incident[-1].seconds
    again = any(one.process == other.process and one.cause == other.cause for other in incident)
    return gap <= (AGAIN_S if again else TOGETHER_S)


def _end(story: _Story, error: BaseException | None) -> Trouble | None:
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


def _told(
    run_dir: Path, story: _Story, first: Trouble, incident: Sequence[Trouble], *, ended: bool
) -> FirstFailure:
    wall = story.wall(first.seconds)
    log = _log_of(run_dir, first)
    words = ""
    if log is not None:
        latest = max(one.seconds for one in incident if one.process == first.process)
        until = story.wall(latest) + 1.0 if story.clocks else time.time()
        words = clean_text(last_words(log.until(until, TAIL_BYTES)), MOST_WORDS)
        words = "" if words in first.cause else words
    return FirstFailure(
        first.process,
        first.host,
        first.pid,
        time.strftime(STAMP, time.localtime(wall)) if wall else "",
        first.seconds,
        clean_text(first.cause),
        words,
        "" if log is None else str(log.path),
        tuple(_followers(story, first, incident)),
        ended=ended,
    )


def _followers(story: _Story, first: Trouble, incident: Sequence[Trouble]) -> Iterable[Followed]:
    count = 0
    until = max(one.seconds for one in incident)
    rows = [one for one in incident if one is not first]
    broken: dict[str, tuple[float, set[int]]] = {}
    for seconds, worker, reason in story.refused:
        if first.seconds <= seconds <= until + TOGETHER_S and worker != first.worker:
            _, whose = broken.setdefault(reason, (seconds, set()))
            whose.add(worker)
    for reason, (seconds, whose) in broken.items():
        names = ", ".join(map(str, sorted(whose)))
        name = f"worker{'s' if len(whose) > 1 else ''} {names}"
        rows.append(Trouble(name, seconds, f"results not merged: {reason}", FOLLOWS))
    for one in sorted(rows, key=lambda one: one.seconds):
        if count < MOST_FOLLOWED and one.process != first.process:
            count += 1
            after = max(0.0, one.seconds - first.seconds)
            yield Followed(one.process, one.host, after, clean_text(one.cause, MOST_WORDS))


def _log_of(run_dir: Path, first: Trouble) -> ProcessLog | None:
    """Of the process that failed first; of one on another host only if it was brought home."""
    name = first.process.removeprefix("the ")
    of_host = first.host.partition(":")[0]
    found = [one for one in logs_of(run_dir) if one.process == name]
    near = [one for one in found if one.host.startswith(of_host)] if of_host else found
    return near[-1] if near else None


# ---------------------------------------------------------------- kept


def keep_failure(
    run_dir: Path, host: str, error: BaseException | None = None
) -> FirstFailure | None:
    """Write what failed first into the run's directory, whose machine is `host`; remove what an earlier part left.

    Nothing is written where no run has begun, and a disk that takes nothing is no reason to fail.
    """
    if not (run_dir / METRICS).is_file() or isinstance(error, FencedError):
        return None
    found = first_failure(run_dir, error)
    path = run_dir / FAILURE
    try:
        if found is None:
            path.unlink(missing_ok=True)
        else:
            found = replace(found, host=found.host or host)
            write_whole(path, json.dumps(asdict(found), indent=2) + "\n")
    except OSError:
        return found
    return found


@contextmanager
def first_failure_told(run_dir: Path, host: str, note: Callable[[str], None]) -> Iterator[None]:
    """At the end, keep what failed first; `note` gets it if the run has ended by it."""
    try:
        yield
    except Exception as error:
        _tell(keep_failure(run_dir, host, error), note)
        raise
    _tell(keep_failure(run_dir, host), note)


def _tell(found: FirstFailure | None, note: Callable[[str], None]) -> None:
    for line in found.lines() if found is not None and found.ended else ():
        note(line)


def kept_failure(run_dir: Path) -> FirstFailure | None:
    """What the end of the run has left there; else what its log says now."""
    try:
        values = json.loads(read_bytes(run_dir / FAILURE, MOST_FAILURE_BYTES))
        values["followed"] = tuple(Followed(**one) for one in values["followed"])
        return FirstFailure(**values)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return first_failure(run_dir)
