"""Reads what a run directory has of a run's course: losses, tests, decisions, timings, workers' lives.

A run that was resumed has undone what came after its checkpoint; it is left out here, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from caffenets.files import read_bytes
from speedo.errors import hide_secrets
from speedo.run_dir.directory import CONFIG, RESULT
from speedo.run_dir.events import (
    MASTER_PARTS,
    WORKER_PARTS,
    BatchDivided,
    MasterBegan,
    ModelTested,
    ResultDropped,
    ResultMerged,
    RunEvent,
    RunFinished,
    RunResumed,
    WorkerJoined,
    WorkerLeft,
    read_events,
)
from speedo.run_dir.read_back import read_result, text_of
from speedo.sgd_modes.conditions import score_in
from speedo.system.foreign_text import MOST_NAME, clean_text

MOST_CONFIG_BYTES: Final = 1 << 20
WARM_UP: Final = 0.1  # of the images of a part of a run: its speed is measured after them


@dataclass(frozen=True, slots=True)
class TestPoint:
    """One test of the center: images merged by then, seconds of training, and what the test nets gave."""

    __test__ = False  # it is no test of pytest's

    images: float
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Life:
    """A worker's stay, in seconds of the run. `ended` is None for one that stayed to the end."""

    worker: int
    began: float
    ended: float | None
    cause: str


@dataclass(frozen=True, slots=True)
class NotMerged:
    """Results that were not merged: how many, with which decision and reason."""

    decision: str
    reason: str
    count: int


@dataclass(slots=True)
class RunHistory:
    """One run. `ends` are the images merged after each piece of training, `seconds` when that was.

    `losses` are the mean training losses of the pieces, NaN where a loss was not finite; `began` is when training
    began, and `resumes` are the images at which it was resumed. `records` are those of an epoch. `turns` has the
    seconds of a turn and of its parts, means over all turns. `wanted` is the number of workers that the run was started
    with.
    """

    name: str
    folder: Path
    mode: str = "?"
    wanted: int = 0
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    records: int | None = None
    began: float = 0.0
    ends: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tests: list[TestPoint] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    merged: int = 0
    refused: list[NotMerged] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    divisions: list[BatchDivided] = field(default_factory=list)
    turns: dict[str, float] = field(default_factory=dict)
    resumes: list[float] = field(default_factory=list)
    master_restarts: list[str] = field(default_factory=list)  # why the command did that, each time
    last_second: float = 0.0
    complete: bool = False
    reason: str = "it is running, or was killed"
    result: Mapping[str, Any] | None = None

    @property
    def images(self) -> float:
        """Of all that was merged."""
        return self.ends[-1] if self.ends else 0.0

    @property
    def not_merged(self) -> int:
        """Results that reached the master and were not merged."""
        return sum(one.count for one in self.refused)

    def accuracies(self) -> list[tuple[float, float, float]]:
        """Images, seconds and accuracy, or mean average precision, of each test whose net has one."""
        found = [(one.images, one.seconds, score_in(one.metrics)) for one in self.tests]
        return [(images, seconds, value) for images, seconds, value in found if value is not None]

    def images_per_s(self) -> float | None:
        """Merged images over the time of training, without the first tenth of each part and without resumes."""
        images = seconds = 0.0
        bounds = [0.0, *self.resumes, self.images]
        for first, last in pairwise(bounds):
            inside = [at for at, end in enumerate(self.ends) if first < end <= last]
            if inside:
                from_ = first + WARM_UP * (last - first)
                begin = next(at for at in inside if self.ends[at] >= from_)
                images += self.ends[inside[-1]] - self.ends[begin]
                seconds += self.seconds[inside[-1]] - self.seconds[begin]
        return images / seconds if seconds > 0 else None


def loss_in(metrics: Mapping[str, float]) -> float | None:
    """The output named loss, or else the first whose name contains it."""
    if "loss" in metrics:
        return metrics["loss"]
    named = [value for name, value in metrics.items() if "loss" in name.lower()]
    return named[0] if named else None


def read_history(folder: Path) -> RunHistory:
    """Read a run directory, of a run that is over, is running or has failed. Raises `DataError`."""
    run = RunHistory(clean_text(os.path.basename(os.path.realpath(folder)), MOST_NAME), folder)
    _take_config(run)
    reader = _Reader(run)
    for event in read_events(folder):
        reader.take(event)
    reader.close()
    run.result = read_result(folder / RESULT)
    if run.result is not None:
        run.complete, run.reason = bool(run.result.get("complete")), text_of(run.result, "reason")
    return run


def _take_config(run: RunHistory) -> None:
    """What `config.yaml` says; a run without one is drawn all the same."""
    try:
        text = read_bytes(run.folder / CONFIG, MOST_CONFIG_BYTES).decode()
        read = yaml.safe_load(hide_secrets(text))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return
    if not isinstance(read, dict):
        return
    run.options = read
    run.mode = clean_text(read.get("mode", "?"), MOST_NAME)
    workers, seed = read.get("workers"), read.get("seed")
    run.wanted = workers if isinstance(workers, int) else 0
    run.seed = seed if isinstance(seed, int) else None


class _Reader:
    """Takes the records one after another. Results of one version are one merge."""

    def __init__(self, run: RunHistory) -> None:
        self._run = run
        self._merge: list[ResultMerged] = []
        self._at: dict[int, tuple[float, float]] = {}  # images and seconds of each iteration
        self._images = 0.0
        self._last_turn: dict[int, float] = {}  # of each worker: when its last result came
        self._sums: dict[str, float] = {}  # seconds of each part, over all turns
        self._turns = 0
        self._refused: Counter[tuple[str, str]] = Counter()
        self._here: dict[int, float] = {}

    def take(self, event: RunEvent) -> None:
        moment = event.seconds
        match event:
            case ResultMerged():
                if self._merge and event.version != self._merge[0].version:
                    self._end_merge()
                self._merge.append(event)
                self._run.merged += 1
                self._run.staleness[event.staleness] += 1
                self._take_turn(event)
            case ResultDropped():
                self._refused[event.decision, event.reason] += 1
                self._last_turn[event.worker] = moment
            case ModelTested():
                # At the images of its iteration: a test takes a while, and training continues meanwhile.
                self._end_merge()
                images, seconds = self._at.get(event.iteration, (self._images, moment))
                if event.metrics:
                    self._run.tests.append(TestPoint(images, seconds, event.metrics))
            case MasterBegan():
                self._run.records = event.records
            case WorkerJoined():
                self._here[event.worker] = moment
                if not self._images and not self._merge:
                    self._run.began = moment
                    self._at[0] = (0.0, moment)
            case WorkerLeft():
                self._leave(event.worker, moment, event.cause or "not known")
            case BatchDivided():
                self._run.divisions.append(event)
            case RunResumed():
                self._undo(float(event.samples), moment)
                self._run.master_restarts += [event.cause] if event.cause else []
            case RunFinished():
                self._run.complete, self._run.reason = event.complete, event.reason
            case _:
                pass
        self._run.last_second = max(self._run.last_second, moment)

    def close(self) -> None:
        """The last merge, and what is only known at the end."""
        self._end_merge()
        for worker, began in sorted(self._here.items()):
            self._run.lives.append(Life(worker, began, None, ""))
        self._run.lives.sort(key=lambda life: (life.worker, life.began))
        self._run.refused = [
            NotMerged(decision, reason, count)
            for (decision, reason), count in sorted(self._refused.items())
        ]
        if self._turns:
            self._run.turns = {name: total / self._turns for name, total in self._sums.items()}

    def _take_turn(self, event: ResultMerged) -> None:
        before = self._last_turn.get(event.worker)
        self._last_turn[event.worker] = event.seconds
        if before is None or event.seconds < before:
            return
        own = {name: event.timings[name] for name in WORKER_PARTS if name in event.timings}
        turn = event.seconds - before
        left = max(turn - sum(own.values()), 0.0)
        merging = min(sum(event.timings.get(name, 0.0) for name in MASTER_PARTS), left)
        self._turns += 1
        parts = {**own, "turn": turn, "merge": merging, "rest": left - merging}
        for name, value in parts.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def _end_merge(self) -> None:
        """Add the merge that is being read, in pieces of one round each where its losses are known."""
        if not self._merge:
            return
        run, total, last = self._run, sum(one.samples for one in self._merge), self._merge[-1]
        rounds = {len(one.losses) or 1 for one in self._merge}
        count = rounds.pop() if len(rounds) == 1 else 1
        before = run.seconds[-1] if run.seconds else run.began
        for number in range(count if total else 0):
            loss = sum(
                one.samples * (one.losses[number] if len(one.losses) == count else one.loss)
                for one in self._merge
            )
            part = (number + 1) / count
            run.ends.append(self._images + total * part)
            run.seconds.append(before + (last.seconds - before) * part)
            run.losses.append(loss / total)
        self._images += total
        self._at[last.iteration] = (self._images, last.seconds)
        self._merge = []

    def _leave(self, worker: int, moment: float, cause: str) -> None:
        if worker in self._here:
            self._run.lives.append(Life(worker, self._here.pop(worker), moment, cause))

    def _undo(self, images: float, moment: float) -> None:
        """The run continues from a checkpoint: what was merged after it never was; all workers are new."""
        self._end_merge()
        run = self._run
        while run.ends and run.ends[-1] > images + 0.5:
            for column in (run.ends, run.seconds, run.losses):
                column.pop()
        run.tests = [test for test in run.tests if test.images <= images + 0.5]
        run.resumes.append(images)
        self._images = images
        self._last_turn.clear()
        for worker in list(self._here):
            self._leave(worker, moment, "the master ended")
