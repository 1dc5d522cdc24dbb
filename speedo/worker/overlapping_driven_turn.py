"""Turns that a script drives while the center of the next one is fetched, and the result of the last one published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from speedo.messages import Records, Train, Trained
from speedo.worker.driven_turn import DrivenWorker
from speedo.worker.overlapping_turns import Fetched, OverlappingParticipant, TurnBuffer


@dataclass
class OverlappingDrivenWorker(OverlappingParticipant, DrivenWorker):
    """A `DrivenWorker` of which two other threads may do a part: one `fetch_ahead`, one what `end_later` returns."""

    _ahead: dict[int, Fetched | Exception] = field(default_factory=dict, init=False)  # by ticket
    _buffer: TurnBuffer | None = field(default=None, init=False)  # of the present turn

    def fetch_ahead(self, command: Train) -> None:
        """Get the center of a turn that is begun later; what goes wrong is raised there."""
        try:
            self._ahead[command.ticket] = self.fetch(command)
        except Exception as error:
            self._ahead[command.ticket] = error

    def end_later(self, records: Records = ()) -> Callable[[], Trained]:
        """End the turn; what is returned publishes it, in the order of the turns."""
        done, command, buffer = self._ended(records), self.command, self._buffer
        assert command is not None
        assert buffer is not None
        self.command = self._buffer = None
        if self.needs_center(command):  # in `buffer` is what the turn began from
            spare = self.weights.layout.zeros() if self._own is None else self._own
            self._take(command, spare)
            buffer.vector, self._own = spare, buffer.vector
        else:
            self._take(command, buffer.vector)
        self._keep(command, buffer)

        def publish() -> Trained:
            return replace(done, timings={**done.timings, "publish": self._put(command, buffer)})

        return publish

    def end(self, records: Records = ()) -> Trained:
        """End the turn and publish it."""
        return self.end_later(records)()

    def _fetch(self, command: Train) -> None:
        if self._buffer is not None:  # of a turn that was begun, and given up
            self._buffers.give_back(self._buffer)
            self._buffer = None
        fetched = self._ahead.pop(command.ticket, None) or self.fetch(command)
        if isinstance(fetched, Exception):
            raise fetched
        self._began -= fetched.seconds
        try:
            self._load(command, fetched)
        except BaseException:
            self._buffers.give_back(fetched.buffer)
            raise
        self._buffer, self._center = fetched.buffer, fetched.buffer.vector
