"""What a worker and the tester exchange with the servers of the center: one vector, or its ranges side by side.

Each server keeps one range and has a store of its own, so the keys are the same in all of them. A center counts as
version v only if every range says v; a payload is there once every range is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

import numpy as np

from speedo.errors import MissingKeyError, PayloadError, StoreError
from speedo.exchange.codecs import NO_COMPRESSION, Compression, make_codec
from speedo.exchange.host_centers import HostCenters, HostRange
from speedo.exchange.ranges import Range, ranges_of
from speedo.exchange.transfer import (
    SeenVector,
    fetch_range_history,
    fetch_state,
    fetch_vector,
    look_at_vector,
    put_range_history,
    put_state,
    put_vector,
)
from speedo.exchange.vector import HEADER_BYTES, Header, Layout, Vector, as_bytes
from speedo.messages import Kind
from speedo.storage import keys
from speedo.storage.base import Store

PAYLOAD_EXPIRY_S: Final = 900.0  # a payload that no master fetched leaves the store by itself
PATIENCE_S: Final = 10.0  # a server that is replaced takes less, as a rule
# Between two looks for a center that is about to be merged; a server that is being replaced takes seconds.
SOON_S: Final = 0.2
SHORT_PAUSE_S: Final = 0.002
LONG_PAUSE_S: Final = 0.05
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Stores:
    """The connections to one server: `outgoing` takes payloads, where that is another than the one of centers."""

    incoming: Store
    outgoing: Store | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose payload it is, and of which turn."""

    worker: int
    incarnation: int
    ticket: int
    version: int
    epoch: int


class Exchange:
    """Centers in, payloads out, over one store per range. A store is used by one thread at a time.

    With several stores all ranges travel at once, each in a thread; `threads` False: one after another. A center that
    is not there yet is looked for again for `patience_s` seconds. `host` shares centers with the workers of this host.
    """

    def __init__(
        self,
        run: str,
        layout: Layout,
        stores: Sequence[Stores],
        compression: Compression = NO_COMPRESSION,
        *,
        threads: bool = True,
        patience_s: float = 0.0,
        host: HostCenters | None = None,
    ) -> None:
        self._run, self._layout = run, layout
        ranges = ranges_of(layout, len(stores))
        self._lanes = [
            _Lane(run, index, one, store, compression, host)
            for index, (one, store) in enumerate(zip(ranges, stores, strict=False))
            # a tiny vector has fewer ranges
        ]
        self._patience_s = patience_s
        self._threads = threads and len(self._lanes) > 1
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def is_exact(self) -> bool:
        """Whether payloads arrive as they are."""
        return self._lanes[0].payload_codec.is_exact

    def look_at_center(self, version: int) -> SeenVector | None:
        """The center where it is in the store; None if it must be fetched. Raises what `fetch_center` raises."""
        if len(self._lanes) > 1:
            return None
        return self._lanes[0].look(version)

    def fetch_center(
        self, version: int, into: Vector, *, alone: bool = False, exact: bool = False
    ) -> None:
        """Fill `into` with this version; `alone`: no other worker of this host wants it.

        `exact`: as the master has it, also where turns begin from a rounded one.
        Raises `MissingKeyError`, `StoreError`, `PayloadError`.
        """
        end = time.monotonic() + self._patience_s
        self._each(
            lambda lane, _: lane.fetch_by(
                end, version, into[lane.range.place], alone=alone, exact=exact
            )
        )

    def memory_for(self, worker: int, ticket: int) -> Vector | None:
        """Memory in the store to make a payload in, or None."""
        if len(self._lanes) > 1 or not self.is_exact:
            return None
        key = keys.payload(self._run, worker, ticket)
        memory = self._lanes[0].outlet.place(key, self._layout.nbytes)
        return None if memory is None else np.frombuffer(memory, np.float32)

    def encode(self, payload: Vector, residual: Vector | None) -> list[memoryview]:
        """The bodies of a payload, one for each range; see `Codec.encode` for `residual`."""
        return [
            lane.payload_codec.encode(
                payload[lane.range.place], None if residual is None else residual[lane.range.place]
            )
            for lane in self._lanes
        ]

    def publish(self, sender: Sender, kind: Kind, bodies: Sequence[memoryview]) -> None:
        """Put a payload, as `encode` made it, into every store. Raises `StoreError`."""
        self._each(lambda lane, at: lane.publish(sender, kind, bodies[at]))

    def publish_center(self, version: int, epoch: int, vector: Vector) -> None:
        """Put a center into every store, exactly. Raises `StoreError`."""
        self._each(lambda lane, _: lane.publish_center(version, epoch, vector[lane.range.place]))

    def publish_history(self, version: int, epoch: int, flat: Vector, updates: int) -> None:
        """Put a solver's history, its vectors end to end, beside the center of this version. Raises `StoreError`."""
        vectors = flat.reshape(-1, self._layout.size)
        self._each(
            lambda lane, _: lane.publish_history(
                version, epoch, np.ascontiguousarray(vectors[:, lane.range.place]), updates
            )
        )

    @property
    def places(self) -> list[slice]:
        """The ranges of the vector."""
        return [lane.range.place for lane in self._lanes]

    def publish_states(self, version: int, parts: Sequence[bytes]) -> None:
        """Put what a merge rule keeps of each range beside the center of this version; none removes what is there.

        Raises `StoreError`.
        """
        for lane, part in zip(self._lanes, parts, strict=True):
            if part:
                put_state(lane.outlet, self._run, version, part)
            else:
                lane.outlet.delete(keys.rule_state(self._run, version))

    def fetch_states(self, version: int) -> list[tuple[bytes, int]]:
        """What a merge rule keeps of each range beside this version, with the range's size; empty for nothing.

        Raises `StoreError`, `PayloadError`.
        """
        return [
            (fetch_state(lane.store, self._run, version), lane.range.layout.size)
            for lane in self._lanes
        ]

    def fetch_history(self, version: int, into: Vector) -> int:
        """Fill `into` with the history beside this version; returns the updates. Raises as `fetch_center` does.

        A range that lost a payload has made fewer updates than the others: the most count.
        """
        vectors = into.reshape(-1, self._layout.size)
        return max(self._each(lambda lane, _: lane.fetch_history(version, vectors)))

    @staticmethod
    def sizes(layout: Layout, count: int, compression: Compression) -> tuple[int, int]:
        """Bytes of a payload and of a center as workers send and fetch them, over `count` ranges."""
        ranges = ranges_of(layout, count)
        payload, center = (
            sum(HEADER_BYTES + make_codec(form, one.layout).body_bytes for one in ranges)
            for form in (compression.payload, compression.center)
        )
        return payload, center

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, let go of the host's memory; the stores are their owner's."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        for lane in self._lanes:
            if lane.host is not None:
                lane.host.close()

    def _each(self, what: Callable[[_Lane, int], Answer]) -> list[Answer]:
        """Do it for all ranges; the first error is raised once none is under way."""
        if not self._threads:
            return [what(lane, at) for at, lane in enumerate(self._lanes)]
        with self._lock:
            if self._pool is None:  # a fetch and a publication may be under way together
                self._pool = ThreadPoolExecutor(2 * len(self._lanes), "range")
            pool = self._pool
        futures: list[Future[Answer]] = [
            pool.submit(what, lane, at) for at, lane in enumerate(self._lanes)
        ]
        wait(futures)
        return [future.result() for future in futures]


class _Lane:
    """One range on its way to and from its server."""

    def __init__(
        self,
        run: str,
        index: int,
        place: Range,
        stores: Stores,
        compression: Compression,
        host: HostCenters | None,
    ) -> None:
        self._run, self.range = run, place
        self.store, self.outlet = stores.incoming, stores.outgoing or stores.incoming
        self.payload_codec = make_codec(compression.payload, place.layout)
        self._center_codec = make_codec(compression.center, place.layout)
        self._center_key = keys.center if self._center_codec.is_exact else keys.rounded
        self.host: HostRange | None = None
        if host is not None:
            with suppress(StoreError):  # then it is fetched, as without
                self.host = HostRange(host, index, run, place, self._center_codec)

    def look(self, version: int) -> SeenVector | None:
        key = self._center_key(self._run, version)
        seen = look_at_vector(self.store, key, self.range.layout, Kind.CENTER, self._center_codec)
        if seen is not None:
            _require(key, version, seen.header.version)
        return seen

    def fetch_by(self, end: float, version: int, into: Vector, *, alone: bool, exact: bool) -> None:
        """As `fetch`, again and again until `end`, a time of the monotonic clock, while the version is missing."""
        began = time.monotonic()
        while True:
            try:
                return self.fetch(version, into, alone=alone, exact=exact)
            except MissingKeyError:
                now = time.monotonic()
                if now >= end:
                    raise
            time.sleep(SHORT_PAUSE_S if now < began + SOON_S else LONG_PAUSE_S)

    def fetch(self, version: int, into: Vector, *, alone: bool, exact: bool) -> None:
        rounded = not self._center_codec.is_exact
        key = (keys.center if exact else self._center_key)(self._run, version)
        layout, codec = self.range.layout, None if exact else self._center_codec

        def from_server() -> Header:
            header = fetch_vector(self.store, key, layout, Kind.CENTER, into, codec)
            _require(key, version, header.version)
            return header

        if self.host is None or (exact and rounded):  # the host has it rounded
            from_server()
        else:
            self.host.fetch(version, into, from_server, partial(self._head, key), alone=alone)

    def _head(self, key: str) -> bytes:
        return self.store.read_head(key)[0]

    def publish(self, sender: Sender, kind: Kind, body: memoryview) -> None:
        put_vector(
            self.outlet,
            keys.payload(self._run, sender.worker, sender.ticket),
            self.range.layout,
            kind,
            body,
            expire_s=PAYLOAD_EXPIRY_S,
            dtype=self.payload_codec.dtype,
            version=sender.version,
            worker=sender.worker,
            incarnation=sender.incarnation,
            ticket=sender.ticket,
            epoch=sender.epoch,
        )

    def publish_center(self, version: int, epoch: int, vector: Vector) -> None:
        key, layout = keys.center(self._run, version), self.range.layout
        body = as_bytes(vector)
        put_vector(self.outlet, key, layout, Kind.CENTER, body, version=version, epoch=epoch)

    def publish_history(self, version: int, epoch: int, vectors: Vector, updates: int) -> None:
        flat = vectors.reshape(-1)
        put_range_history(self.outlet, self._run, self.range.layout, version, epoch, flat, updates)

    def fetch_history(self, version: int, vectors: Vector) -> int:
        own = np.empty((len(vectors), self.range.layout.size), np.float32)
        updates = fetch_range_history(
            self.store, self._run, self.range.layout, version, own.reshape(-1)
        )
        vectors[:, self.range.place] = own
        return updates


def _require(key: str, version: int, found: int) -> None:
    if found != version:
        raise PayloadError(f"{key} holds version {found}")
