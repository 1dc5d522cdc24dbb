"""The stages of one worker's turns: fetch the center, load it, publish what came of it.

What trains between them is an engine (`EngineWorker`) or a script (`speedo.worker.script_turn`). The stages are the
same for both, for Ray's actors and for the simulator, and whether turns follow each other or overlap.

Where turns overlap, a worker is given its next turn before the result of its present one was merged. The center of that
turn does not have this result yet, so the worker adds it itself (`Train.own.pending`). In elastic averaging it is
pulled a turn later, when it has the center that its result made (`Train.own.merged`). Fetching, training and publishing
may then happen in three threads, each stage in the order of the turns. A failed stage ends its turn, and the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from speedo.engines.base import Engine
from speedo.errors import PayloadError
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.host_centers import HostCenters
from speedo.exchange.lease import Lease, divided
from speedo.exchange.served_vectors import PATIENCE_S, Exchange, Sender, Stores
from speedo.exchange.transfer import SeenVector
from speedo.exchange.vector import Blob, Vector
from speedo.messages import NO_TUNING, Kind, Records, Train, Trained, Tuning
from speedo.sgd_modes.rules import add_scaled, pull_towards
from speedo.storage.base import Store
from speedo.system.failpoints import reached
from speedo.worker.turn_buffers import BUFFERS, BUFFERS_KEPT, TurnBuffer, TurnBuffers
from speedo.worker.weights import Weights, subtract_center


@dataclass(frozen=True, slots=True)
class FetchedCenter:
    """A center: where it is in the store (`seen`), or in the turn's own memory."""

    buffer: TurnBuffer
    seen: SeenVector | None
    seconds: float


@dataclass
class TurnStages:
    """The stages of worker `worker` of a run, in this incarnation; `clock` gives seconds for the timings.

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
            with self._buffers.statistics:
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
            with self._buffers.statistics:
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


def trained_of(command: Train, samples: int) -> Records:
    """The records of a turn that trained so many of them, the first."""
    trained, _ = divided([Lease(*three) for three in command.records], samples)
    return tuple((one.epoch, one.start, one.stop) for one in trained)


@dataclass
class EngineWorker(TurnStages):
    """A worker whose weights are an engine's, which trains as it is commanded."""

    weights: Engine
    # The gathering of the team that has it, too, and the updates made: who has the same two has the same state.
    solver_state: tuple[int, int] = (0, 0)
    factors: bool = True  # whether a team may exchange the gradients of inner products so
    # Makes the engine for this worker's present share of the batch, of the one that it has.
    rebuild: Callable[[Engine], Engine] = lambda engine: engine
    _division: int = field(default=0, init=False)
    _tuning: Tuning = field(default=NO_TUNING, init=False)
    _done: int = field(default=0, init=False)  # steps of the present turn
    _made: tuple[int, int] = field(default=(0, 0), init=False)  # see `fetch_center_for_team`

    @property
    def engine(self) -> Engine:
        """The engine that trains."""
        return self.weights

    def trains_alone(self) -> None:
        """The state of the solver becomes one that nobody else has."""
        self.solver_state = -1 - self.worker, self.solver_state[1] + 1

    def follow(self, command: Train) -> None:
        """Take another share of the batch, if it was divided anew since the last turn."""
        if command.division != self._division:
            self.weights, self._tuning = self.rebuild(self.weights), NO_TUNING
            self._division = command.division

    def turn(self, command: Train) -> Trained:
        """Carry out one command and return its result, whose payload is in the store by then."""
        self.follow(command)
        return self.compute(command, self.fetch(command))()

    def compute(self, command: Train, fetched: FetchedCenter) -> Callable[[], Trained]:
        """Load the center and train; what is returned publishes the result, in the order of the turns."""
        began = self.clock()
        self._load(command, fetched)
        loaded = self.clock()
        reached("worker-fetched")
        try:
            self.place(command)
            self._done = command.steps
            loss = self._train(command, fetched.buffer.vector)
        except BaseException:
            self._buffers.give_back(fetched.buffer)
            raise
        samples = self._done * command.tuning.batches * self.engine.samples_per_step
        self.samples += samples
        timings = {"fetch": fetched.seconds + loaded - began, "compute": self.clock() - loaded}
        done = Trained(
            *(self.worker, self.incarnation, command.ticket, loss, samples, timings),
            records=trained_of(command, samples),
        )
        return self._publish_later(done, command, fetched.buffer)

    def place(self, command: Train) -> None:
        """Have the engine read the records of this turn next, if it is told which."""
        if command.records:
            ranges = [(start, stop) for _, start, stop in command.records]
            self.engine.place(ranges, command.ahead)

    def needs_center(self, command: Train) -> bool:
        """Of a single step the engine gives the update itself."""
        return super().needs_center(command) and command.steps > 1

    def _train(self, command: Train, memory: Vector) -> float:
        """Leave the result in `memory`, which has the center if that is needed.

        A single step is the solver's own update, to the bit. Of several it is how far the weights came: the sum of
        their updates would be rounded less often, but costs a passage through memory at each.
        """
        engine = self.engine
        if command.tuning != self._tuning:
            own = self._tuning = command.tuning
            engine.adjust(own.lr, own.momentum, own.weight_decay, own.batches)
        if command.payload is Kind.GRADIENT:
            engine.set_iteration(command.iteration)
            return engine.gradient(command.steps, memory)
        self.trains_alone()
        if command.payload is Kind.DELTA and command.steps == 1:
            engine.set_iteration(command.iteration)
            return engine.step(1, memory)
        loss = self._steps(command, memory)
        self._take(command, memory)
        return loss

    def _steps(self, command: Train, memory: Vector) -> float:
        start, total = self._start(command, memory), 0.0
        for step in range(command.steps):
            self.engine.set_iteration(command.iteration_of(step))
            total += self.engine.step(1)
            self._done = step + 1
            if self.leaves() or (start is not None and self._distance(start) > command.norm):
                break
        return total / self._done

    # ------------------------------------------------------------ a turn of a team: see speedo.worker.team_turn

    def fetch_center_for_team(self, command: Train, out: Vector) -> None:
        """Put the center of this turn into `out`, for all of the host.

        If it is the one that the last turn of the same gathering has made, it is there already.
        """
        assert command.team is not None
        made, self._made = self._made, (0, 0)
        exact = self.compression == NO_COMPRESSION and not self.servers
        if not (exact and made == (command.team.formed, command.own.merged)):
            self.exchange.fetch_center(command.version, out, alone=True)

    def made_in_team(self, command: Train, center: Vector, *, publishes: bool) -> None:
        """A turn of the team is over, and this is what it has made."""
        assert command.team is not None
        if publishes:
            self._publish(command, center)
        if command.payload is Kind.WEIGHTS:
            self._made = command.team.formed, command.ticket
