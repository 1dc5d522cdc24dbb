"""What failed first: which process of which host, when, with its own last words, and what only followed.

All that a run has told is put in order on the clock of its log: workers that left or were set aside, the store's
troubles, hosts that were refused or are gone, masters that were replaced, and how the run ended. What happened close
together is one incident. In it the first is who says by itself why it failed; if nobody does, what others depend on
(Ray, the store, a host) stands before who depends on it. The latest incident is told, because that is what ended a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from caffenets.files import read_bytes
from speedo.engines.native_failures import ENDED, last_words
from speedo.errors import FencedError
from speedo.run_dir.directory import FAILURE, METRICS, write_whole
from speedo.run_dir.process_logs import STAMP, ProcessLog, logs_of
from speedo.system.daemon_thread import within
from speedo.system.foreign_text import clean_text
from speedo.watch.troubles import (
    ANOTHER_MASTER,
    FOLLOWS,
    TOGETHER_S,
    Story,
    Trouble,
    end_of,
    read_story,
)

HOST_S: Final = 2.0  # for the host of a worker that hangs to write what its process does
AGAIN_S: Final = 120.0  # a worker that dies again within this is still the same failure
DISK_S: Final = 10.0  # for the log to be read and the result to be written
MOST_FOLLOWED: Final = 12
MOST_WORDS: Final = 600
TAIL_BYTES: Final = 32_000
MOST_FAILURE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Consequence:
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
    followed: tuple[Consequence, ...]
    earlier: int = 0
    ended: bool = False

    def lines(self) -> list[str]:
        """The block as text."""
        where = f" on {self.host}" if self.host else ""
        which = f" (process {self.pid})" if self.pid else ""
        known = [f"{self.seconds:.1f} s into the run"] if self.seconds else []
        when = ", ".join([*known, *([self.at] if self.at else [])])
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


# ---------------------------------------------------------------- which was first


def first_failure(run_dir: Path, error: BaseException | None = None) -> FirstFailure | None:
    """The latest incident of the run in this directory, which `error` has ended, if one has; None if it had none."""
    story = read_story(run_dir)
    end = end_of(story, error)
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


def _told(
    run_dir: Path, story: Story, first: Trouble, incident: Sequence[Trouble], *, ended: bool
) -> FirstFailure:
    wall = story.wall(first.seconds)
    log = _log_of(run_dir, first)
    words = ""
    if log is not None:
        own = [one for one in incident if one.process == first.process]
        latest = max(max(one.seconds, one.given_up) for one in own)
        text = log.until(story.wall(latest) + HOST_S if story.clocks else time.time(), TAIL_BYTES)
        before, end, rest = text.rpartition(f"{ENDED}{first.cause}")  # then the next process writes
        text = before + end + rest.partition("\n")[0] if end else text
        words = clean_text(last_words(text), MOST_WORDS)
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


def _followers(story: Story, first: Trouble, incident: Sequence[Trouble]) -> Iterable[Consequence]:
    count = 0
    until = max(one.seconds for one in incident)
    rows = [one for one in incident if one is not first]
    broken: dict[str, tuple[float, set[int]]] = {}
    for seconds, worker, reason in story.refused:
        # Others of a team often know of a death before the master does.
        since = first.seconds - (TOGETHER_S if first.process in reason else 0.0)
        if since <= seconds <= until + TOGETHER_S and worker != first.worker:
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
            yield Consequence(one.process, one.host, after, clean_text(one.cause, MOST_WORDS))


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
    if found is not None and found.cause == ANOTHER_MASTER and path.is_file():
        before = kept_failure(run_dir)  # what ended the former master knows more than that it ended
        found = found if before is None else replace(before, ended=found.ended)
    try:
        if found is None:
            path.unlink(missing_ok=True)
        else:
            found = replace(found, host=found.host or host)
            write_whole(path, json.dumps(asdict(found), indent=2) + "\n")
    except OSError:
        return found
    return found


def _without_log(end: Trouble, host: str) -> FirstFailure:
    at = time.strftime(STAMP)
    return FirstFailure(
        end.process, end.host or host, 0, at, 0.0, clean_text(end.cause), "", "", (), ended=True
    )


def _to_nobody(_: str) -> None:
    pass


@contextmanager
def first_failure_told(run_dir: Path, host: str, note: Callable[[str], None]) -> Iterator[None]:
    """At the end, keep what failed first; `note` gets it if the run has ended by it."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
        raise
    except BaseException:  # it is stopped from outside
        note = _to_nobody
        raise
    finally:
        try:
            found = within(DISK_S, lambda: keep_failure(run_dir, host, error))
        except OSError:  # its disk hangs
            end = end_of(Story(), error)
            found = None if end is None else _without_log(end, host)
        except Exception as bug:  # it must not hide why the run has ended
            found, text = None, f"{type(bug).__name__}: {bug}"
            note(f"warning: what failed first could not be found ({text}); report this")
        for line in found.lines() if found is not None and found.ended else ():
            note(line)


def kept_failure(run_dir: Path) -> FirstFailure | None:
    """What the end of the run has left there; else what its log says now."""
    try:
        values = json.loads(read_bytes(run_dir / FAILURE, MOST_FAILURE_BYTES))
        values["followed"] = tuple(Consequence(**one) for one in values["followed"])
        return FirstFailure(**values)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return first_failure(run_dir)
