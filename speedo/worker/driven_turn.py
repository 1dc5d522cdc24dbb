"""A turn that a script drives: it says when it has made a step, and what is exchanged happens between two of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from speedo.exchange.vector import Vector
from speedo.messages import Records, Train, Trained
from speedo.system.failpoints import reached
from speedo.worker.turn import Participant


@dataclass
class DrivenWorker(Participant):
    """A participant whose weights somebody else trains: `begin` a turn, say `stepped` after each step, then `end` it.

    Its payload is how far its weights came, also after a single step: there is no solver to ask for its update.
    """

    command: Train | None = field(default=None, init=False)
    iteration: int = field(default=0, init=False)  # of the next step
    steps: int = field(default=0, init=False)  # of the present turn, as the next three are
    with_team: float = field(default=0.0, init=False)  # seconds
    _of_turn: int = field(default=0, init=False)
    _losses: list[float] = field(default_factory=list, init=False)
    _from: Vector | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _fetched: float = field(default=0.0, init=False)

    def begin(self, command: Train, load: Callable[[Train], None] | None = None) -> None:
        """Get the center of this turn, and continue from it; `load` does that for a member of a team."""
        self._began = self.clock()
        self.command, self.steps, self._of_turn, self.with_team = None, 0, 0, 0.0
        self._losses.clear()
        (load or self._fetch)(command)
        self._from = self._start(command)
        self._fetched = self.clock()
        self.command, self.iteration = command, command.iteration
        reached("worker-fetched")

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
        done, command = self._ended(records), self.command
        assert command is not None
        computed = self.clock()
        if done.has_payload:
            payload = self._memory_for(command)
            self._take(command, payload)
            self._publish(command, payload)
        self.command = None
        reached("worker-pushed")
        return replace(done, timings={**done.timings, "publish": self.clock() - computed})

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
            timings["team"] = self.with_team
        leads = command.team is None or command.team.leader == self.worker
        losses = self._losses
        loss = math.fsum(losses) / len(losses) if losses else math.nan
        done = Trained(self.worker, self.incarnation, command.ticket, loss, self._of_turn, timings)
        return replace(done, has_payload=leads, has_loss=bool(losses), records=records)
