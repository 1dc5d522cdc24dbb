"""The turns of a script in a run: they begin and end in the script's own thread, between two of its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from speedo.errors import (
    ConfigError,
    MissingKeyError,
    PayloadError,
    ScriptMistake,
    SpeedoError,
    StoreUnavailableError,
    TeamBrokenError,
)
from speedo.exchange.channel import refusal
from speedo.exchange.lease import Claim, Lease, LeaseRequest, NoLease
from speedo.exchange.transfer import take_history
from speedo.exchange.vector import Blob, Vector
from speedo.master.slots import ServerAddress
from speedo.messages import SaveState, StateSaved, Train
from speedo.run.between_hosts import between_hosts_of
from speedo.run.open_store import run_store
from speedo.run.script.gradients import GradientTurns, exchanges_gradients
from speedo.run.script.kept_state import ScriptState
from speedo.run.script.publisher import Publisher
from speedo.run.script.script_worker import host_folder, put_first_weights, script_worker
from speedo.run.script.shared_test import SharedTest
from speedo.run.script.testing import Measure, center_tested, measured
from speedo.run.script.turns import TurnSource
from speedo.run.script_link import MISTAKE, Hello, Start
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.share import RecordShare
from speedo.worker.weights import Weights

LOOK_S: Final = 0.2  # between two looks whether records came back
LOST: Final = (MissingKeyError, PayloadError, StoreUnavailableError, TeamBrokenError)


class ScriptTurns:
    """Those of one worker. `over` says that the run is over: what is trained then reaches nobody.

    There is no turn before the `hello`. Each method that needs one waits for it.
    """

    def __init__(
        self,
        start: Start,
        link: Connection,
        weights: Weights,
        stepped: Any,
        exchange: str | None,
        kept: ScriptState,
    ) -> None:
        """`stepped` is a module with its optimizer, None where arrays are trained; `exchange` as in `speedo.join`."""
        place = start.place
        self.over = False
        self.worker: ScriptWorker | None = None
        self.start, self._weights, self._kept = start, weights, kept
        self._module = stepped
        self._asked: LeaseRequest | None = None
        self._pauses = self._compared = False
        self._is_due = False  # the present turn ends with the present batch
        self._publisher: Publisher | None = None  # of results, where turns overlap
        self.share = RecordShare(
            self._lease,
            self._wait,
            start.settings.seed,
            workers=start.settings.workers,
            ahead=not start.in_rounds,
        )
        self.source = TurnSource(link, place.worker, place.incarnation, self._save_state)
        # The weights at the beginning, until the master has them.
        self._first: Vector | None = weights.layout.zeros()
        weights.read_weights(self._first)
        self.gradients: GradientTurns | None = None
        try:
            by_gradients = exchanges_gradients(exchange, stepped, start)
        except ConfigError as error:
            self.source.raised(error)
            raise
        if not by_gradients and stepped is not None and stepped.is_synchronised:
            print(
                "speedo: SyncBatchNorm has the statistics of each worker alone, because deltas are averaged",
                file=sys.stderr,
            )
        if by_gradients:
            self.gradients = GradientTurns(
                stepped, self.has_turn, self.end, self._lose, self.source, self.share
            )

    # ------------------------------------------------------------ begin and end of the script's part

    def shares(self) -> None:
        """The script trains records: the first time the master compares them with those of the others. Says hello."""
        source = self.share.source
        try:
            if not (self._compared or self.over):
                self.source.check(source.compared())
            self._compared = True
        except EOFError:
            self.over = True
        self.hello(source.step or source.batch)

    def hello(self, batch: int) -> None:
        """Tell the master what is trained, with this many records in a step, once; the steps before are kept."""
        if self.worker is not None or self.over:
            return
        layout = self._weights.layout
        assert self._first is not None
        put_first_weights(self.start, self._first)
        self._hello = Hello(layout.blobs, batch, self.gradients is not None)
        try:
            self._connect(self._hello)
        except EOFError:  # the run has ended before it began
            self.over = True
            return
        present = layout.zeros()
        self._weights.read_weights(present)
        present -= self._first
        self._first = None
        if np.any(present) and self.has_turn():

            def add(blob: Blob, part: slice, weights: Vector) -> None:
                weights += present[part]

            self._weights.change_weights(add)

    def _connect(self, hello: Hello) -> None:
        """Take the turns of the run's present master. Raises as `TurnSource.begin`."""
        start, place = self.start, self.start.place
        if self.gradients is not None:
            self.gradients.listen(host_folder(), place.worker, place.incarnation)
        worker = self._work_for(start, self.source.begin(hello))
        if self.gradients is not None:
            reach = partial(between_hosts_of, start.settings, place, self.source.missing)
            self.gradients.open(worker, reach)
        if worker.overlap:
            self.source.read_ahead(worker.fetch_ahead)
            self._publisher = self._publisher or Publisher(self.source, self.share)

    def _work_for(self, start: Start, servers: tuple[ServerAddress, ...] = ()) -> ScriptWorker:
        """Exchange vectors with the master that has given this place."""
        self.start = start
        self.worker = script_worker(start, self._weights, servers, self.worker)
        return self.worker

    def _follow(self) -> bool:
        """Take the turns of the run's next master, with the records that are here; False if the run is over."""
        while (start := self.source.another_master()) is not None:
            self.start = start
            if self._publisher is not None:
                self._publisher.finish()
            with suppress(TeamBrokenError, EOFError, OSError):  # that one is gone, too
                if held := self.share.held:
                    claim = Claim(self.share.source.records, held)
                    self.share.lose(self.source.claim(claim).leases)
                if self.gradients is not None:
                    self.gradients.forget_records()
                self._connect(self._hello)
                return True
        return False

    def go_on(self) -> None:
        """Of a run that is resumed get what it has come to, before the first step: weights, and the worker's state."""
        place, keyspace = self.start.place, self.start.settings.keyspace
        self.hello(self.start.job.batch)
        if self.worker is not None and place.history is not None:
            state = take_history(self.worker.store, keyspace, place.worker, place.history)
            self._kept.restore(state)
        self.has_turn()

    def done(self, meanwhile: Callable[[], None], unhook: Callable[[], None]) -> None:
        """Publish what is left of the turn, `unhook` steps, wait for the end of the run, and take over its model."""
        self.hello(1)  # there were no records left for it
        worker = self.worker
        if self.gradients is not None and self._in_team:
            self.gradients.leave()  # the others' turn ends, too, and counts
        unhook()
        if worker is not None and worker.command is not None and worker.steps:
            self.end()
        if self._publisher is not None:
            self._publisher.close()
        if self.gradients is not None:
            self.gradients.close()  # others may wait for this worker
        version = self.source.done(meanwhile, self._work_for)
        meanwhile()
        if version is None:
            print("speedo: the run is gone; these are this worker's own weights", file=sys.stderr)
        if version is None or (worker := self.worker) is None:
            return
        center = self._weights.layout.zeros()
        worker.exchange.fetch_center(version, center, exact=True)
        self._weights.load_weights(center)

    def close(self, error: BaseException | None) -> None:
        """Take no more turns; `error` is what the script raised in its part of the run."""
        if isinstance(error, ScriptMistake) and self.worker is not None:
            # Each worker would make it again and again.
            self.source.stop(f"{MISTAKE} (worker {self.start.place.worker}): {error}")
        if error is not None:
            self.source.raised(error)
        if self.gradients is not None:
            self.gradients.close()
        if error is None:  # else the channel ends with the process, whose end is the cause
            self.source.close()
        if self.worker is not None:
            self.worker.close()

    # ------------------------------------------------------------ turns

    def has_turn(self) -> bool:
        """Whether a turn continues, or begins now: the next is waited for. False once the run is over."""
        if self.over:
            return False
        assert self.worker is not None
        if self._publisher is not None:
            self._publisher.give_back_what_is_lost()
        while self.worker.command is None:
            command = self.source.next()
            if command is None:
                if self._follow():
                    continue
                self.over = True
                return False
            try:
                begin = self.worker.begin if self.gradients is None else self.gradients.begin
                begin(command)
                self.share.steps = command.steps
            except LOST as problem:
                if self.gradients is not None:
                    self.gradients.part(str(problem))
                self.source.answer(refusal(command, problem))
        return True

    def next_batch(self) -> bool:
        """The script has done what it does with a batch, and asks for another one: as `has_turn`."""
        if self._is_due:
            self.end()
        return self.has_turn()

    def after_backward(self) -> None:
        """A backward pass has ended, whose gradients are exchanged."""
        assert self.gradients is not None
        if self._pauses:  # one of a test
            return
        if not self.gradients.accumulates:
            self.hello(self.share.given or 1)
        self.gradients.after_backward(self.share.given)

    def add_up(self, values: Vector) -> None:
        """Statistics of a batch, of all workers."""
        assert self.gradients is not None
        if not self._pauses:
            self.hello(self.share.given or 1)
            self.gradients.add_up(values)

    def before_step(self, closure: bool, number: int) -> None:
        """Optimizer `number` will make a step, with the gradients that were exchanged before."""
        assert self.gradients is not None
        given = self.share.given
        self.hello(given or 1)
        self.gradients.before_step(given, closure=closure, number=number)

    def stepped(self, samples: int, loss: float | None, *, goes_on: bool = False) -> bool:
        """A step was made, on this many records; whether it was one of a turn.

        `goes_on`: the script may change the weights, or take gradients of the present ones, before its next batch.
        """
        self.hello(samples)
        if not self.has_turn():
            return False
        assert self.worker is not None
        is_last = self.worker.stepped(samples, loss)
        if is_last or (self.gradients is not None and self.gradients.turn_ends):
            self._is_due = goes_on
            if not goes_on:
                self.end()
        return True

    def end(self) -> None:
        """Publish what the turn has come to."""
        worker, self._is_due = self.worker, False
        assert worker is not None
        command = worker.command
        assert command is not None
        if self.gradients is not None:
            self.gradients.note_weights()
        taken = self.share.taken()[0]
        records = tuple((one.epoch, one.start, one.stop) for one in taken)
        publish = worker.end_later(records)
        if self._publisher is not None:
            return self._publisher.publish(publish, command, taken)
        try:
            done = publish()
            self.source.answer(
                replace(done, pauses=self.gradients is not None and self.gradients.leaves)
            )
        except LOST as problem:
            self.share.give_back(taken)
            self._lose(problem, command)

    def _lose(self, problem: SpeedoError, command: Train | None = None) -> None:
        """The result of this turn, by default of the present one, is lost: its records are trained again."""
        assert self.worker is not None
        command = command or self.worker.command
        assert command is not None
        self._drop(str(problem))
        self.source.answer(refusal(command, problem))

    def _drop(self, why: str) -> None:
        assert self.worker is not None
        self.worker.command, self._is_due = None, False
        self.share.give_back(self.share.taken()[0])
        self.share.given = 0
        if self.gradients is not None:
            self.gradients.part(why)

    def _has_moved(self, problem: TeamBrokenError) -> bool:
        """Have a turn of the run's next master; False if the run is over. Raises the problem if it is another one."""
        if not self.source.has_moved:
            raise problem
        pauses, self._pauses = self._pauses, False
        self._drop(str(problem))
        if not self.has_turn():
            return False
        if pauses:
            self._drop("")
            self.source.pause()
        self._pauses = pauses
        return True

    # ------------------------------------------------------------ between turns

    def between(self, *, goes_on: bool) -> AbstractContextManager[object]:
        """In a collective: the others may need a round more to come to it, which must not wait for this worker.

        That is so where `run.share` has nothing left for it. With a batch in hand, or in a loop of its own, it keeps
        its turn: what the script changes behind the collective is of this one; the next would load the center over it.
        So it does if it `goes_on` with its batch though the turn is due, as with the step of another optimizer.
        """
        if self._is_due and not goes_on:
            self.end()
        worker = self.worker
        begun = worker is not None and worker.command is not None and not worker.steps
        has_none = self._asked is not None and not self.share.given
        # The members of a team come together, and where turns overlap there are no rounds.
        waits = begun and has_none and not self._in_team and self._publisher is None
        return self.paused() if waits else nullcontext()

    def test(
        self, number: int, measure: Measure, data: Any, batch: int | None
    ) -> dict[str, float] | None:
        """Make the test of this number with the center, or take part in it; see `JoinedRun.test`."""
        if self.over:
            return None
        if self.worker is None:
            raise ConfigError("run.test is called before the first run.share or run.step")
        while True:
            try:
                return self._test(number, measure, data, batch)
            except TeamBrokenError as problem:
                if not self._has_moved(problem):
                    return None

    def _test(
        self, number: int, measure: Measure, data: Any, batch: int | None
    ) -> dict[str, float] | None:
        workers = self.start.settings.workers
        part = None if data is None else SharedTest(self.source, data, batch, workers)
        records = 0 if part is None else part.records
        turn = self.source.test_turn(number, records)
        if not turn.takes_part:
            return None
        with self.paused(tests=turn.begins) as say_again:
            version = self.source.version_to_test(number)
            if version is None:
                return None
            once = partial(measured, measure, self._module)
            whole = once if part is None else partial(part.metrics, once, say_again)
            assert self.worker is not None
            return center_tested(self.worker, self.source, version, whole, alone=part is None)

    @property
    def _in_team(self) -> bool:
        return self.gradients is not None and self.gradients.in_team is not None

    @contextmanager
    def paused(self, *, tests: bool = False) -> Iterator[Callable[[], None]]:
        """Publish what was trained, and let the others continue without this worker.

        Longer than a part of the timeout only if what is yielded is called now and then.
        """
        worker = self.worker
        if worker is not None and worker.command is not None and worker.steps and not self._in_team:
            self.end()
        if self._pauses or worker is None or not self.has_turn():
            yield lambda: None
            return
        if self.gradients is None or not self._in_team or not self.gradients.leave():
            self._drop("")
        if self._publisher is not None:
            self._publisher.finish()  # results come before the pause
        self.source.pause(tests=tests)
        self._pauses = True
        try:
            yield self.source.pause
        finally:
            self._pauses = False
            self.source.pause(over=True)

    def _save_state(self, command: SaveState) -> StateSaved:
        """Put this worker's state into the store, for a checkpoint."""
        assert self.worker is not None
        place, settings = self.start.place, self.start.settings
        # The worker's store may just fetch the next center.
        with closing(run_store(place.redis_url, settings)) as store:
            return self._kept.put(command, place, store, settings.keyspace, self.worker.samples)

    # ------------------------------------------------------------ records

    def _lease(self, request: LeaseRequest) -> Lease | NoLease:
        self._asked = request
        try:
            if self.gradients is None or request.waits:
                answer = self.source.lease(request)
                # With a turn ahead, which a pause makes late, it waits only for the last records of the run.
                waits = answer is NoLease.WAIT and (self._publisher is None or request.epochs > 0)
                return answer if waits or isinstance(answer, Lease) else NoLease.OVER
            return self.gradients.lease(request)
        except TeamBrokenError as problem:
            return self._lease(request) if self._has_moved(problem) else NoLease.OVER
        except (EOFError, OSError):
            print("speedo: the run is gone", file=sys.stderr)
            self.over = True
            return NoLease.OVER

    def _wait(self) -> None:
        """Nothing is left but what others hold: it comes back if one of them dies."""
        if self.gradients is not None and self.gradients.trains_first:
            return
        with self.paused() as say_again:
            if self.share.has_kept:  # its last result is lost: they are trained once more
                return
            assert self._asked is not None
            request = replace(self._asked, skipped=(), waits=True)
            while (answer := self._lease(request)) is NoLease.WAIT:
                time.sleep(LOOK_S)
                say_again()
        if isinstance(answer, Lease):
            self.share.give_back((answer,))
