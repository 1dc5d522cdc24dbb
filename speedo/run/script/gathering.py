"""How the workers of a run find each other: those of a host in its memory, hosts by their addresses in the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from speedo.errors import TeamBrokenError
from speedo.exchange.collective import Collective
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.spread_collective import SpreadCollective
from speedo.master.meeting import Group
from speedo.run.between_hosts import between_hosts
from speedo.run.open_store import is_near, this_machine
from speedo.run.script.turns import TurnSource
from speedo.run.script_link import MeetScripts, Start

FOLDER: Final = "collective"  # in the run's memory on this host
AGAIN_S: Final = 0.02  # before the master is asked again whether all have come
SAY_S: Final = 1.0  # between two words of a worker that pauses


@dataclass(frozen=True)
class Gathered:
    """A group of workers that has met: its members by rank in it, and whether others wait to take part."""

    number: int
    workers: tuple[int, ...]
    collective: Collective | SpreadCollective
    others_wait: Callable[[], bool]


def gather(
    start: Start,
    turns: TurnSource,
    paused: Callable[[], AbstractContextManager[Callable[[], None]]],
    call: str,
    after: int,
) -> Gathered:
    """The next group of this worker after that of the number `after`, for this `call`.

    It is `paused`, so that nobody waits for its turn, if it comes later than the others; what that yields is to be
    called now and then. Raises `TeamBrokenError` if the others do not come in time, `ConfigError` if this worker cannot
    take part.
    """
    patience_s = start.settings.timeout_s
    near = start.settings.near
    memory = near.folder if is_near(near) else start.settings.host_memory
    deadline = time.monotonic() + patience_s
    while True:
        # Without memory that it shares a worker is a host of its own.
        place = f"{this_machine()}:{memory or os.getpid()}"
        meet = MeetScripts(after, place, call)
        met = turns.meet(meet)
        with paused() if met.late and met.group is None else nullcontext(_nothing) as say_again:
            group = met.group or _next_group(turns, meet, deadline, patience_s, say_again)
        try:
            return _met(start, turns, group, Path(memory) if memory else None)
        except TeamBrokenError:  # one of them is gone already
            if time.monotonic() > deadline:
                raise
            after = group.number


def _nothing() -> None:
    """Who does not pause need not say so again."""


def _next_group(
    turns: TurnSource,
    meet: MeetScripts,
    deadline: float,
    patience_s: float,
    say_again: Callable[[], None],
) -> Group:
    said = time.monotonic()
    while (group := turns.meet(meet).group) is None:
        now = time.monotonic()
        if now > said + SAY_S:
            said = now
            say_again()
        if now > deadline:
            raise TeamBrokenError(
                f"not all workers came to {meet.call} within {patience_s:g} s: a worker that comes later, or again, "
                "takes part once the others make the same call as it"
            )
        time.sleep(AGAIN_S)
    return group


def _met(start: Start, turns: TurnSource, group: Group, memory: Path | None) -> Gathered:
    settings, patience_s = start.settings, start.settings.timeout_s
    workers = tuple(worker for worker, _ in group.members)
    places = [place for _, place in group.members]
    rank = workers.index(start.place.worker)
    hosts = [
        [one for one, there in enumerate(places) if there == place]
        for place in dict.fromkeys(places)
    ]

    def gone() -> str:
        try:
            turns.meet(MeetScripts(group.number))
        except TeamBrokenError as error:
            return str(error)
        return ""

    def others_wait() -> bool:
        with suppress(TeamBrokenError):  # the call will show it
            return turns.meet(MeetScripts(group.number)).others_wait
        return False

    def gathered(collective: Collective | SpreadCollective) -> Gathered:
        return Gathered(group.number, workers, collective, others_wait)

    if len(workers) == 1:
        with TemporaryDirectory() as alone:
            return gathered(Collective(Path(alone), 0, 1, patience_s=patience_s))
    folder = None
    if memory is not None:
        folder = memory / FOLDER / str(group.number)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if len(hosts) == 1 and folder is not None:
        count = len(workers)
        return gathered(
            Collective(folder, rank, count, patience_s=patience_s, names=workers, gone=gone)
        )

    def exchange(own: int) -> HostExchange:
        leaders = [workers[ranks[0]] for ranks in hosts]
        name = f"group{group.number}"
        return between_hosts(settings, start.place, leaders, name, gone, patience_s)

    return gathered(
        SpreadCollective(
            folder, rank, hosts, exchange, patience_s=patience_s, names=workers, gone=gone
        )
    )
