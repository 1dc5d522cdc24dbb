"""A turn that a script trains: it says when it has made a step, and what is exchanged happens between two of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from speedo.exchange.vector import Vector
from speedo.messages import Records, Train, Trained
from speedo.system.failpoints import reached
from speedo.worker.turn import FetchedCenter, TurnStages
from speedo.worker.turn_buffers import TurnBuffer


@dataclass
class ScriptWorker(TurnStages):
    """A worker whose weights a script trains: `begin` a turn, say `stepped` after each step, then `end` it.

    Its payload is how far its weights came, also after a single step: there is no solver to ask for its update.
    Where turns overlap, two other threads may do a part: one `fetch_ahead`, one what `end_later` returns.
    """

    command: Train | None = field(default=None, init=False)
    iteration: int = field(default=0, init=False)  # of the next step
    steps: int = field(default=0, init=False)  # of the present turn, as the next three are
    with_team: float = field(default=0.0, init=False)  # seconds
    for_slower: float = field(default=0.0, init=False)  # of these, waiting for slower members
    _of_turn: int = field(default=0, init=False)
    _losses: list[float] = field(default_factory=list, init=False)
    _from: Vector | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _fetched: float = field(default=0.0, init=False)
    # By ticket.
    _ahead: dict[int, FetchedCenter | Exception] = field(default_factory=dict, init=False)
    _buffer: TurnBuffer | None = field(default=None, init=False)  # of the present turn

    def fetch_ahead(self, command: Train) -> None:
        """Get the center of a turn that is begun later; what goes wrong is raised there."""
        try:
            self._ahead[command.ticket] = self.fetch(command)
        except Exception as error:
            self._ahead[command.ticket] = error

    def begin(self, command: Train, load: Callable[[Train], None] | None = None) -> None:
        """Get the center of this turn, and continue from it; `load` does that for a member of a team."""
        self._began = self.clock()
        self.command, self.steps, self._of_turn = None, 0, 0
        self.with_team = self.for_slower = 0.0
        self._losses.clear()
        self._give_up()
        (load or self._begin)(command)
        assert self._buffer is not None
        self._from = self._start(command, self._buffer.vector)
        self._fetched = self.clock()
        self.command, self.iteration = command, command.iteration
        reached("worker-fetched")

    def _give_up(self) -> None:
        """Let go of the memory of a turn that was begun and never ended."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._buffers.give_back(buffer)

    def _begin(self, command: Train) -> None:
        fetched = self._ahead.pop(command.ticket, None) or self.fetch(command)
        if isinstance(fetched, Exception):
            raise fetched
        self._began = self.clock() - fetched.seconds
        self._load(command, fetched)
        self._buffer = fetched.buffer

    def begin_from(self, command: Train, center: Vector, *, has_it: bool = False) -> None:
        """Continue from the center of this turn, which a member of the team has fetched, where the weights lack it."""
        self._buffer = self._memory_for(command)
        if self.needs_center(command):
            np.copyto(self._buffer.vector, center)
        if not has_it:
            self.weights.load_weights(center)

    @property
    def seconds(self) -> float:
        """Since the present turn began."""
        return self.clock() - self._fetched

    def stepped(self, samples: int, loss: float | None = None) -> bool:
        """One more step was made, on this many records; whether it was the last of the turn."""
        command = self.command
        assert command is not None
        self.steps += 1
        self._of_turn += samples
        self.samples += samples
        self.iteration = command.iteration_of(self.steps)
        if loss is not None:
            self._losses.append(loss)
        rounds = 1 if command.team is None else command.team.rounds
        if command.team is None and self.leaves():
            return True
        return self.steps >= rounds * command.steps or (
            self._from is not None and self._distance(self._from) > command.norm
        )

    def end(self, records: Records = ()) -> Trained:
        """Publish what the turn has come to; `records` are those that it trained on."""
        return self.end_later(records)()

    def end_later(self, records: Records = ()) -> Callable[[], Trained]:
        """End the turn; what is returned publishes it, in the order of the turns."""
        done, command, buffer = self._ended(records), self.command, self._buffer
        assert command is not None
        assert buffer is not None
        self.command = self._buffer = None
        if done.has_payload:
            self._take(command, buffer.vector)
        return self._publish_later(done, command, buffer)

    def _ended(self, records: Records) -> Trained:
        """The turn's result, which is not published yet."""
        command = self.command
        assert command is not None
        assert self.steps > 0
        timings = {
            "fetch": self._fetched - self._began,
            "compute": self.clock() - self._fetched - self.with_team,
        }
        if command.team is not None:
            timings |= {"team": self.with_team, "wait": self.for_slower}
        leads = command.team is None or command.team.leader == self.worker
        losses = self._losses
        loss = math.fsum(losses) / len(losses) if losses else math.nan
        done = Trained(self.worker, self.incarnation, command.ticket, loss, self._of_turn, timings)
        return replace(done, has_payload=leads, has_loss=bool(losses), records=records)
