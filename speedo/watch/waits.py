"""What every process of a run waits for, and since when: what the master says, and what the kernel and Python say.

The processes of this machine are found by their logs, so a master that hangs is no hindrance. Each writes its stacks
into its log when it gets `STACK_SIGNAL`; what it does follows from the functions that it is in.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speedo.engines.native_failures import STACK_SIGNAL
from speedo.run_dir.directory import LOGS
from speedo.run_dir.process_logs import process_of
from speedo.system.appended import length_of
from speedo.system.foreign_text import clean_text
from speedo.system.process_state import ProcessState, states_of, takes_signal, title_of, writes_to

DUMP_S: Final = 2.0  # for a process to write its stacks
QUIET_S: Final = 0.1  # without a byte more they are whole
LONG_S: Final = 5.0  # a turn that is owed for longer may hang: its worker's stacks are shown
MOST_FRAMES: Final = 12  # shown of a thread
_OURS: Final = "ray::"  # titles of the processes that have a handler for the signal
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+) in (.+)$')
FOR_TEAM: Final = "waiting for other members of its team"
# What a process does, by the innermost frame that says so, as `file:function`; of the first ones only by the two
# innermost frames, because others run inside of these functions, too. The more telling come first.
_INNERMOST: Final = (
    (re.compile(r"retrying_store\.py:"), "waiting for the store"),
    (re.compile(r"channel\.py:(?:get|_look)"), "waiting for events"),
    (re.compile(r"channel\.py:"), "waiting for its next turn"),
)
_DOING: Final = (
    (
        re.compile(
            r"(?:team_meeting|host_ring|host_links|host_exchange|member_memory|collective)\.py:"
        ),
        FOR_TEAM,
    ),
    (re.compile(r":_?fetch"), "fetching"),
    (re.compile(r":(?:_?publish|made_in_team|put_)"), "publishing"),
    (re.compile(r":evaluate"), "testing"),
    (re.compile(r"/engines/|_solver\.py:"), "computing"),
)
_ORDER: Final = (
    "waiting for the store", FOR_TEAM, "fetching", "publishing", "testing", "computing", "waiting for events",
    "waiting for its next turn",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread of Python, innermost frame first: file, line and function."""

    thread: str
    frames: tuple[tuple[str, int, str], ...]

    @property
    def doing(self) -> str:
        """In words, as far as the functions tell."""
        names = [f"{file}:{function}" for file, _, function in self.frames]
        for rules, some in ((_INNERMOST, names[:2]), (_DOING, names)):
            for name in some:
                for pattern, words in rules:
                    if pattern.search(name):
                        return words
        return ""


@dataclass(slots=True)
class SeenProcess:
    """A process on this machine: `process` as people name it; without `stacks` it gave none, `why_none` says why."""

    process: str
    pid: int
    log: Path
    state: ProcessState
    stacks: list[Stack] = field(default_factory=list)
    why_none: str = ""

    @property
    def doing(self) -> str:
        """What its most telling thread does: one that computes or waits for others before one that waits for work."""
        found = [stack.doing for stack in self.stacks]
        return min(filter(None, found), key=_ORDER.index, default="")


def look(run_dir: Path) -> list[SeenProcess]:
    """The run's processes on this machine, with their stacks; takes about a second."""
    logs = writes_to(run_dir / LOGS)
    states = states_of(sorted(logs))
    found = [
        SeenProcess(process_of(logs[pid]), pid, logs[pid], state)
        for pid, state in states.items()
        if state.state not in "ZX"
    ]
    found.sort(
        key=lambda one: (one.process.split()[0] != "master", _in_order(one.process), one.pid)
    )
    asked = []
    for one in found:
        if not title_of(one.pid).startswith(_OURS) or not takes_signal(one.pid, STACK_SIGNAL):
            one.why_none = "it is no process of SpeeDO's own, or is just starting"
        elif one.state.state in "Tt":
            one.why_none = "a stopped process answers no signal"
        else:
            begin = length_of(one.log)
            with suppress(OSError):
                os.kill(one.pid, STACK_SIGNAL)
                asked.append((one, begin))
    for one, begin in asked:
        one.stacks = stacks_in(_written(one.log, begin))
        one.why_none = "" if one.stacks else "it did not answer the signal"
    return found


def _in_order(process: str) -> tuple[str, int]:
    name, _, number = process.partition(" ")
    return name, int(number) if number.isdigit() else 0


def _written(log: Path, begin: int) -> str:
    """What the log gains from byte `begin` on, until that is whole."""
    end, size, since = time.monotonic() + DUMP_S, begin, time.monotonic()
    while (now := time.monotonic()) < end and not (size > begin and now > since + QUIET_S):
        if (grown := length_of(log)) != size:
            size, since = grown, now
        time.sleep(0.02)
    try:
        with log.open("rb") as file:
            file.seek(begin)
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def stacks_in(text: str) -> list[Stack]:
    """The stacks in what Python's fault handler wrote."""
    found: list[tuple[str, list[tuple[str, int, str]]]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            found.append((thread[1], []))
        elif found and (frame := _FRAME.match(line)):
            found[-1][1].append((frame[1], int(frame[2]), frame[3]))
    return [Stack(thread, tuple(frames)) for thread, frames in found if frames]


# ---------------------------------------------------------------- in words


def lines_of(
    seen: Sequence[SeenProcess], status: Mapping[str, Any] | None, problem: str
) -> list[str]:
    """What each process waits for; `problem` is why there is no `status` of the master."""
    lines = [f"  master     {_master(status) if status else problem}"]
    owed = {int(one["worker"]): one for one in (status or {}).get("owed") or ()}
    here = {one.process: one for one in seen}
    late = _late_members(owed, here)
    for worker in (status or {}).get("workers") or ():
        name = f"worker {worker['worker']}"
        turn = owed.get(int(worker["worker"]))
        parts = [_owes(turn) if turn else f"{worker['state']}, owes no turn"]
        own = here.get(name)
        if own is None and not worker.get("away"):
            parts.append(
                f"process {worker['process']} on {worker['host']}: not of this machine's logs"
            )
        elif own is not None and own.doing == FOR_TEAM and late:
            parts.append(f"waits for {', '.join(late)} of its team")
        lines.append(f"  {name}: {'; '.join(parts)}")
    for server in (status or {}).get("servers") or ():
        lines.append(f"  server {server['server']} on {server['host']}: {server['state']}")
    if status and status.get("testing"):
        lines.append(f"  tester: {status['testing']}")
    for one in seen:
        doing = f"; {one.doing}" if one.doing else ""
        lines.append(f"  {one.process}, process {one.pid}: {one.state.words}{doing}")
        if one.state.hangs or _is_long(owed, one) or (problem and one.process == "master"):
            lines += _stacks(one)
    return lines


def _master(status: Mapping[str, Any]) -> str:
    heard = status.get("heard_s")
    text = f"{status['state']}; {len(status.get('owed') or ())} turns are owed"
    if heard is not None:
        text += f"; the last message of a worker came {heard:.1f} s ago"
    if status.get("store_trouble"):
        text += f"; waits for the store: {status['store_trouble']}"
    return text


def _owes(turn: Mapping[str, Any]) -> str:
    text = f"owes a turn for {turn['since_s']:.1f} s"
    if turn.get("deadline_s") is not None:
        text += f", must answer within {turn['deadline_s']:.0f} s"
    if len(turn.get("team") or ()) > 1:
        text += f", in a team of workers {', '.join(map(str, turn['team']))}"
    return text


def _late_members(owed: Mapping[int, Any], here: Mapping[str, SeenProcess]) -> list[str]:
    """Workers that owe a turn and do not wait for their team: it waits for them."""
    found = []
    for worker, turn in owed.items():
        one = here.get(f"worker {worker}")
        waits = one is not None and one.doing == FOR_TEAM
        if len(turn.get("team") or ()) > 1 and not waits:
            found.append(f"worker {worker}")
    return found


def _is_long(owed: Mapping[int, Any], one: SeenProcess) -> bool:
    kind, _, number = one.process.partition(" ")
    turn = owed.get(int(number)) if kind == "worker" and number.isdigit() else None
    return turn is not None and turn["since_s"] > LONG_S


def _stacks(one: SeenProcess) -> Iterator[str]:
    if one.why_none:
        yield f"    no stack of Python: {one.why_none}"
    for stack in one.stacks:
        yield f"    thread {stack.thread} of Python, innermost first:"
        for file, line, function in stack.frames[:MOST_FRAMES]:
            yield f"      {clean_text(file)}:{line} {clean_text(function)}"
    for thread in one.state.threads:
        if thread.waits_in or thread.stack:
            yield f"    thread {clean_text(thread.name)} ({thread.state}) waits in {thread.waits_in or 'the kernel'}"
            for entry in thread.stack[:MOST_FRAMES]:
                yield f"      {clean_text(entry)}"
