"""A worker whose turns overlap: one is fetched and another published while the solver computes a third.

Such a worker is given its next turn before the result of the one it is at was merged. That turn then begins with a
center in which the own result is still missing; so the worker puts it in itself (`Train.after`). Its three stages may
be called from three threads, each stage of the turns in their order.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from speedo.errors import PayloadError
from speedo.failpoints import reached
from speedo.messages import Train, Trained
from speedo.sgd_modes.rules import add_scaled, approach, pull_towards
from speedo.turn_buffers import TurnBuffer, TurnBuffers
from speedo.vectors_in_store import Seen, fetch_vector, look_at_vector
from speedo.weights import Blob, Kind, Vector
from speedo.worker import Worker, needs_center


@dataclass(frozen=True, slots=True)
class Fetched:
    """A center: where it lies in the store (`seen`), or in the turn's own memory."""

    buffer: TurnBuffer
    seen: Seen | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Computed:
    """A result in the turn's own memory, not published yet."""

    buffer: TurnBuffer
    loss: float
    samples: int
    timings: dict[str, float]


@dataclass
class OverlappingWorker(Worker):
    """A `Worker` in three stages: `fetch`, `compute`, `publish`. A failed one ends its turn, and the one after it."""

    _last: tuple[int, TurnBuffer] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._buffers = TurnBuffers(self.engine.layout)
        self._statistics = threading.Lock()  # of a payload; a codec sets them aside for a moment

    def turn(self, command: Train) -> Trained:
        """All three stages, one after the other."""
        return self.publish(command, self.compute(command, self.fetch(command)))

    def fetch(self, command: Train) -> Fetched:
        """Get the turn's center out of the store, or find it there."""
        began = self.clock()
        buffer = self._buffers.take()
        try:
            key = self._center_key(self.run, command.version)
            place = (self.store, key, self.engine.layout, Kind.CENTER)
            codec = self._center_codec
            seen = look_at_vector(*place, codec)
            header = seen.header if seen else fetch_vector(*place, buffer.vector, codec)
            if header.version != command.version:
                raise PayloadError(f"{key} holds version {header.version}")
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        return Fetched(buffer, seen, self.clock() - began)

    def compute(self, command: Train, fetched: Fetched) -> Computed:
        """Load the center, train, and leave the result in the turn's memory."""
        began = self.clock()
        buffer = fetched.buffer
        try:
            self._load(command, fetched)
            loaded = self.clock()
            reached("worker-fetched")
            loss = self._train(command, buffer.vector)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        samples = command.steps * self.engine.samples_per_step
        self.samples += samples
        self._buffers.share(buffer)
        self._last = command.ticket, buffer
        timings = {"fetch": fetched.seconds + loaded - began, "compute": self.clock() - loaded}
        return Computed(buffer, loss, samples, timings)

    def publish(self, command: Train, computed: Computed) -> Trained:
        """Put the result into the store."""
        began = self.clock()
        try:
            self._publish(command, computed.buffer.vector)
        finally:
            self._buffers.give_back(computed.buffer)
        reached("worker-pushed")
        timings = {**computed.timings, "publish": self.clock() - began}
        return Trained(
            self.worker, self.incarnation, command.ticket, computed.loss, computed.samples, timings
        )

    def _load(self, command: Train, fetched: Fetched) -> None:
        last, self._last = self._last, None
        try:
            if command.after and (last is None or last[0] != command.after):
                raise PayloadError(f"the turn before it, ticket {command.after}, had no result")
            self._load_center(command, fetched, None if last is None else last[1].vector)
        finally:
            if last is not None:
                self._buffers.give_back(last[1])

    def _load_center(self, command: Train, fetched: Fetched, own: Vector | None) -> None:
        memory, seen = fetched.buffer.vector, fetched.seen
        center = memory if seen is None else seen.vector
        if command.moving_rate is not None:
            self._pull(center, command.moving_rate, approach if command.after else pull_towards)
        else:
            if seen is not None and (command.after or needs_center(command)):
                np.copyto(memory, center)
                center = memory
            if command.after:
                assert own is not None
                with self._statistics:
                    add_scaled(memory, own, command.after_rate)
            self.engine.load_weights(center)
        if seen is not None:
            seen.check()

    def _train(self, command: Train, memory: Vector) -> float:
        """Leaves the result in `memory`, which has the turn's start if that is needed."""
        if not needs_center(command):
            return self._compute(command, memory)
        loss = self._steps(command)

        def subtract(blob: Blob, place: slice, weights: Vector) -> None:
            np.subtract(weights, memory[place], out=memory[place])

        self.engine.change_weights(subtract)
        return loss

    def _seal(self, command: Train, payload: Vector) -> memoryview:
        if self._codec.is_exact:
            return super()._seal(command, payload)
        with self._statistics:
            return super()._seal(command, payload)
