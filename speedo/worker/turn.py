"""A turn that an engine trains: fetch the center, run the solver's steps, publish what came of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from speedo.engines.base import Engine
from speedo.exchange.codecs import NO_COMPRESSION
from speedo.exchange.lease import Lease, divided
from speedo.exchange.vector import Vector
from speedo.messages import NO_TUNING, Kind, Records, Train, Trained, Tuning
from speedo.system.failpoints import reached
from speedo.worker.turn_stages import FetchedCenter, TurnStages


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

    def made_in_team(self, command: Train, center: Vector) -> None:
        """A turn of the team is over, and this is what it has made. The leader publishes it as its payload."""
        assert command.team is not None
        if self.worker == command.team.leader:
            self._publish(command, center)
        if command.payload is Kind.WEIGHTS:
            self._made = command.team.formed, command.ticket
