"""One worker's turn: fetch the center, train, publish; the same for Ray's actors and for the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.engines.base import Engine
from speedo.exchange.vector import Vector
from speedo.messages import NO_TUNING, Kind, Train, Trained, Tuning
from speedo.system.failpoints import reached
from speedo.worker.participant import Participant


@dataclass
class Worker(Participant):
    """A participant whose weights are an engine's, which trains as it is commanded."""

    weights: Engine
    _tuning: Tuning = field(default=NO_TUNING, init=False)
    _done: int = field(default=0, init=False)  # steps of the present turn

    @property
    def engine(self) -> Engine:
        """The engine that trains."""
        return self.weights

    def turn(self, command: Train) -> Trained:
        """Carry out one command and return its result, whose payload is in the store by then."""
        started = self.clock()
        self._fetch(command)
        fetched = self.clock()
        reached("worker-fetched")
        payload = self._memory_for(command)
        self._done = command.steps
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
        return Trained(self.worker, self.incarnation, command.ticket, loss, samples, timings)

    def needs_center(self, command: Train) -> bool:
        """Of a single step the engine gives the update itself."""
        return super().needs_center(command) and command.steps > 1

    def fetch_center_for_team(self, command: Train, out: Vector) -> None:
        """Put the center of this turn into `out`, for all of the host."""
        self.exchange.fetch_center(command.version, out, alone=True)

    def publish_for_team(self, command: Train, payload: Vector) -> None:
        """Publish what the team has made, as this worker's payload of the turn."""
        self._publish(command, payload)

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
        if command.payload is Kind.DELTA and command.steps == 1:
            engine.set_iteration(command.iteration)
            return engine.step(1, payload)
        loss = self._steps(command)
        self._take(command, payload)
        return loss

    def _steps(self, command: Train) -> float:
        engine, self._done = self.engine, command.steps
        start = self._start(command)
        if start is None and (command.steps == 1 or command.stride == command.batch):
            engine.set_iteration(command.iteration)
            return engine.step(command.steps)
        total = 0.0
        for step in range(command.steps):
            engine.set_iteration(command.iteration_of(step))
            total += engine.step(1)
            if start is not None and self._distance(start) > command.norm:
                self._done = step + 1
                break
        return total / self._done
