"""How the workers that act for their hosts exchange with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speedo.errors import ConfigError
from speedo.exchange.host_exchange import HostExchange
from speedo.master.slots import Assignment
from speedo.messages import Team
from speedo.run.open_store import redis_store
from speedo.run.settings import RunSettings
from speedo.storage.retrying_store import RetryingStore

Incarnations = tuple[tuple[int, int], ...]  # workers


def between_hosts(
    settings: RunSettings,
    place: Assignment,
    leaders: Sequence[int],
    among: str,
    gone: Callable[[], str],
    patience_s: float,
    *,
    retries: bool = False,
) -> HostExchange:
    """The way of worker `place.worker`, one of the `leaders`, to the others; see `HostExchange`.

    With `retries` calls of the store are repeated. Raises `ConfigError` where there is none that all hosts reach.
    """
    if not place.redis_url:
        raise ConfigError(
            "workers that share no memory exchange through Redis, and this run has none: leave out "
            "--same-node redis, or make room in /dev/shm"
        )
    redis = redis_store(place.redis_url, settings)
    return HostExchange(
        RetryingStore(redis, patience_s=patience_s) if retries else redis,
        settings.keyspace,
        among,
        leaders,
        leaders.index(place.worker),
        patience_s,
        gone,
    )


def between_hosts_of(
    settings: RunSettings, place: Assignment, missing: Callable[[Incarnations], str], team: Team
) -> HostExchange:
    """The way of a host's first member of this team to those of its other hosts; `missing` says which member is gone.

    A store that fails breaks the team, which forms again once the center can be fetched: so its calls are not repeated.
    """
    members = tuple((worker, incarnation) for worker, incarnation, _ in team.members)
    leaders = [team.workers[ranks[0]] for ranks in team.spread]
    return between_hosts(
        settings,
        place,
        leaders,
        f"team{team.formed}",
        lambda: missing(members),
        team.patience_s,
    )
