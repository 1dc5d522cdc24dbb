"""The facts that a master publishes in Ray's key-value store: its net, its records, its clock.

A node can read them with the token before it joins: `speedo doctor` compares its own with them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from speedo.actors.ray_node import private, session
from speedo.run.prepare import Prepared
from speedo.version import VERSION

NAMESPACE: Final = b"speedo"
FACTS: Final = b"facts"
CLOCK: Final = b"clock"
TICK_S: Final = 1.0
READ_S: Final = 5.0
ANSWER_S: Final = 60.0


@contextmanager
def published(master: Any, prepared: Prepared) -> Iterator[None]:
    """Publish the facts once, and the wall clock every second while the context is open."""
    import ray

    put = private.find("internal_kv_put")
    if put is None:  # then `speedo doctor` has less to compare with
        yield
        return
    spec = prepared.spec
    facts = {
        "speedo": VERSION,
        "run": prepared.run,
        "mode": prepared.config.mode,
        "workers": prepared.config.workers,
        "batch_sizes": prepared.settings.batch_sizes[:1],
        "records": None if prepared.config.data_share == "own" else prepared.records,
        "solver": spec.text,
        "folder": str(spec.folder),
        "net_files": spec.net_files,
        "engine": asdict(prepared.settings.engine),
        **ray.get(master.facts.remote(), timeout=ANSWER_S),
    }
    put(FACTS, json.dumps(facts).encode(), namespace=NAMESPACE)
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            try:
                put(CLOCK, repr(time.time()).encode(), namespace=NAMESPACE)
            except Exception:
                return  # Ray is gone, and with it whoever could read this
            over.wait(TICK_S)

    clock = threading.Thread(target=tick, name="clock", daemon=True)
    clock.start()
    try:
        yield
    finally:
        over.set()
        clock.join(TICK_S)


def read_facts(address: str, token: str) -> tuple[dict[str, Any], float | None]:
    """The facts of the master at `address`, and how many seconds our wall clock is ahead of its clock.

    The seconds are None if its clock does not advance. Call it only for a master that `wait_for_master` has accepted:
    Ray retries a refused token for 20 s and then ends the process. Without facts the dictionary is empty.
    """
    session.load_ray(token)
    make_client = private.find("GcsClient")
    if make_client is None:
        return {}, None
    client = make_client(address=address)
    found = client.internal_kv_get(FACTS, NAMESPACE, timeout=READ_S)
    facts = json.loads(found) if found else {}
    return facts, _ahead(client) if facts else None


def _ahead(client: Any) -> float | None:
    """Our clock minus the master's, taken when its next tick is seen."""
    first = client.internal_kv_get(CLOCK, NAMESPACE, timeout=READ_S)
    deadline = time.monotonic() + 3 * TICK_S
    while time.monotonic() < deadline:
        ticked = client.internal_kv_get(CLOCK, NAMESPACE, timeout=READ_S)
        if ticked is not None and ticked != first:
            return time.time() - float(ticked)
        time.sleep(0.02)
    return None
