"""Keeps places for workers on a Ray cluster between runs: `python -m ... ADDRESS RESOURCES COUNT`.

It is a process of its own: the one that trains joins the cluster by itself, which a process can do once at a time. In
each place a `Holder` waits. Each line on standard input is answered with what is held, as JSON; at its end all places
are free.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError

from speedo.actors.fleet.connection import connected
from speedo.actors.fleet.seats import Seats
from speedo.actors.ray_node.actor_class import actor_class
from speedo.errors import ClusterError, SpeedoError
from speedo.exchange.channel import first_line
from speedo.run.config.resources import parse_resources

PATIENCE_S: Final = 10.0  # for the first place
REST_S: Final = 4.0
ANSWER_S: Final = 60.0
CLUSTER: Final = "the Ray cluster"


class Holder:
    """A process in a place; a node whose Python cannot import SpeeDO cannot start it."""

    def facts(self) -> dict[str, Any]:
        """Where it is."""
        address = ray.util.get_node_ip_address()
        return {"host": socket.gethostname(), "address": address, "pid": os.getpid()}


class Reservation:
    """The places; `failures` are those that there is no room for."""

    def __init__(self, resources: str, count: int) -> None:
        needs = parse_resources(resources)
        self._seats = Seats(needs, "spread")
        self.failures: list[dict[str, Any]] = []
        placed = 0
        try:
            placed = self._seats.begin(count, 1, frozenset(), PATIENCE_S, lambda _: None)
        except ClusterError as error:
            self._failed(CLUSTER, str(error), count)
        else:
            placed = self._fill(placed, count)
            if placed < count:
                self._failed(CLUSTER, self._seats.why_full(count - placed), count - placed)
        seats = self._seats.look() if placed else []
        self._holders = [actor_class(Holder, **seat.options(needs)).remote() for seat in seats]
        self._known: dict[int, dict[str, Any]] = {}

    def look(self) -> dict[str, Any]:
        """The holders that answer; one that does not is a failure from now on."""
        asked = {number: one.facts.remote() for number, one in enumerate(self._holders) if one}
        for number, one in asked.items():
            try:
                self._known[number] = {"id": number, **ray.get(one, timeout=ANSWER_S)}
            except (RayError, GetTimeoutError) as error:
                known = self._known.pop(number, {"host": CLUSTER})
                self._failed(known["host"], f"its process is gone: {first_line(error)}", 1)
                self._holders[number] = None
        return {"workers": list(self._known.values()), "failures": self.failures}

    def _fill(self, placed: int, count: int) -> int:
        """Ask for the rest one by one: what is free is known only roughly. Returns how many there are then."""
        self._seats.more(count - placed, frozenset())
        deadline = time.monotonic() + REST_S
        while waiting := [one for one in self._seats.look() if not one.node]:
            if time.monotonic() > deadline:
                self._seats.give_back(waiting)
                break
            time.sleep(0.2)
        return len(self._seats.look())

    def close(self) -> None:
        """Free all places."""
        self._seats.close()

    def _failed(self, host: str, cause: str, workers: int) -> None:
        self.failures.append({"host": host, "cause": cause, "workers": workers})


def main(address: str, resources: str, count: int) -> None:
    """Serve standard input until it ends."""
    try:
        with connected(address, lambda _: None):
            held = Reservation(resources, count)
            try:
                for _ in sys.stdin:
                    print(json.dumps(held.look()), flush=True)
            finally:
                held.close()
    except SpeedoError as error:
        failure = {"host": CLUSTER, "cause": str(error), "workers": count}
        print(json.dumps({"workers": [], "failures": [failure]}), flush=True)


if __name__ == "__main__":
    # Under this name the nodes import the holder, instead of getting its code.
    from speedo.actors.fleet.reserve import main as imported_main

    imported_main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
