"""A range that a server lost with its store, out of the memory of a host: the newest that any of the hosts has.

Every host says once a second which versions it has. The one with the newest is ordered to write its copy into the store
of the new server, as a user who may write nothing else.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.errors import PayloadError, SpeedoError, StoreError
from speedo.exchange.channel import first_line
from speedo.exchange.codecs import make_codec
from speedo.exchange.host_centers import RangeCopy
from speedo.exchange.ranges import Range
from speedo.exchange.transfer import fetch_vector
from speedo.master.slots import ServerAddress
from speedo.messages import Kind
from speedo.run.host_memory import HostCopies
from speedo.run.open_store import server_store
from speedo.run.settings import RunSettings
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.storage.redis.users import Access

# For the hosts to say what they have; who has said nothing for so long is not waited for.
TELL_S: Final = 5.0
BRING_S: Final = 15.0  # for one of them to write its copy
TRIES: Final = 2  # hosts
SAY_S: Final = 1.0  # how often a host says what it has
SOON_S: Final = 0.1
ANSWER_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Bring:
    """Write the copy of this version of the range that begins at `start` into the store at `address`."""

    number: int
    start: int
    version: int
    address: ServerAddress


@dataclass(frozen=True, slots=True)
class Place:
    """Where a copy is brought to: a new server's range, its address and users, and the master's own connection."""

    range: Range
    address: ServerAddress
    access: Access
    store: Store


class RangeCopies:
    """Belongs to the master, whose threads call it; `run` is the keyspace, `form` how centers travel."""

    def __init__(self, run: str, form: str) -> None:
        self._run, self._form = run, form
        self._told: dict[str, tuple[float, Mapping[int, int]]] = {}
        self._orders: dict[str, Bring] = {}
        self._done: dict[int, str] = {}  # what went wrong, by the number of the order
        self._numbers = itertools.count(1)
        self._seeking = False
        self._changed = threading.Condition()

    def tell(self, host: str, newest: Mapping[int, int]) -> tuple[Bring | None, bool]:
        """Takes the newest versions that a host has, by where their range begins.

        Returns what it is to bring, if anything, and whether it is to call again soon.
        """
        with self._changed:
            self._told[host] = (time.monotonic(), newest)
            self._changed.notify_all()
            return self._orders.get(host), self._seeking

    def brought(self, number: int, problem: str) -> None:
        """An order is carried out; or not, with the reason."""
        with self._changed:
            self._done[number] = problem
            self._changed.notify_all()

    def newest(self, place: Place, after: int) -> RangeCopy | None:
        """The newest copy of this range above version `after` that a host can bring. Takes half a minute at worst."""
        with self._changed:
            self._seeking = True
        try:
            there = self._who_has(place.range.place.start, after)
            for version, host in sorted(there, reverse=True)[:TRIES]:
                with suppress(StoreError, PayloadError):
                    return self._from(host, version, place)
        finally:
            with self._changed:
                self._seeking = False
        return None

    def _who_has(self, start: int, after: int) -> list[tuple[int, str]]:
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(
                lambda: not any(began - TELL_S < told < began for told, _ in self._told.values()),
                TELL_S,
            )
            return [
                (newest[start], host)
                for host, (told, newest) in self._told.items()
                if told >= began and newest.get(start, 0) > after
            ]

    def _from(self, host: str, version: int, place: Place) -> RangeCopy:
        """Raises `StoreError`, `PayloadError`."""
        number, start = next(self._numbers), place.range.place.start
        key = keys.copy(self._run, start, version)
        address = replace(place.address, url=place.access.admit_host(number, start))
        try:
            with self._changed:
                self._orders[host] = Bring(number, start, version, address)
                self._changed.wait_for(lambda: number in self._done, BRING_S)
                del self._orders[host]
                problem = self._done.pop(number, f"it was not brought within {BRING_S:.0f} s")
            if problem:
                raise StoreError(problem)
            vector, layout = place.range.layout.zeros(), place.range.layout
            codec = make_codec(self._form, layout)
            header = fetch_vector(place.store, key, layout, Kind.CENTER, vector, codec)
            if header.version != version:
                raise PayloadError(f"{key} holds version {header.version}")
            return RangeCopy(version, vector, host)
        finally:
            place.access.dismiss_host(number)
            with suppress(StoreError):
                place.store.delete(key)


class CopyCarrier:
    """Belongs to the host of this name; its thread waits for nothing else that a host does."""

    def __init__(self, master: Any, settings: RunSettings, name: str) -> None:
        self._master, self._settings, self._name = master, settings, name
        self._copies = HostCopies(settings.keyspace, settings.host_memory)
        self._brought = 0  # number of the last order
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="range-copies", daemon=True)

    def start(self) -> None:
        """Begin, where this host has such memory."""
        if self._settings.host_memory:
            self._thread.start()

    def stop(self) -> None:
        """Say and bring no more; what is under way ends by itself."""
        self._stopping.set()

    def _carry(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = SAY_S
            try:
                asked = self._master.tell_copies.remote(self._name, self._copies.newest())
                order, soon = ray.get(asked, timeout=ANSWER_S)
                if order is not None and order.number != self._brought:
                    self._bring(order)
            except (RayError, SpeedoError, OSError):
                continue  # a master that is gone: others notice, and stop us
            pause = SOON_S if soon else SAY_S

    def _bring(self, order: Bring) -> None:
        self._brought, problem = order.number, ""
        settings = replace(self._settings, timeout_s=BRING_S / 2)
        try:
            with closing(server_store(order.address, settings)) as store:
                self._copies.copy_to(store, order.start, order.version)
        except (SpeedoError, OSError) as error:
            problem = first_line(error)
        ray.get(self._master.range_brought.remote(order.number, problem), timeout=ANSWER_S)
