"""Runs the training, from the first weights to the exported model, with the parts that `speedo.run.build` built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from speedo.errors import (
    CheckpointError,
    EngineError,
    FencedError,
    RunInterrupted,
    StoreError,
    TrainingStopped,
)
from speedo.exchange.transfer import put_history
from speedo.exchange.vector import Layout
from speedo.master.center import RunCenter
from speedo.master.checkpoint_writer import CheckpointWriter
from speedo.master.driver import Driver
from speedo.master.stopping import Outcome
from speedo.messages import Event, Trained
from speedo.run.best_model import BestFile
from speedo.run.outputs import hand_over
from speedo.run.result import RunResult
from speedo.run.run_parts import RunParts
from speedo.run.script_job import NO_LIMIT
from speedo.run.script_link import MISTAKE
from speedo.run.trained_model import TrainedModel
from speedo.run_dir.checkpoint_file import checkpoints_in
from speedo.run_dir.directory import CHECKPOINTS
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.conditions import score_in
from speedo.system.disk_calls import hangs
from speedo.watch.export.background import Background
from speedo.watch.status import OwedTurn, Status

# Of the loss of guessing: noise of batches is smaller after a few steps of learning.
NOTHING_LEARNED: Final = 0.95
WORSE: Final = 1.5


@dataclass
class Training:
    """`run` blocks, `status` may be called from other threads.

    `histories` are the workers' solver histories of the checkpoint that the run resumes, by slot;
    `seconds_before` is how long it had trained by then. `config_values` are written beside the model.
    """

    parts: RunParts
    driver: Driver
    model: TrainedModel
    log: MetricsLog
    keeper: CheckpointWriter | None
    histories: Mapping[int, bytes]
    seconds_before: float
    config_values: Mapping[str, Any]
    exports: Background | None = None
    best: BestFile | None = None
    chance: float | None = None  # the loss of guessing
    # Whether the result of a former master's turn may count, as far as its records are concerned.
    take_up: Callable[[Trained], bool] = lambda handed: True
    _thread: int | None = None  # that of the driver, while it runs

    @property
    def center(self) -> RunCenter:
        return self.driver.center

    @property
    def layout(self) -> Layout:
        return self.center.layout

    def run(self) -> RunResult:
        """Train, test the last version, export it, and write the result; elsewhere if `run_dir` has no space.

        If the store stays away, the run ends with `StoreError`, after a checkpoint.
        """
        self._thread, elsewhere = threading.get_ident(), False
        try:
            self._give_histories_back()
            outcome = self.driver.run()
            if not outcome.complete and outcome.samples == 0:
                stopped = EngineError if MISTAKE in outcome.reason else TrainingStopped
                raise stopped(f"nothing was trained: {outcome.reason}")
            self.parts.fence.require()
            return hand_over(
                self._result(outcome),
                self.parts.run_dir,
                self.log,
                self.config_values,
                self.model.file,
                partial(self.model.export, self.center.vector),
                self.model.second_name(outcome.iteration),
            )
        except RunInterrupted:
            elsewhere = True
            raise
        except FencedError:
            elsewhere = True
            self.log.disown()
            if self.exports is not None:
                self.exports.disown()
            raise
        except StoreError as error:
            fence = self.parts.master_fence
            elsewhere = fence is not None and fence.has_standby
            raise StoreError(f"{error}; {self._keep_what_there_is()}") from None
        finally:
            self._thread = None
            if not elsewhere:  # else its hosts are not to leave
                self.parts.end()
            if self.keeper is not None:
                self.keeper.close()
            self.log.close()
            if self.exports is not None:
                self.exports.close()

    def _give_histories_back(self) -> None:
        """Write the workers' histories to the store, where the workers of their slots read them, however late."""
        version, run = self.center.version, self.parts.settings.keyspace
        for slot, history in self.histories.items():
            put_history(self.parts.store, run, slot, version, history, expire_s=None)

    def _keep_what_there_is(self) -> str:
        """After the loss of the store: write a checkpoint of the center; returns how to use it."""
        coordinator = self.driver.coordinator
        if self.keeper is None or coordinator.samples == 0:
            return "nothing was trained"
        try:
            problem = self.keeper.keep_center(coordinator, self.driver.seconds)
        except StoreError:  # servers have the center, and one of them is gone
            kept = checkpoints_in(self.parts.run_dir / CHECKPOINTS)
            resume = f"--resume {self.parts.run_dir} continues from the last checkpoint"
            return resume if kept else "there is no checkpoint yet"
        if problem:
            return f"and {problem}"
        what = f"iteration {coordinator.iteration} is kept, without the workers' solver histories"
        return f"{what}: continue with --resume {self.parts.run_dir}"

    def tell(self, event: Event) -> None:
        """Inform the observers of something that delays the driver; called from the driver's thread only."""
        self.driver.tell(event)

    def status(self) -> Status:
        """Raises `CheckpointError` while the run stands still because a disk does not answer."""
        if problem := hangs(self._thread):
            raise CheckpointError(
                f"{problem}; once it is back, continue with --resume {self.parts.run_dir}"
            )
        turns, heard_s = self.driver.waits()
        owed = [
            OwedTurn(one.worker, since, left, () if one.team is None else one.team.workers)
            for one, since, left in turns
        ]
        return replace(self.parts.status(), owed=tuple(owed), heard_s=heard_s)

    def close(self) -> None:
        self.model.close()

    def _result(self, outcome: Outcome) -> RunResult:
        settings, board, run_dir = self.parts.settings, self.parts.board, self.parts.run_dir
        seconds = self.seconds_before + outcome.seconds
        untested = outcome.test_problem
        if settings.spec.has_test and not outcome.metrics and self.driver.final_test:
            untested = untested or "the tester gave no answer"
        return RunResult(
            board.mode,
            settings.workers,
            outcome.complete and not untested,  # the last test is part of the work
            untested if outcome.complete and untested else outcome.reason,
            outcome.iteration,
            outcome.version,
            score_in(outcome.metrics),
            dict(outcome.metrics),
            untested,
            outcome.samples / seconds if seconds > 0 else 0.0,
            seconds,
            outcome.samples,
            dict(board.dropped),
            str(run_dir / self.model.file),
            str(run_dir),
            board.results * self.center.payload_bytes,
            board.turns * self.center.center_bytes,
            best=None if self.best is None else self.best.result,
            warning="; ".join(filter(None, self._warnings(outcome))),
            master_restarts=settings.master_restarts,
            merges_undone=self.log.undone,
            problems=tuple(
                f"there is no checkpoint of the end: {one.hangs}"
                for one in (self.keeper,)
                if one is not None and one.hangs
            ),
        )

    def _warnings(self, outcome: Outcome) -> Iterator[str]:
        """What the figures of the result do not say."""
        settings = self.parts.settings
        share = None if settings.spec.max_iter == NO_LIMIT else settings.data_share  # of a script
        reason = "" if outcome.complete else outcome.reason
        yield self.parts.board.given_up.words(share, self.parts.records, reason)
        if outcome.complete:
            yield self._nothing_learned()

    def _nothing_learned(self) -> str:
        """What is said of a loss that ends no better than that of guessing; else nothing."""
        watch, chance = self.driver.divergence, self.chance
        now = None if watch is None else watch.loss_at_end()
        if now is None or chance is None or now < NOTHING_LEARNED * chance:
            return ""
        cause = (
            "do the labels belong to their records, is the learning rate right, and are there enough iterations?"
            if now < WORSE * chance
            else "are the records scaled (transform_param { scale: 0.00390625 }), and is the learning rate low enough?"
        )
        return f"the loss ends at {now:.3g}, and guessing has {chance:.3g}: the net has learned nothing; {cause}"
