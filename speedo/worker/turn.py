"""One worker's turn: fetch the center, train, publish; the same for Ray's actors and for the simulator.

A `Participant` knows no engine: `Worker` trains with one, in `speedo.worker.driven_turn` a script does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from speedo.engines.base import Engine
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.host_centers import HostCenters
from speedo.exchange.lease import Lease, divided
from speedo.exchange.served_vectors import PATIENCE_S, Exchange, Sender, Stores
from speedo.exchange.vector import Blob, Vector
from speedo.messages import NO_TUNING, Kind, Records, Train, Trained, Tuning
from speedo.sgd_modes.rules import pull_towards
from speedo.storage.base import Store
from speedo.system.failpoints import reached
from speedo.worker.weights import Weights, subtract_center


def trained_of(command: Train, samples: int) -> Records:
    """The records of a turn that trained so many of them, the first."""
    trained, _ = divided([Lease(*three) for three in command.records], samples)
    return tuple((one.epoch, one.start, one.stop) for one in trained)


@dataclass
class Participant:
    """The worker `worker` of a run, in this incarnation; `clock` gives seconds for the timings.

    `samples` counts the records that its model was trained on here. Payloads go to `outgoing`, where that is another
    connection than that of the centers. With `servers` neither passes through `store`: each of them
    has a range, and `threads` lets all ranges travel at once. `host` is what the workers of a host have in common.
    `leaves` says whether its host is to leave: a turn ends then with its present step.
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
    _center: Vector | None = field(default=None, init=False)
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

    def _fetch(self, command: Train) -> None:
        """Get the center of this turn, and continue from it: load it, or be pulled towards it."""
        version = command.version
        seen = None if self.needs_center(command) else self.exchange.look_at_center(version)
        if seen is None:
            self._center = self.weights.layout.zeros() if self._center is None else self._center
            self.exchange.fetch_center(version, self._center)
            center = self._center
        else:
            center = seen.vector
        if command.moving_rate is None:
            self.weights.load_weights(center)
        else:
            self._pull(center, command.moving_rate)
        if seen is not None:
            seen.check()

    def begin_from(self, command: Train, center: Vector) -> None:
        """Go on from the center of this turn, which somebody else has fetched."""
        self.weights.load_weights(center)
        if self.needs_center(command):
            self._center = self.weights.layout.zeros() if self._center is None else self._center
            np.copyto(self._center, center)

    def _pull(self, center: Vector, rate: float, sent: Vector | None = None) -> None:
        def pull(blob: Blob, place: slice, weights: Vector) -> None:
            if not blob.statistic:
                then = None if sent is None else sent[place]
                pull_towards(weights, center[place], rate, then)

        self.weights.change_weights(pull)

    def _memory_for(self, command: Train) -> Vector:
        """Where the payload is made: in the store itself, if it has memory for that."""
        memory = self.exchange.memory_for(self.worker, command.ticket)
        if memory is not None:
            return memory
        if self._own is None:
            self._own = self.weights.layout.zeros()
        return self._own

    def _take(self, command: Train, payload: Vector) -> None:
        """Put what the weights have become into `payload`: they, or how far they came from the center.

        Of moving averages it is always their value.
        """
        self.weights.read_weights(payload)
        if self.needs_center(command):
            assert self._center is not None
            subtract_center(payload, self._center, self.weights.layout)

    def _start(self, command: Train) -> Vector | None:
        """The weights that the turn begins from, if how far it comes from there ends it."""
        if not command.norm:
            return None
        if self.needs_center(command):
            return self._center
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

    def _encode(self, command: Train, payload: Vector) -> list[memoryview]:
        return self.exchange.encode(payload, self._carried_over(command))

    def _publish(self, command: Train, payload: Vector) -> None:
        bodies = self._encode(command, payload)
        sender = Sender(self.worker, self.incarnation, command.ticket, command.version, self.epoch)
        self.exchange.publish(sender, command.payload, bodies)


@dataclass
class Worker(Participant):
    """A participant whose weights are an engine's, which trains as it is commanded."""

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
        started = self.clock()
        self._fetch(command)
        fetched = self.clock()
        reached("worker-fetched")
        payload = self._memory_for(command)
        self._done = command.steps
        self.place(command)
        loss = self._compute(command, payload)
        computed = self.clock()
        samples = self._done * command.tuning.batches * self.engine.samples_per_step
        self.samples += samples
        self._publish(command, payload)
        reached("worker-pushed")
        timings = {
            "fetch": fetched - started,
            "compute": computed - fetched,
            "publish": self.clock() - computed,
        }
        return Trained(
            *(self.worker, self.incarnation, command.ticket, loss, samples, timings),
            records=trained_of(command, samples),
        )

    def place(self, command: Train) -> None:
        """Have the engine read the records of this turn next, if it is told which."""
        if command.records:
            ranges = [(start, stop) for _, start, stop in command.records]
            self.engine.place(ranges, command.ahead)

    def needs_center(self, command: Train) -> bool:
        """Of a single step the engine gives the update itself."""
        return super().needs_center(command) and command.steps > 1

    def fetch_center_for_team(self, command: Train, out: Vector) -> None:
        """Put the center of this turn into `out`, for all of the host.

        If it is the one that the last turn of the same gathering has made, it is there already.
        """
        assert command.team is not None
        made, self._made = self._made, (0, 0)
        exact = self.compression == NO_COMPRESSION and not self.servers
        if not (exact and made == (command.team.formed, command.own.merged)):
            self.exchange.fetch_center(command.version, out, alone=True)

    def made_in_team(self, command: Train, center: Vector) -> None:
        """A turn of the team is over, and this is what it has made. The leader publishes it as its payload."""
        assert command.team is not None
        if self.worker == command.team.leader:
            self._publish(command, center)
        if command.payload is Kind.WEIGHTS:
            self._made = command.team.formed, command.ticket

    def _compute(self, command: Train, payload: Vector) -> float:
        """Leaves the result in `payload`.

        A single step is the solver's own update, to the bit. Of several it is how far the weights came: the sum of
        their updates would be rounded less often, but costs a passage through memory at each.
        """
        engine = self.engine
        if command.tuning != self._tuning:
            own = self._tuning = command.tuning
            engine.adjust(own.lr, own.momentum, own.weight_decay, own.batches)
        if command.payload is Kind.GRADIENT:
            engine.set_iteration(command.iteration)
            return engine.gradient(command.steps, payload)
        self.trains_alone()
        if command.payload is Kind.DELTA and command.steps == 1:
            engine.set_iteration(command.iteration)
            return engine.step(1, payload)
        loss = self._steps(command)
        self._take(command, payload)
        return loss

    def _steps(self, command: Train) -> float:
        start, total = self._start(command), 0.0
        for step in range(command.steps):
            self.engine.set_iteration(command.iteration_of(step))
            total += self.engine.step(1)
            self._done = step + 1
            if self.leaves() or (start is not None and self._distance(start) > command.norm):
                break
        return total / self._done
