"""The worker that exchanges vectors for a script, with the master that has given it a place."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from speedo.errors import ConfigError
from speedo.exchange.transfer import put_history
from speedo.exchange.vector import Vector
from speedo.master.slots import ServerAddress
from speedo.run.host_memory import host_centers, too_little_memory
from speedo.run.open_store import is_near, overlaps, run_store, server_stores
from speedo.run.scratch import LEAVES
from speedo.run.script_link import VARIABLE, Start
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.weights import Weights

FIRST: Final = 0  # the version of the first weights in the store


def host_folder() -> Path:
    """What the workers of a host have in common."""
    return Path(os.environ[VARIABLE]).parent


def put_first_weights(start: Start, weights: Vector) -> None:
    """Give the run those of its first center, in worker 0. Raises `ConfigError` where there is no room for them."""
    settings, place = start.settings, start.place
    if place.worker:
        return
    problem = too_little_memory(settings, weights.nbytes)
    if problem and not place.redis_url:
        raise ConfigError(f"{problem}: make room there, or install redis-server")
    with closing(run_store(place.redis_url, settings)) as store:
        put_history(store, settings.keyspace, 0, FIRST, weights.tobytes())


def script_worker(
    start: Start,
    weights: Weights,
    servers: tuple[ServerAddress, ...],
    former: ScriptWorker | None,
) -> ScriptWorker:
    """That of this place, with the counts of a `former` one, which it takes the place of."""
    settings, place = start.settings, start.place
    # A relay may swap two turns that are under way at once.
    ahead = overlaps(settings) and is_near(settings.near)
    worker = ScriptWorker(
        settings.keyspace,
        place.worker,
        place.incarnation,
        weights,
        run_store(place.redis_url, settings),
        time.monotonic,
        settings.epoch,
        compression=settings.compression,
        outgoing=run_store(place.redis_url, settings) if ahead else None,
        servers=server_stores(servers, settings, both_ways=ahead),
        host=host_centers(settings, replace(place, servers=servers), weights.layout),
        leaves=(host_folder() / LEAVES).exists,
        overlap=ahead,
    )
    if former is not None:
        worker.samples, worker.iteration = former.samples, former.iteration
        former.close()
    return worker
