"""How the workers that act for their hosts exchange with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speedo.errors import ConfigError, StoreError, TeamBrokenError
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import ANY_PORT, Rendezvous
from speedo.master.slots import Assignment
from speedo.messages import Team
from speedo.run.settings import RunSettings
from speedo.storage.redis.store import RedisStore

Incarnations = tuple[tuple[int, int], ...]  # workers


def between_hosts(
    settings: RunSettings,
    place: Assignment,
    leaders: Sequence[int],
    among: str,
    gone: Callable[[], str],
    patience_s: float,
) -> HostExchange:
    """The way of worker `place.worker`, one of the `leaders`, to the others; see `HostExchange`.

    Its address is that towards the run's Redis, where they meet. Raises `ConfigError` where there is none,
    `TeamBrokenError` if it cannot be reached.
    """
    url = place.redis_url
    if not url:
        raise ConfigError(
            "workers that share no memory meet through Redis, and this run has none: leave out same_node=redis, or "
            "make room in /dev/shm"
        )
    store = RedisStore(url, ca_pem=settings.redis_ca)
    try:
        address = store.own_address()
    except StoreError as error:
        raise TeamBrokenError(str(error)) from None
    ports, tls = settings.ring_ports or ANY_PORT, url.startswith("rediss:")
    at = Rendezvous(store, settings.keyspace, among, address, ports, tls=tls)
    return HostExchange(at, leaders, leaders.index(place.worker), patience_s, gone)


def between_hosts_of(
    settings: RunSettings, place: Assignment, missing: Callable[[Incarnations], str], team: Team
) -> HostExchange:
    """The way of a host's first member of this team to those of others; `missing` says which member is gone."""
    members = tuple((worker, incarnation) for worker, incarnation, _ in team.members)
    leaders = [team.workers[ranks[0]] for ranks in team.spread]
    return between_hosts(
        settings, place, leaders, f"team{team.formed}", lambda: missing(members), team.patience_s
    )
