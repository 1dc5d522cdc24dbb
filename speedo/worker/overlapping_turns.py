"""A worker whose turns overlap: one is fetched and another published while the solver computes a third.

Such a worker is given its next turn before the result of its present one was merged. The center of that turn does not
have this result yet, so the worker adds it itself (`Train.own.pending`). In elastic averaging it is pulled a turn
later, when it has the center that its result made (`Train.own.merged`). The stages may be called from three threads,
each stage of the turns in their order: an engine's by a `TurnPipeline`, a script's by the script and
`speedo.run.script.publisher`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Final, TypeVar

import numpy as np

from speedo.engines.base import Engine
from speedo.errors import PayloadError
from speedo.exchange.transfer import SeenVector
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.messages import Kind, Records, Train, Trained
from speedo.sgd_modes.rules import add_scaled
from speedo.system.failpoints import reached
from speedo.worker.driven_turn import DrivenWorker
from speedo.worker.turn import Participant, Worker, trained_of

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")
BUFFERS: Final = 2  # one turn is published, or added to the next one's center, while another is fetched or computed
BUFFERS_KEPT: Final = 3  # where a result is needed until the turn after the next
ORDER_S: Final = 30.0  # within which a turn that was sent before another must have come, too


@dataclass(eq=False, slots=True)
class TurnBuffer:
    """A vector, and how many still need it."""

    vector: Vector
    users: int = 0


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
            self._free.put(TurnBuffer(self.layout.zeros()))
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
            free = buffer.users == 0
        if free:
            self._free.put(buffer)


@dataclass(frozen=True, slots=True)
class FetchedCenter:
    """A center: where it is in the store (`seen`), or in the turn's own memory."""

    buffer: TurnBuffer
    seen: SeenVector | None
    seconds: float


@dataclass
class OverlappingParticipant(Participant):
    """A participant that fetches and publishes apart from what it computes.

    Each stage of the turns goes in their order. A failed one ends its turn, and the one after it.
    """

    _kept: dict[int, TurnBuffer] = field(default_factory=dict, init=False)  # results, by ticket

    def __post_init__(self) -> None:
        super().__post_init__()
        self._buffers = TurnBuffers(self.weights.layout)
        self._statistics = threading.Lock()  # of a payload; a codec sets them aside for a moment

    def fetch(self, command: Train) -> FetchedCenter:
        """Get the turn's center out of the store, or find it there."""
        began = self.clock()
        buffer = self._buffers.take(BUFFERS_KEPT if command.payload is Kind.WEIGHTS else BUFFERS)
        try:
            seen = self.exchange.look_at_center(command.version)
            if seen is None:
                self.exchange.fetch_center(command.version, buffer.vector)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        return FetchedCenter(buffer, seen, self.clock() - began)

    def _publish_later(
        self, done: Trained, command: Train, buffer: TurnBuffer
    ) -> Callable[[], Trained]:
        """What is returned publishes the result in this memory, which is kept for the next turn's center, too."""
        self._buffers.share(buffer)
        self._kept[command.ticket] = buffer

        def publish() -> Trained:
            began = self.clock()
            try:
                self._publish(command, buffer.vector)
            finally:
                self._buffers.give_back(buffer)
            reached("worker-pushed")
            return replace(done, timings={**done.timings, "publish": self.clock() - began})

        return publish

    def _load(self, command: Train, fetched: FetchedCenter) -> None:
        needed = 0
        try:
            last = max(self._kept, default=0)
            if command.own.pending and last != command.own.pending:
                raise PayloadError(
                    f"the turn before it, ticket {command.own.pending}, had no result"
                )
            if command.moving_rate is None:
                self._load_center(command, fetched)
            elif command.own.merged:
                self._catch_up(command, fetched, last)
            if fetched.seen is not None:
                fetched.seen.check()
            if command.payload is Kind.WEIGHTS:
                needed = command.own.pending  # its merge is still to come
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
        """The worker's half of a merge, for a result that it may have gone on from."""
        assert command.moving_rate is not None
        center = fetched.buffer.vector if fetched.seen is None else fetched.seen.vector
        if command.own.merged not in self._kept:
            raise PayloadError(f"its result of ticket {command.own.merged}, now merged, is gone")
        sent = None if command.own.merged == last else self._kept[command.own.merged].vector
        self._pull(center, command.moving_rate, sent)

    def _encode(self, command: Train, payload: Vector) -> list[memoryview]:
        if self.exchange.is_exact:
            return super()._encode(command, payload)
        with self._statistics:
            return super()._encode(command, payload)


@dataclass
class OverlappingWorker(OverlappingParticipant, Worker):
    """A `Worker` in three stages: `fetch`, `compute`, and what this returns."""

    weights: Engine

    def turn(self, command: Train) -> Trained:
        """All three stages, one after the other."""
        return self.compute(command, self.fetch(command))()

    def compute(self, command: Train, fetched: FetchedCenter) -> Callable[[], Trained]:
        """Load the center and train; what is returned publishes the result, in the order of the turns."""
        began = self.clock()
        buffer = fetched.buffer
        try:
            self._load(command, fetched)
            loaded = self.clock()
            reached("worker-fetched")
            self.place(command)
            self._done = command.steps
            loss = self._train(command, buffer.vector)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        samples = self._done * command.tuning.batches * self.engine.samples_per_step
        self.samples += samples
        timings = {"fetch": fetched.seconds + loaded - began, "compute": self.clock() - loaded}
        done = Trained(
            *(self.worker, self.incarnation, command.ticket, loss, samples, timings),
            records=trained_of(command, samples),
        )
        return self._publish_later(done, command, buffer)

    def _train(self, command: Train, memory: Vector) -> float:
        """Leaves the result in `memory`, which has the turn's start if that is needed."""
        if not self.needs_center(command):
            return self._compute(command, memory)
        loss = self._steps(command)

        def subtract(blob: Blob, place: slice, weights: Vector) -> None:
            np.subtract(weights, memory[place], out=memory[place])

        self.engine.change_weights(subtract)
        return loss


@dataclass
class OverlappingDrivenWorker(OverlappingParticipant, DrivenWorker):
    """Turns that a script drives. Two other threads may do a part: one `fetch_ahead`, one what `end_later` returns."""

    _ahead: dict[int, FetchedCenter | Exception] = field(
        default_factory=dict, init=False
    )  # by ticket
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
        return self._publish_later(done, command, buffer)

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


class TurnPipeline:
    """The turns of `worker` go in by `submit`, from any thread, and come out in the order of their tickets.

    One thread computes and does all that is done `by_engine`: Caffe's settings and its random numbers belong to a
    thread.
    """

    worker: OverlappingWorker

    def __init__(self) -> None:
        self._engine = ThreadPoolExecutor(1, "engine")
        self._fetching = ThreadPoolExecutor(1, "fetch")
        self._publishing = ThreadPoolExecutor(1, "publish")
        self._changed = threading.Condition()
        self._latest = 0  # ticket
        self._last: Future[Trained] | None = None

    def by_engine(self, do: Callable[[Argument], Answer], argument: Argument) -> Answer:
        """Do it in the thread that the solver belongs to."""
        return self._engine.submit(do, argument).result()

    def submit(self, command: Train) -> Future[Trained]:
        """Begin this turn, behind all that were submitted and the one that it comes after."""
        worker = self.worker
        with self._changed:
            if not self._changed.wait_for(lambda: self._latest >= command.own.pending, ORDER_S):
                raise PayloadError(f"the turn before it, ticket {command.own.pending}, never came")
            fetched = self._fetching.submit(worker.fetch, command)
            computed = self._engine.submit(lambda: worker.compute(command, fetched.result()))
            self._last = self._publishing.submit(lambda: computed.result()())
            self._latest = command.ticket
            self._changed.notify_all()
            return self._last

    def drain(self) -> None:
        """Wait for the turns that were submitted."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Wait, and end the threads."""
        for stage in (self._fetching, self._engine, self._publishing):
            stage.shutdown()
