"""`speedo.join`: the user's own loop trains, and is a worker of a run; started by itself it is a run of one worker."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from speedo.engines.native_failures import STACK_SIGNAL
from speedo.errors import ConfigError, ScriptMistake
from speedo.run.script.alone import OwnBook
from speedo.run.script.collectives import Collectives
from speedo.run.script.events import ScriptEvents
from speedo.run.script.gathering import gather
from speedo.run.script.gradients import check_exchange
from speedo.run.script.iterations import Iterations
from speedo.run.script.kept_state import ScriptState
from speedo.run.script.saving import save
from speedo.run.script.script_turns import ScriptTurns
from speedo.run.script.shared_test import tested_alone
from speedo.run.script.testing import Measure, in_words
from speedo.run.script_link import VARIABLE, Start, address_in
from speedo.run_dir.events import (
    CheckpointWritten,
    ModelTested,
    ResultMerged,
    WorkerJoined,
    WorkerLeft,
)
from speedo.system.kept_memory import keep_freed_memory
from speedo.watch.callbacks import Callbacks
from speedo.worker.array_weights import ArrayWeights
from speedo.worker.share import RecordShare, SharedBatches
from speedo.worker.weights import ScriptWeights

MANY: Final = 100  # batches in an epoch without a step: gradients may be added up, or a GradScaler leave steps out
GOES_ON_S: Final = 10.0  # a loop that does not ask whether the run is over
_NO_MORE: Final = object()
_now: JoinedRun | None = None
_joined = False  # this process has been in a run


def join(
    model: Any,
    optimizer: Any = None,
    *,
    scheduler: Any = None,
    exchange: str | None = None,
    on_result: Callable[[ResultMerged], object] | None = None,
    on_test: Callable[[ModelTested], object] | None = None,
    on_join: Callable[[WorkerJoined], object] | None = None,
    on_leave: Callable[[WorkerLeft], object] | None = None,
    on_checkpoint: Callable[[CheckpointWritten], object] | None = None,
) -> JoinedRun:
    """Train `model` in this script as one worker of a run, inside `with speedo.join(...) as run:`.

    `model` is a torch.nn.Module, with its `optimizer`, each of whose steps counts, or lists of either; or a mapping of
    names to NumPy arrays, which are changed in place, and `run.step()` says that a step was made. `scheduler` is an
    object, or a list of them, with `state_dict()` and `load_state_dict(state)`, whose state is the same in all workers:
    schedulers, a GradScaler, an average of the weights. It is kept in checkpoints, as by `run.keep`. Run by itself the
    script is a run of one worker; `speedo run --workers 4 train.py` has four. `exchange` is what the workers average:
    "gradients" when a backward pass ends, or "deltas", how far their weights came; None is gradients in sync with one
    local step, else deltas; it is the same in all workers. The functions `on_...` are called by worker 0 between its
    steps, for all workers; by a script that runs by itself only `on_result` is, after each step. What one raises ends
    the run, which exports its model, and comes out of the step then. Raises `ConfigError` for what cannot be trained.
    """
    events = ScriptEvents(Callbacks(on_result, on_test, on_join, on_leave, on_checkpoint))
    _require_no_other()
    check_exchange(exchange, has_optimizer=not isinstance(model, Mapping))
    if isinstance(model, Mapping):
        if optimizer is not None or scheduler is not None:
            raise ConfigError(
                "an optimizer or a scheduler is for a torch.nn.Module: leave it out, and call run.step()"
            )
        return JoinedRun(ArrayWeights(model), None, events)
    models, optimizers = _listed(model), _listed(optimizer)
    for one in models:
        if not hasattr(one, "named_parameters"):
            raise ConfigError(
                "speedo.join takes a torch.nn.Module, a list of them, or a mapping of names to NumPy arrays, not "
                f"{type(one).__name__}"
            )
    if not (models and optimizers):
        raise ConfigError(
            "give model and optimizer, too: speedo.join(model, optimizer); each of its steps counts"
        )
    from speedo.engines.pytorch.module_weights import ModuleWeights, together

    schedulers = _listed(scheduler)
    weights = ModuleWeights(together(models), optimizers, schedulers)
    run = JoinedRun(weights, weights, events, exchange, optimizers=len(optimizers))
    for number, one in enumerate(schedulers):
        run.keep(f"scheduler {number}", one)
    return run


def _listed(things: Any) -> list[Any]:
    if isinstance(things, list | tuple):
        return list(things)
    return [] if things is None else [things]


def _require_no_other() -> None:
    if _now is not None or (_joined and not hasattr(sys, "ps1")):  # a notebook may join again
        raise ScriptMistake(
            f"speedo.join is called {'inside another' if _now else 'once more'}: a script joins one run; train in one "
            "`with speedo.join(...)`, or start the script for each training, as in `speedo run train.py 0.1`"
        )


def current() -> JoinedRun:
    """The run that this script has joined, for code deep in it. Raises `ConfigError` outside of `with speedo.join`."""
    if _now is None:
        raise ConfigError("no run is joined here: call it inside `with speedo.join(...)`")
    return _now


class LoopEnds(BaseException):
    """Ends a loop that goes on after the end of the run; leaving `with speedo.join(...)` takes it."""


class JoinedRun(AbstractContextManager["JoinedRun"]):
    """One worker's part of a run. Its turns begin and end in `step`, in the script's own thread.

    `rank` is the worker's number from 0 on, `size` how many workers are wanted. The worker that `is_first`, worker 0,
    writes what is written once. `should_stop` says that the run is over: what is trained then reaches nobody.
    """

    def __init__(
        self,
        weights: ScriptWeights,
        stepped: Any,
        events: ScriptEvents,
        exchange: str | None = None,
        *,
        optimizers: int = 1,
    ) -> None:
        """`stepped.on_step(callback)` tells of an optimizer's steps; None where the script calls `step` itself."""
        self.rank, self.size, self.is_first = 0, 1, True
        self._weights, self._stepped, self._events = weights, stepped, events
        self._exchange, self._several = exchange, optimizers > 1
        self._iterations = Iterations(optimizers)
        self._hooks = ExitStack()
        self._turns: ScriptTurns | None = None  # none where the script runs by itself
        self._own = OwnBook()
        self._collectives = Collectives()
        self._kept = ScriptState(stepped)
        self._share = RecordShare(self._own.lease, lambda: None, 0)
        self._epochs, self._steps, self._first_epoch = 0, 0, 0
        self._shares, self._loops = False, 0  # `share` was called; loops over what it gives
        # No step yet, and the batches that `share` gave before it.
        self._no_step, self._unused = True, 0
        self._over_since, self._tested = 0.0, 0  # when a step found the run over; calls of `test`
        self._loss: float | None = None

    # ------------------------------------------------------------ the script's side

    @property
    def should_stop(self) -> bool:
        """Whether the run is over."""
        return self._turns is not None and self._turns.over

    @property
    def iteration(self) -> int:
        """Steps of all workers so far, as the run counts them."""
        worker = None if self._turns is None else self._turns.worker
        return self._steps if worker is None else worker.iteration

    def epochs(self, count: int, start: int = 0) -> Iterator[int]:
        """The numbers of this many epochs, from `start` on; of a resumed run those that are not trained to their end.

        A second call continues with the next epochs of the run. Ends early once the run is over.
        """
        if count < 1:
            raise ConfigError(f"run.epochs({count}): a run has at least 1 epoch")
        before, first = min(self._epochs, self._share.epoch), self._first_epoch
        self._epochs = before + count
        if self._kept.epoch is not None:
            first = min(first, self._kept.epoch)  # without batches, but maybe a scheduler's step
        first = max(before, first)
        self._share.epoch = max(self._share.epoch, first)
        if first >= self._epochs:
            self._shares = True  # a loop that does not begin is no mistake
            print(f"speedo: the run has trained {count} epochs, all that are asked for", flush=True)
        for epoch in range(first, self._epochs):
            if self.should_stop:
                return
            self._kept.epoch = epoch
            yield epoch - before + start
            self._kept.epoch = epoch + 1

    def share(
        self, data: Any, batch: int | None = None, shuffle: bool | None = None
    ) -> SharedBatches:
        """This worker's batches of `data`, one epoch each time they are iterated: each record is trained once.

        `data` is a PyTorch DataLoader, which has its own batch and order. Or a Dataset, a sequence, or arrays of equal
        length in a tuple or dictionary: `batch` of its records are an item, without it each by itself, in the order of
        their numbers or in another one for each epoch (`shuffle`). Or a stream, as an IterableDataset, of which each
        worker reads all. `len()` are the batches of an epoch for each of the workers that are wanted, rounded up.
        Raises `ConfigError` for what cannot be divided, and for other data than the other workers have.
        """
        number = self._share.source_of(data, batch, shuffle).batches(self.size)
        return SharedBatches(partial(self._batches, data, batch, shuffle), number)

    def _batches(self, data: Any, batch: int | None, shuffle: bool | None) -> Iterator[Any]:
        items, turns = self._share.batches(data, batch, shuffle, self._epochs), self._turns
        self._shares = True
        if turns is not None:
            turns.shares()
        self._loops += 1
        try:
            # Records are leased within a turn: so those of a round follow each other, as in a batch of one process.
            while (turns is None or turns.next_batch()) and (
                item := next(items, _NO_MORE)
            ) is not _NO_MORE:
                if turns is None or turns.has_turn():  # after a wait it is a new one
                    self._unused += self._no_step
                    yield item
        finally:
            self._loops -= 1
        self._check_steps(MANY)

    def _check_steps(self, few: int = 1) -> None:
        """Raises `ScriptMistake` where more than a few batches were given, and no step was made."""
        if self._no_step and self._unused > few:
            remedy = "call run.step() after each change of the arrays"
            if self._stepped is not None:
                remedy = "give speedo.join the optimizer that steps; weights changed by hand are NumPy arrays"
            raise ScriptMistake(
                f"run.share gave {self._unused} batches, and no step was made with them: {remedy}"
            )

    def step(self, loss: float | None = None, samples: int | None = None) -> None:
        """A step was made, on this many records: those that `share` gave since the last one, if it is not said.

        With an optimizer it is not called: its steps are noticed. `loss` is the mean loss of the step.
        """
        self._step(0, loss, samples)

    def accumulate(self) -> AbstractContextManager[object]:
        """Backward passes inside are not exchanged: those before the last one of a step."""
        gradients = None if self._turns is None else self._turns.gradients
        return nullcontext() if gradients is None else gradients.accumulating()

    def _step(self, number: int, loss: float | None = None, samples: int | None = None) -> None:
        """Optimizer `number` has made a step."""
        turns, self._no_step = self._turns, False
        gradients = None if turns is None else turns.gradients
        if gradients is not None and gradients.lost:
            return
        self._weights.check_changes()
        if turns is not None and turns.over:
            self._end_loop()
        is_idle = gradients is not None and gradients.idle
        counted = 0 if gradients is None else gradients.after_step()
        # Of a batch only the first step leaves the turn open: what follows with the batch is of the turn, too.
        goes_on = gradients is None and self._loops > 0 and self._share.given > 0
        by_steps = self._several and gradients is None
        if by_steps and not self._iterations.counts(number, begins=goes_on):
            return
        if is_idle:
            samples = counted  # a batch that the script has in hand is of its next step
            self._share.given -= counted
        else:
            given, self._share.given = self._share.given, 0
            least = int(not (self._several and self._loops))
            samples = (given or least) if samples is None else samples
        loss = self._loss if loss is None else float(loss)
        self._loss = None
        self._steps += 1
        if turns is None:
            self._own.trained(self._share.taken()[0])
        elif not turns.stepped(samples, loss, goes_on=goes_on):
            return
        elif not (is_idle or goes_on) and (self._several or not self._loops):
            turns.has_turn()  # the next step may follow at once
        self._events.stepped(self._steps, math.nan if loss is None else loss, samples)

    def _end_loop(self) -> None:
        """Raise `LoopEnds` in a loop that goes on though the run is over, and does not ask `should_stop`."""
        self._over_since = self._over_since or time.monotonic()
        if time.monotonic() - self._over_since > GOES_ON_S:
            print(
                "speedo: the run is over: the loop ends here, and the script goes on after `with speedo.join(...)`; "
                "a loop that asks run.should_stop ends by itself",
                flush=True,
            )
            raise LoopEnds

    def report(self, loss: float) -> None:
        """Say the loss of the step that follows, for the log: with an optimizer, before its step. May be a tensor."""
        self._loss = float(getattr(loss, "detach", lambda: loss)())  # it may have a gradient

    def test(
        self, measure: Measure, data: Any = None, batch: int | None = None
    ) -> dict[str, float] | None:
        """Test the center: `measure` is called with its weights, a module in eval mode, without gradients.

        It returns numbers by their names, as `{"accuracy": 0.9}`; they are in the log, and returned. The first worker
        that comes to its n-th call begins the n-th test, of the newest center, and has `--timeout` seconds for it.

        With `data`, which is what `share` takes, it is `measure(batches)`, and returns means over the records of these
        batches. Workers that come to the same test before all records are given out take part: each record is tested
        by one of them, and all get the means over all records. Else one worker makes the test. The others get None at
        once, and continue. Raises `ConfigError` for what is no finite number.
        """
        number, self._tested = self._tested, self._tested + 1
        if self._turns is not None:
            return self._turns.test(number, measure, data, batch)
        metrics = tested_alone(measure, self._stepped, data, batch)
        print(f"test at iteration {self.iteration}: {in_words(metrics)}", flush=True)
        return metrics

    def print(self, *values: object, **options: Any) -> None:
        """As Python's `print`, in worker 0 alone, at once."""
        if self.is_first:
            print(*values, **{"flush": True, **options})

    def save(self, path: str | os.PathLike[str], thing: Any = None) -> None:
        """Write a file in worker 0 alone, whole or not at all: the present weights as .npz, an array for each name.

        Of another `thing` a path in .npz gets a mapping of names to arrays or tensors, any other path what `torch.save`
        writes. Raises `ConfigError` for what no .npz file holds, `OSError`.
        """
        if self.is_first:
            save(Path(path), self._weights, thing)

    def keep(self, name: str, thing: Any, *, same: bool = False) -> None:
        """Keep an object in checkpoints, by its `state_dict()`; of a run that is resumed its state is given back now.

        If it is the `same` in all workers, it is as one that `speedo.join` was given as `scheduler`. Numbers, text,
        arrays and tensors in lists and dictionaries can be kept. Raises `ConfigError` for others.
        """
        self._kept.keep(name, thing)
        if same and self._stepped is not None and thing not in self._stepped.schedulers:
            self._stepped.schedulers.append(thing)

    # ------------------------------------------------------------ collectives

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        """The `sum`, `mean` or `max` of all workers' arrays or tensors `x`, in place; the same to the bit everywhere.

        All workers make the same collective calls in the same order. Raises `TeamBrokenError` if one of them ends or
        does not come within `--timeout`, `ConfigError` in all if they call different things. The next call is of those
        that are there then; one that is started again, or comes in addition, takes part in it from its first call on.
        """
        with self._between():
            return self._collectives.all_reduce(x, op)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """Worker `root`'s `x` in everybody's, in place. Raises `TeamBrokenError` if it is not there."""
        with self._between():
            return self._collectives.broadcast(x, root)

    def all_gather(self, x: Any) -> Any:
        """All workers' `x` that are there, by rank, as an array or tensor with one dimension more."""
        with self._between():
            return self._collectives.all_gather(x)

    def barrier(self) -> None:
        """Return once all workers are here."""
        with self._between():
            self._collectives.barrier()

    def _between(self) -> AbstractContextManager[object]:
        return nullcontext() if self._turns is None else self._turns.between(goes_on=self._several)

    # ------------------------------------------------------------ the context

    def __enter__(self) -> Self:
        global _now, _joined
        _require_no_other()
        keep_freed_memory()
        if folder := os.environ.get(VARIABLE):
            self._enter_run(folder)
        if self._stepped is not None:
            self._hooks.callback(self._stepped.on_step(self._step).remove)
        _now, _joined = self, True
        return self

    def _enter_run(self, folder: str) -> None:
        made = socket.socket(socket.AF_UNIX)
        try:
            with address_in(folder) as address:
                made.connect(address)
        except OSError:
            made.close()
            raise ConfigError("two processes of a script call speedo.join: join in one") from None
        if signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL:
            faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
        link = Connection(made.detach())
        start: Start = link.recv()
        self.rank, self.size = start.place.worker, start.settings.workers
        self.is_first = self.rank == 0
        self._first_epoch = start.job.first_epoch
        self._turns = turns = ScriptTurns(
            start, link, self._weights, self._stepped, self._exchange, self._kept
        )
        self._share = turns.share
        self._events.join(start, turns.source)
        self._collectives = Collectives(
            lambda *call: gather(turns.start, turns.source, turns.paused, *call)
        )
        if turns.gradients is not None:
            self._hooks.callback(self._stepped.before_step(turns.before_step).remove)
            self._hooks.callback(self._stepped.synchronised(turns.add_up).remove)
            turns.gradients.on_backward(turns.after_backward)
        if start.settings.epoch > 0:  # of a master that has resumed the run
            turns.go_on()
        if start.settings.moved and self._kept.epoch is not None:
            self._first_epoch = self._kept.epoch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        global _now
        _now = None
        self._share.close()
        self._collectives.close()
        if self._turns is None:
            self._hooks.close()
            if error is None:
                self._check_steps()
            return False
        ends = isinstance(error, LoopEnds)
        is_well = error is None or ends or (isinstance(error, SystemExit) and not error.code)
        problem = None if is_well else error
        try:
            if is_well:
                self._check_steps()
                if self._turns.worker is None and not self._shares and not self.should_stop:
                    raise ConfigError(
                        "the script left `with speedo.join(...)` without a step: train inside of it, with run.step() "
                        "or steps of the optimizer"
                    )
                self._turns.done(self._events.look, self._hooks.close)
        except ConfigError as mistake:
            problem = mistake
            raise
        finally:
            self._hooks.close()
            self._turns.close(problem)
        return ends
