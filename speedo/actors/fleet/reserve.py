"""Keeps places for workers on a Ray cluster between runs: `python -m ... FD`, a connection to who wants them.

It is a process of its own: the one that trains joins the cluster by itself, which a process can do once at a time. In
each place a `PlaceHolder` waits. It gets the cluster's address, what each place has, and how many there are to be; then
each message is answered with what is held. At the end of the connection all places are free.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.fleet.connection import connected
from speedo.actors.fleet.seats import Seat, Seats
from speedo.actors.ray_node.actor_class import actor_class
from speedo.errors import ClusterError, SpeedoError
from speedo.exchange.channel import first_line
from speedo.run.config.resources import parse_resources

PATIENCE_S: Final = 10.0  # for the first place
REST_S: Final = 4.0
ANSWER_S: Final = 60.0
CLUSTER: Final = "the Ray cluster"


class PlaceHolder:
    """A process in a place; a node whose Python cannot import SpeeDO cannot start it."""

    def facts(self) -> dict[str, Any]:
        """Where it is."""
        address = ray.util.get_node_ip_address()
        return {"host": socket.gethostname(), "address": address, "pid": os.getpid()}


class Reservation:
    """As many places as the cluster has room for, as the fleet of a run has them; more once there is room."""

    def __init__(self, resources: str, count: int) -> None:
        self._seats, self._count = Seats(parse_resources(resources), "spread"), count
        self._holders: dict[tuple[str, int], Any] = {}
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        with suppress(ClusterError):  # `look` says that there is no room
            self._seats.begin(count, 1, frozenset(), PATIENCE_S, lambda _: None)
        self._due = time.monotonic() + REST_S

    def look(self) -> dict[str, Any]:
        """The holders that answer; and a failure for each place that there is no room for, or whose holder is gone."""
        while len(seats := self._placed()) < self._count and time.monotonic() < self._due:
            time.sleep(0.2)
        for seat in seats:
            if seat.key not in self._holders:
                self._holders[seat.key] = actor_class(
                    PlaceHolder, **seat.options(self._seats.needs)
                ).remote()
        asked = {key: holder.facts.remote() for key, holder in self._holders.items()}
        workers, failures = [], []
        for number, (key, one) in enumerate(asked.items()):
            try:
                self._known[key] = ray.get(one, timeout=ANSWER_S)
                workers.append({"id": number, **self._known[key]})
            except RayError as error:
                host = self._known.get(key, {"host": CLUSTER})["host"]
                failures.append(_failure(f"its process is gone: {first_line(error)}", 1, host))
        if missing := self._count - len(seats):
            failures.append(_failure(self._seats.why_full(missing), missing))
        return {"workers": workers, "failures": failures}

    def _placed(self) -> list[Seat]:
        return [
            seat for some in self._seats.used(self._count, frozenset()).values() for seat in some
        ]

    def close(self) -> None:
        """Free all places."""
        self._seats.close()


def _failure(cause: str, workers: int, host: str = CLUSTER) -> dict[str, Any]:
    return {"host": host, "cause": cause, "workers": workers}


def main() -> None:
    """Answer until the connection ends."""
    asking = Connection(int(sys.argv[1]))
    address, resources, count = asking.recv()
    with suppress(EOFError, OSError):
        try:
            with connected(address, lambda _: None):
                held = Reservation(resources, count)
                try:
                    while True:
                        asking.recv()
                        asking.send(held.look())
                finally:
                    held.close()
        except SpeedoError as error:
            asking.send({"workers": [], "failures": [_failure(str(error), count)]})


if __name__ == "__main__":
    # Under this name the nodes import the holder, instead of getting its code.
    from speedo.actors.fleet.reserve import main as imported_main

    imported_main()
