"""`speedo.join`: the user's own loop trains, and is a worker of a run; started by itself it is a run of one worker."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from speedo.errors import (
    ConfigError,
    MissingKeyError,
    PayloadError,
    SpeedoError,
    StoreUnavailableError,
    TeamBrokenError,
)
from speedo.leases.lease import Lease, LeaseRequest, NoLease
from speedo.run.host_memory import host_centers
from speedo.run.open_store import is_near, run_store
from speedo.run.script_link import VARIABLE, Hello, Start, address_in
from speedo.script.alone import OwnBook
from speedo.script.collectives import HostCollectives
from speedo.script.gradients import GradientTurns, check_exchange, exchanges_gradients
from speedo.script.turns import TurnSource
from speedo.transport.channel import refusal
from speedo.vectors.npz import write_arrays
from speedo.vectors.transfer import put_history
from speedo.vectors.vector import Blob, Vector
from speedo.worker.array_weights import ArrayWeights
from speedo.worker.driven_turn import DrivenWorker
from speedo.worker.share import Share
from speedo.worker.weights import Weights

LOST: Final = (MissingKeyError, PayloadError, StoreUnavailableError, TeamBrokenError)
FIRST: Final = 0  # the version of the first weights in the store
_NO_MORE: Final = object()
_now: JoinedRun | None = None


def join(model: Any, optimizer: Any = None, *, exchange: str | None = None) -> JoinedRun:
    """Train `model` in this script as one worker of a run, inside `with speedo.join(...) as run:`.

    `model` is a torch.nn.Module, with its `optimizer`, each of whose steps counts; or a mapping of names to NumPy
    arrays, which are changed in place, and `run.step()` says that a step was made. Run by itself the script is a run of
    one worker; `speedo run --workers 4 train.py` has four. `exchange` is what the workers average: "gradients" before
    each step of the optimizer, or "deltas", how far their weights came; None is gradients in sync with one local step
    and one host, else deltas. Raises `ConfigError` for what cannot be trained.
    """
    if _now is not None:
        raise ConfigError("speedo.join is called inside another: a script has one run at a time")
    check_exchange(exchange, has_optimizer=not isinstance(model, Mapping))
    if isinstance(model, Mapping):
        if optimizer is not None:
            raise ConfigError(
                "an optimizer is for a torch.nn.Module: leave it out, and call run.step()"
            )
        return JoinedRun(ArrayWeights(model), None)
    if not hasattr(model, "named_parameters"):
        raise ConfigError(
            f"speedo.join takes a torch.nn.Module or a mapping of names to NumPy arrays, not {type(model).__name__}"
        )
    if optimizer is None:
        raise ConfigError(
            "give the optimizer, too: speedo.join(model, optimizer); each of its steps counts"
        )
    from speedo.engines.pytorch.module_weights import ModuleWeights

    weights = ModuleWeights(model, optimizer)
    return JoinedRun(weights, weights, exchange)


def current() -> JoinedRun:
    """The run that this script has joined, for code deep in it. Raises `ConfigError` outside of `with speedo.join`."""
    if _now is None:
        raise ConfigError("no run is joined here: call it inside `with speedo.join(...)`")
    return _now


class JoinedRun(AbstractContextManager["JoinedRun"]):
    """One worker's part of a run. Its turns begin and end in `step`, in the script's own thread.

    `rank` is the worker's number from 0 on, `size` how many workers are wanted. `should_stop` says that the run is
    over: what is trained then reaches nobody.
    """

    def __init__(self, weights: Weights, stepped: Any, exchange: str | None = None) -> None:
        """`stepped.on_step(callback)` tells of an optimizer's steps; None where the script calls `step` itself."""
        self.rank, self.size, self.should_stop = 0, 1, False
        self._weights, self._stepped = weights, stepped
        self._exchange = exchange
        self._gradients: GradientTurns | None = None
        self._hooks: list[Any] = []
        self._first: Vector | None = None  # the weights at the beginning, until the master has them
        self._start: Start | None = None
        self._turns: TurnSource | None = None
        self._worker: DrivenWorker | None = None
        self._own = OwnBook()
        self._collectives = HostCollectives("", 0, 1, 0.0)
        self._share = Share(self._lease, lambda: None, 0)
        self._epochs, self._steps, self._given = 0, 0, 0
        self._shares = False  # `share` was called
        self._loss: float | None = None

    # ------------------------------------------------------------ the script's side

    @property
    def iteration(self) -> int:
        """Steps of all workers so far, as the run counts them."""
        return self._steps if self._worker is None else self._worker.iteration

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of so many epochs; ends early once the run is over, or all their records are trained."""
        if count < 1:
            raise ConfigError(f"run.epochs({count}): a run has at least 1 epoch")
        self._epochs = count
        for epoch in range(count):
            if self.should_stop:
                return
            yield epoch

    def share(
        self, data: Any, batch: int | None = None, shuffle: bool | None = None
    ) -> Iterator[Any]:
        """This worker's batches of one epoch of `data`: each record is trained by one worker, once.

        `data` is a PyTorch DataLoader, which has its own batch and order. Or a Dataset, a sequence, or a tuple of
        arrays of equal length: `batch` of its records are an item, without it each by itself, in the order of their
        numbers or in another one for each epoch (`shuffle`). Raises `ConfigError` for what has no numbered records.
        """
        items = self._share.batches(data, batch, shuffle, epochs=self._epochs)
        self._shares = True
        self._say_hello(self._share.batch)
        # Records are leased within a turn: so those of a round follow each other, as in a batch of one process.
        while self._has_turn() and (item := next(items, _NO_MORE)) is not _NO_MORE:
            yield item

    def step(self, loss: float | None = None, samples: int | None = None) -> None:
        """A step was made, on so many records: those that `share` gave since the last one, if it is not said.

        With an optimizer it is not called: its steps are noticed. `loss` is the mean loss of the step.
        """
        gradients = self._gradients
        if gradients is not None and gradients.lost:
            return
        given, self._given = self._share.given - self._given, self._share.given
        if gradients is not None:
            gradients.after_step()
            samples = 0 if gradients.idle else samples
        samples = given or 1 if samples is None else samples
        loss = self._loss if loss is None else float(loss)
        self._loss = None
        self._steps += 1
        if self._start is None:
            return self._own.trained(self._taken())
        self._say_hello(samples)
        if not self._has_turn():
            return
        assert self._worker is not None
        if self._worker.stepped(samples, loss):
            self._end_turn()
            if not self._shares:  # the next step may follow at once
                self._has_turn()

    def report(self, loss: float) -> None:
        """Say the loss of the step that follows, for the log: with an optimizer, before its step."""
        self._loss = float(loss)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the present weights to an .npz file, an array for each name; worker 0 alone does."""
        if self.rank == 0:
            vector = self._weights.layout.zeros()
            self._weights.read_weights(vector)
            write_arrays(Path(path), self._weights.layout, vector)

    # ------------------------------------------------------------ collectives

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        """The `sum`, `mean` or `max` of all workers' arrays or tensors `x`, in place; the same to the bit everywhere.

        All workers make the same collective calls in the same order. Raises `TeamBrokenError` if one of them ends or
        does not come within `--timeout`, `ConfigError` in all if they call different things.
        """
        return self._collectives.all_reduce(x, op)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """Worker `root`'s `x` in everybody's, in place."""
        return self._collectives.broadcast(x, root)

    def all_gather(self, x: Any) -> Any:
        """All workers' `x`, one after another by rank, as an array or tensor with one dimension more."""
        return self._collectives.all_gather(x)

    def barrier(self) -> None:
        """Return once all workers are here."""
        self._collectives.barrier()

    # ------------------------------------------------------------ the context

    def __enter__(self) -> Self:
        global _now
        if _now is not None:
            raise ConfigError(
                "speedo.join is called inside another: a script has one run at a time"
            )
        folder = os.environ.get(VARIABLE)
        if folder:
            made = socket.socket(socket.AF_UNIX)
            with address_in(folder) as address:
                made.connect(address)
            link = Connection(made.detach())
            start: Start = link.recv()
            self._start = start
            self.rank, self.size = start.place.worker, start.settings.workers
            self._share = Share(
                self._lease,
                lambda: None,
                start.settings.seed,
                workers=self.size,
                ahead=not start.in_rounds,
            )
            self._turns = TurnSource(link, start.place.worker, start.place.incarnation)
            self._collectives = HostCollectives(
                start.settings.near.folder, self.rank, self.size, start.settings.timeout_s
            )
            self._first = self._weights.layout.zeros()
            self._weights.read_weights(self._first)
            try:
                by_gradients = exchanges_gradients(self._exchange, self._stepped, start)
            except ConfigError as error:
                self._turns.raised(error)
                raise
            if by_gradients:
                self._gradients = GradientTurns(
                    self._stepped,
                    self._has_turn,
                    self._end_turn,
                    self._lose_turn,
                    self._turns,
                    self._share,
                )
                self._hooks.append(self._stepped.before_step(self._before_step))
        if self._stepped is not None:
            self._hooks.append(self._stepped.on_step(self.step))
        _now = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _now
        _now = None
        for hook in self._hooks:
            hook.remove()
        self._share.close()
        self._collectives.close()
        if self._turns is None:
            return
        try:
            if error is None:
                self._end()
            else:
                self._turns.raised(error)
        finally:
            if self._gradients is not None:
                self._gradients.close()
            if error is None:  # else the channel ends with the process, whose end is the cause
                self._turns.close()
            if self._worker is not None:
                self._worker.close()

    def _end(self) -> None:
        """Publish what is left of the turn, wait for the end of the run, and take over what it came to."""
        assert self._turns is not None
        if self._worker is None and not self._shares:
            raise ConfigError(
                "the script left `with speedo.join(...)` without a step: train inside of it, with run.step() or steps "
                "of the optimizer"
            )
        self._say_hello(1)  # there were no records left for it
        worker = self._worker
        if worker is not None and worker.command is not None and worker.steps:
            self._end_turn()
        if self._gradients is not None:
            self._gradients.close()  # others may wait for this worker
        version = self._turns.done()
        if version is None:
            print("speedo: the run is gone; these are this worker's own weights", file=sys.stderr)
        if version is None or worker is None:
            return
        center = self._weights.layout.zeros()
        worker.exchange.fetch_center(version, center)
        self._weights.load_weights(center)

    # ------------------------------------------------------------ turns

    def _before_step(self, closure: bool) -> None:
        """The optimizer will make a step."""
        assert self._gradients is not None
        given = self._share.given - self._given or 1
        self._say_hello(given)
        self._gradients.before_step(given, closure=closure)

    def _say_hello(self, batch: int) -> None:
        """Tell the master what is trained, once it is known; the steps before are kept."""
        if self._start is None or self._worker is not None or self.should_stop:
            return
        settings, place, layout = self._start.settings, self._start.place, self._weights.layout
        assert self._turns is not None
        assert self._first is not None
        store = run_store(place.redis_url, settings)
        if place.worker == 0:
            put_history(store, settings.keyspace, 0, FIRST, self._first.tobytes())
        if not is_near(settings.near):
            raise ConfigError(
                "a script trains on the machine of its master: start it with speedo run"
            )
        try:
            self._turns.begin(Hello(layout.blobs, batch, self._gradients is not None))
        except EOFError:  # the run has ended before it began
            self.should_stop = True
            return
        self._worker = DrivenWorker(
            settings.keyspace,
            place.worker,
            place.incarnation,
            self._weights,
            store,
            time.monotonic,
            settings.epoch,
            compression=settings.compression,
            host=host_centers(settings, place, layout),
        )
        if self._gradients is not None:
            self._gradients.open(self._worker, Path(os.environ[VARIABLE]).parent)
        present = layout.zeros()
        self._weights.read_weights(present)
        present -= self._first
        self._first = None
        if np.any(present) and self._has_turn():

            def add(blob: Blob, part: slice, weights: Vector) -> None:
                weights += present[part]

            self._weights.change_weights(add)

    def _has_turn(self) -> bool:
        """Whether a turn goes on, or begins now: the next is waited for. False once the run is over."""
        if self._start is None or self.should_stop:
            return not self.should_stop
        assert self._turns is not None
        assert self._worker is not None
        while self._worker.command is None and not self.should_stop:
            command = self._turns.next()
            if command is None:
                self.should_stop = True
                break
            try:
                begin = self._worker.begin if self._gradients is None else self._gradients.begin
                begin(command)
                self._share.steps = command.steps
            except LOST as problem:
                if self._gradients is not None:
                    self._gradients.part()
                self._turns.answer(refusal(command, problem))
        return not self.should_stop

    def _end_turn(self) -> None:
        assert self._turns is not None
        assert self._worker is not None
        command = self._worker.command
        assert command is not None
        taken = self._taken()
        records = tuple((one.epoch, one.start, one.stop) for one in taken)
        try:
            self._turns.answer(self._worker.end(records))
        except LOST as problem:
            self._share.give_back(taken)
            self._lose_turn(problem)

    def _lose_turn(self, problem: SpeedoError) -> None:
        """Nothing comes of the turn: what it trained is trained once more."""
        assert self._turns is not None
        assert self._worker is not None
        command = self._worker.command
        assert command is not None
        self._worker.command = None
        self._share.give_back(self._taken())
        self._given = self._share.given
        if self._gradients is not None:
            self._gradients.part()
        self._turns.answer(refusal(command, problem))

    # ------------------------------------------------------------ records

    def _taken(self) -> tuple[Lease, ...]:
        return self._share.taken()[0]

    def _lease(self, request: LeaseRequest) -> Lease | NoLease:
        if self._turns is None:
            return self._own.lease(request)
        try:
            if self._gradients is not None:
                answer = self._gradients.lease(request)
                if answer is NoLease.WAIT and self._share.reads_ahead:
                    return answer
            else:
                answer = self._turns.lease(request)
        except (EOFError, OSError):
            print("speedo: the run is gone", file=sys.stderr)
            self.should_stop = True
            return NoLease.OVER
        # What others hold may come back, but a round of theirs may wait for this worker: so it leaves. If one of them
        # dies, the worker that takes its place trains that.
        return NoLease.OVER if answer is NoLease.WAIT else answer
