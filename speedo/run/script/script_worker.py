"""The worker that exchanges vectors for a script, with the master that has given it a place."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from speedo.master.slots import ServerAddress
from speedo.run.host_memory import host_centers
from speedo.run.open_store import is_near, overlaps, run_store, server_stores
from speedo.run.scratch import LEAVES
from speedo.run.script_link import VARIABLE, Start
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.weights import Weights


def host_folder() -> Path:
    """What the workers of a host have in common."""
    return Path(os.environ[VARIABLE]).parent


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
