"""The stages of one worker's turns: fetch the center, load it, publish what came of it.

What trains between them is an engine (`speedo.worker.turn`) or a script (`speedo.worker.script_turn`). The stages are
the same for both, for Ray's actors and for the simulator, and whether turns follow each other or overlap.

Where turns overlap, a worker is given its next turn before the result of its present one was merged. The center of that
turn does not have this result yet, so the worker adds it itself (`Train.own.pending`). In elastic averaging it is
pulled a turn later, when it has the center that its result made (`Train.own.merged`). Fetching, training and publishing
may then happen in three threads, each stage in the order of the turns. A failed stage ends its turn, and the next one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Final

import numpy as np

from speedo.errors import PayloadError
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.host_centers import HostCenters
from speedo.exchange.served_vectors import PATIENCE_S, Exchange, Sender, Stores
from speedo.exchange.transfer import SeenVector
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.messages import Kind, Train, Trained
from speedo.sgd_modes.rules import add_scaled, pull_towards
from speedo.storage.base import Store
from speedo.system.failpoints import reached
from speedo.worker.weights import Weights, subtract_center

BUFFERS: Final = 2  # one turn is published, or added to the next one's center, while another is fetched or computed
BUFFERS_KEPT: Final = 3  # where a result is needed until the turn after the next


@dataclass(eq=False, slots=True)
class TurnBuffer:
    """A turn's vector: its center, then its payload. `users` still need it; `lent` by `TurnBuffers`."""

    vector: Vector
    users: int = 1
    lent: bool = False


@dataclass
class TurnBuffers:
    """Vectors that are lent and come back, each once nobody needs it. May be used from several threads.

    Turns must take theirs in their order: else the one that comes first could wait for the one after it.
    """

    layout: Layout
    _made: int = 0
    _free: SimpleQueue[TurnBuffer] = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, most: int = BUFFERS) -> TurnBuffer:
        """A buffer for one user, as soon as there is one of this many."""
        if self._made < most and self._free.empty():
            self._made += 1
            self._free.put(TurnBuffer(self.layout.zeros(), lent=True))
        buffer = self._free.get()
        buffer.users = 1
        return buffer

    def share(self, buffer: TurnBuffer) -> None:
        """One more needs it."""
        with self._lock:
            buffer.users += 1

    def give_back(self, buffer: TurnBuffer) -> None:
        """One of its users needs it no longer."""
        with self._lock:
            buffer.users -= 1
            free = buffer.lent and buffer.users == 0
        if free:
            self._free.put(buffer)


@dataclass(frozen=True, slots=True)
class FetchedCenter:
    """A center: where it is in the store (`seen`), or in the turn's own memory."""

    buffer: TurnBuffer
    seen: SeenVector | None
    seconds: float


@dataclass
class TurnStages:
    """Those of the worker `worker` of a run, in this incarnation; `clock` gives seconds for the timings.

    `samples` counts the records that its model was trained on here. Payloads go to `outgoing`, where that is another
    connection than that of the centers. With `servers` neither passes through `store`: each of them
    has a range, and `threads` lets all ranges travel at once. `host` is what the workers of a host have in common.
    `leaves` says whether its host is to leave: a turn ends then with its present step. Turns `overlap`, or not.
    """

    run: str
    worker: int
    incarnation: int
    weights: Weights
    store: Store
    clock: Callable[[], float]
    epoch: int = 0
    samples: int = 0
    compression: Compression = NO_COMPRESSION
    outgoing: Store | None = None
    servers: Sequence[Stores] = ()
    threads: bool = True
    host: HostCenters | None = None
    leaves: Callable[[], bool] = lambda: False
    overlap: bool = False
    _kept: dict[int, TurnBuffer] = field(default_factory=dict, init=False)  # results, by ticket
    _own: Vector | None = field(default=None, init=False)
    _lost: Vector | None = field(default=None, init=False)
    _lost_of: Kind | None = field(default=None, init=False)
    _begun: Vector | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.stores = self.servers or (Stores(self.store, self.outgoing),)
        self.exchange = Exchange(
            self.run,
            self.weights.layout,
            self.stores,
            self.compression,
            threads=self.threads,
            patience_s=PATIENCE_S if self.servers and self.threads else 0.0,
            host=self.host,
        )
        self._buffers = TurnBuffers(self.weights.layout)
        self._statistics = threading.Lock()  # of a payload; a codec sets them aside for a moment

    def close(self) -> None:
        """Let go of all connections."""
        self.exchange.close()
        for one in (Stores(self.store, self.outgoing), *self.servers):
            one.incoming.close()
            if one.outgoing is not None:
                one.outgoing.close()

    def needs_center(self, command: Train) -> bool:
        """Whether the center is needed again after the steps; it may be gone from the store by then."""
        return command.payload is Kind.DELTA

    # ------------------------------------------------------------ fetch

    def fetch(self, command: Train) -> FetchedCenter:
        """Get the turn's center out of the store, or find it there."""
        began = self.clock()
        buffer = self._memory_for(command)
        try:
            seen = self.exchange.look_at_center(command.version)
            if seen is None:
                self.exchange.fetch_center(command.version, buffer.vector)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        return FetchedCenter(buffer, seen, self.clock() - began)

    def _memory_for(self, command: Train) -> TurnBuffer:
        """The turn's memory: in the store itself, if that has some and nobody needs the result after the turn."""
        if self.overlap:
            return self._buffers.take(BUFFERS_KEPT if command.payload is Kind.WEIGHTS else BUFFERS)
        memory = None
        if command.team is None:
            memory = self.exchange.memory_for(self.worker, command.ticket)
        if memory is None:
            self._own = self.weights.layout.zeros() if self._own is None else self._own
            memory = self._own
        return TurnBuffer(memory)

    # ------------------------------------------------------------ load

    def _load(self, command: Train, fetched: FetchedCenter) -> None:
        """Continue from the center of this turn: load it, or be pulled towards it.

        Its memory has the center then, if that is needed after the steps.
        """
        needed = 0
        try:
            last = max(self._kept, default=0)
            if command.own.pending and last != command.own.pending:
                raise PayloadError(
                    f"the turn before it, ticket {command.own.pending}, had no result"
                )
            if command.moving_rate is None:
                self._load_center(command, fetched)
            elif command.own.merged or not self.overlap:
                self._catch_up(command, fetched, last)
            if fetched.seen is not None:
                fetched.seen.check()
            if command.payload is Kind.WEIGHTS:
                needed = command.own.pending  # its merge is still to come
        except BaseException:
            self._buffers.give_back(fetched.buffer)
            raise
        finally:
            for ticket in [one for one in self._kept if one != needed]:
                self._buffers.give_back(self._kept.pop(ticket))

    def _load_center(self, command: Train, fetched: FetchedCenter) -> None:
        memory, seen = fetched.buffer.vector, fetched.seen
        center = memory if seen is None else seen.vector
        if seen is not None and (command.own.pending or self.needs_center(command)):
            np.copyto(memory, center)
            center = memory
        if command.own.pending:
            averages = [(place, memory[place].copy()) for place in self.weights.layout.averages]
            with self._statistics:
                add_scaled(memory, self._kept[command.own.pending].vector, command.own.rate)
            for place, values in averages:  # of these a result has no change
                memory[place] = values
        self.weights.load_weights(center)

    def _catch_up(self, command: Train, fetched: FetchedCenter, last: int) -> None:
        """The worker's half of a merge, for a result that it may have gone on from where turns overlap."""
        rate, sent = command.moving_rate, None
        assert rate is not None
        center = fetched.buffer.vector if fetched.seen is None else fetched.seen.vector
        if self.overlap:
            if command.own.merged not in self._kept:
                raise PayloadError(
                    f"its result of ticket {command.own.merged}, now merged, is gone"
                )
            sent = None if command.own.merged == last else self._kept[command.own.merged].vector

        def pull(blob: Blob, place: slice, weights: Vector) -> None:
            if not blob.statistic:
                pull_towards(weights, center[place], rate, None if sent is None else sent[place])

        self.weights.change_weights(pull)

    # ------------------------------------------------------------ what came of the steps

    def _start(self, command: Train, memory: Vector) -> Vector | None:
        """The weights that the turn begins from, if how far it comes from there ends it."""
        if not command.norm:
            return None
        if self.needs_center(command):
            return memory
        if self._begun is None:
            self._begun = self.weights.layout.zeros()
        self.weights.read_weights(self._begun)
        return self._begun

    def _distance(self, start: Vector) -> float:
        """L2 norm of the way from there to the present weights; BatchNorm's statistics are no part of it."""
        squares = 0.0

        def add(blob: Blob, place: slice, weights: Vector) -> None:
            nonlocal squares
            if not blob.statistic:
                way = weights - start[place]
                squares += float(np.dot(way, way))

        self.weights.change_weights(add)
        return math.sqrt(squares)

    def _take(self, command: Train, memory: Vector) -> None:
        """Put what the weights have become into `memory`: they, or how far they came from the center that it has."""
        if self.needs_center(command):
            subtract_center(self.weights, memory)
        else:
            self.weights.read_weights(memory)

    # ------------------------------------------------------------ publish

    def _publish_later(
        self, done: Trained, command: Train, buffer: TurnBuffer
    ) -> Callable[[], Trained]:
        """What is returned publishes the result in this memory; it is kept, if the next turn's center may lack it."""
        if self.overlap:
            self._buffers.share(buffer)
            self._kept[command.ticket] = buffer

        def publish() -> Trained:
            began = self.clock()
            try:
                if done.has_payload:
                    self._publish(command, buffer.vector)
            finally:
                self._buffers.give_back(buffer)
            reached("worker-pushed")
            return replace(done, timings={**done.timings, "publish": self.clock() - began})

        return publish

    def _publish(self, command: Train, payload: Vector) -> None:
        carried_over = self._carried_over(command)
        if self.exchange.is_exact:
            bodies = self.exchange.encode(payload, carried_over)
        else:
            with self._statistics:
                bodies = self.exchange.encode(payload, carried_over)
        sender = Sender(self.worker, self.incarnation, command.ticket, command.version, self.epoch)
        self.exchange.publish(sender, command.payload, bodies)

    def _carried_over(self, command: Train) -> Vector | None:
        """What the payloads before this one lost by their encoding, to be made up for: error feedback.

        (Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019.) Of weights, too: their
        center is a mean over time, in which errors that follow each other cancel.
        """
        same, self._lost_of = self._lost_of is command.payload, command.payload
        if self.exchange.is_exact:
            return None
        if self._lost is None:
            self._lost = self.weights.layout.zeros()
        elif not (same and command.carry_over):
            self._lost.fill(0.0)
        return self._lost
