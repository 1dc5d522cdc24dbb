"""How the workers of a run find each other: those of a host in its memory, hosts through the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from speedo.errors import ConfigError, TeamBrokenError
from speedo.messages import Team
from speedo.run.open_store import is_near, redis_store, this_machine
from speedo.run.script_link import Meet, Start
from speedo.script.turns import TurnSource
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import RetryingStore
from speedo.transport.collective import Collective
from speedo.transport.host_exchange import HostExchange
from speedo.transport.spread_collective import SpreadCollective

FOLDER: Final = "collective"  # in the run's memory on this host
AGAIN_S: Final = 0.02  # before the master is asked again whether all have come


def gather(start: Start, turns: TurnSource) -> Collective | SpreadCollective:
    """The collective of all workers of the run, once they are there.

    Raises `TeamBrokenError` if they do not come in time, `ConfigError` if this one cannot take part.
    """
    settings, rank = start.settings, start.place.worker
    memory = settings.near.folder if is_near(settings.near) else settings.host_memory
    # Without memory that it shares a worker is a host of its own.
    meet = Meet(f"{this_machine()}:{memory or os.getpid()}")
    places = _all_places(lambda: turns.meet(meet), settings.timeout_s)
    hosts = [
        [one for one, there in enumerate(places) if there == place]
        for place in dict.fromkeys(places)
    ]
    folder = None
    if memory:
        folder = Path(memory, FOLDER)
        folder.mkdir(mode=0o700, exist_ok=True)
    if len(hosts) == 1 and folder is not None:
        return Collective(folder, rank, len(places), patience_s=settings.timeout_s)

    def gone() -> str:
        try:
            turns.meet(meet)
        except TeamBrokenError as error:
            return str(error)
        return ""

    def exchange(own: int) -> HostExchange:
        leaders = [ranks[0] for ranks in hosts]
        store = RetryingStore(_store(start), patience_s=settings.timeout_s)
        return HostExchange(store, settings.keyspace, leaders, own, settings.timeout_s, gone)

    return SpreadCollective(folder, rank, hosts, exchange, patience_s=settings.timeout_s)


def between_hosts(start: Start, turns: TurnSource, team: Team) -> HostExchange:
    """The way of a host's first member of this team to those of its other hosts.

    A store that fails breaks the team, which forms anew once the center can be fetched: so its calls are not repeated.
    """
    leaders = [team.workers[ranks[0]] for ranks in team.spread]
    own = leaders.index(start.place.worker)
    members = tuple((worker, incarnation) for worker, incarnation, _ in team.members)
    return HostExchange(
        _store(start),
        start.settings.keyspace,
        leaders,
        own,
        team.patience_s,
        lambda: turns.missing(members),
        team.formed,
    )


def _store(start: Start) -> RedisStore:
    """The run's. Raises `ConfigError` where there is none that all hosts reach."""
    url = start.place.redis_url
    if not url:
        raise ConfigError(
            "workers that share no memory exchange through Redis, and this run has none: leave out "
            "--same-node redis, or make room in /dev/shm"
        )
    return redis_store(url, start.settings)


def _all_places(meet: Callable[[], tuple[str, ...]], patience_s: float) -> tuple[str, ...]:
    began = time.monotonic()
    while not (places := meet()):
        if time.monotonic() > began + patience_s:
            raise TeamBrokenError(
                f"not all workers came to their first collective within {patience_s:g} s"
            )
        time.sleep(AGAIN_S)
    return places
