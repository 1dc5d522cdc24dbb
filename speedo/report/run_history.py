"""Reads what a run directory has of a run's course: losses, tests, decisions, timings, workers' lives.

A run that was resumed has undone what came after its checkpoint; it is left out here, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from speedo.errors import DataError
from speedo.foreign_text import MOST_NAME, clean_text
from speedo.redaction import hide_secrets
from speedo.run_dir.directory import CONFIG, METRICS, RESULT
from speedo.run_dir.read_back import (
    count_of,
    json_lines,
    metrics_of,
    number_of,
    optional_number_of,
    read_result,
    text_of,
)
from speedo.system.files import read_bytes

MOST_CONFIG_BYTES: Final = 1 << 20
WARM_UP: Final = 0.1  # of the images of a part of a run: its speed is measured after them
OWN_PARTS: Final = ("fetch", "compute", "team", "publish")  # of a turn, as its worker measures them


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
class Refused:
    """Results that were not merged: how many, with which decision and reason."""

    decision: str
    reason: str
    count: int


@dataclass(slots=True)
class RunHistory:
    """One run. `ends` are the images merged after each piece of training, `seconds` when that was.

    `losses` are the mean training losses of the pieces, NaN where a loss was not finite; `began` is when training
    began, and `resumes` are the images at which it was resumed. `turns` has the seconds of a turn and of its parts,
    means over all turns. `wanted` is the number of workers that the run was started with.
    """

    name: str
    folder: Path
    mode: str = "?"
    wanted: int = 0
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    began: float = 0.0
    ends: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tests: list[TestPoint] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    merged: int = 0
    refused: list[Refused] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    turns: dict[str, float] = field(default_factory=dict)
    resumes: list[float] = field(default_factory=list)
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
        """Images, seconds and accuracy of each test whose net has one."""
        found = [(one.images, one.seconds, accuracy_in(one.metrics)) for one in self.tests]
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


def accuracy_in(metrics: Mapping[str, float]) -> float | None:
    """The output named accuracy, or else the last whose name contains it."""
    if "accuracy" in metrics:
        return metrics["accuracy"]
    named = [value for name, value in metrics.items() if "acc" in name.lower()]
    return named[-1] if named else None


def loss_in(metrics: Mapping[str, float]) -> float | None:
    """The output named loss, or else the first whose name contains it."""
    if "loss" in metrics:
        return metrics["loss"]
    named = [value for name, value in metrics.items() if "loss" in name.lower()]
    return named[0] if named else None


def read_history(folder: Path) -> RunHistory:
    """Read a run directory, of a run that is over, is running or has failed. Raises `DataError`."""
    path = folder / METRICS
    run = RunHistory(clean_text(os.path.basename(os.path.realpath(folder)), MOST_NAME), folder)
    _take_config(run)
    reader = _Reader(run)
    try:
        for number, whole, line in json_lines(path):
            if line is not None or whole:
                try:
                    if line is None:
                        raise ValueError("no JSON object")
                    reader.take(line)
                except ValueError as error:
                    raise DataError(
                        f"{path}, line {number} is not a line of metrics ({error}): remove it"
                    ) from None
    except OSError as error:
        raise DataError(
            f"{folder} is not a run directory: {path.name} cannot be read ({error.strerror}); "
            "give the value of --run-dir"
        ) from None
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
    """Takes the lines one after another. Lines of one version are one merge."""

    def __init__(self, run: RunHistory) -> None:
        self._run = run
        self._merge: list[tuple[int, float, Sequence[float]]] = []  # samples, loss, losses
        self._version, self._moment, self._iteration = -1, 0.0, 0
        self._at: dict[int, tuple[float, float]] = {}  # images and seconds of each iteration
        self._images = 0.0
        self._last_turn: dict[int, float] = {}  # of each worker: when its last result came
        self._sums: dict[str, float] = {}  # seconds of each part, over all turns
        self._turns = 0
        self._refused: Counter[tuple[str, str]] = Counter()
        self._here: dict[int, float] = {}

    def take(self, line: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a value that a run never writes."""
        event, moment = line.get("event"), number_of(line, "time")
        if event == "result" and line.get("decision") == "merged":
            self._take_merged(line, moment)
        elif event == "result":
            self._refused[text_of(line, "decision"), text_of(line, "reason")] += 1
            self._last_turn[count_of(line, "worker")] = moment
        elif event == "test":
            self._take_test(line, moment)
        elif event == "joined":
            worker = count_of(line, "worker")
            self._here[worker] = moment
            if not self._images and not self._merge:
                self._run.began = moment
                self._at[0] = (0.0, moment)
        elif event == "left":
            self._leave(count_of(line, "worker"), moment, text_of(line, "cause") or "not known")
        elif event == "resumed":
            self._undo(float(count_of(line, "samples")), moment)
        elif event == "finish":
            self._run.complete = line.get("complete") is True
            self._run.reason = text_of(line, "reason")
        self._run.last_second = max(self._run.last_second, moment)

    def close(self) -> None:
        """The last merge, and what is only known at the end."""
        self._end_merge()
        for worker, began in sorted(self._here.items()):
            self._run.lives.append(Life(worker, began, None, ""))
        self._run.lives.sort(key=lambda life: (life.worker, life.began))
        self._run.refused = [
            Refused(decision, reason, count)
            for (decision, reason), count in sorted(self._refused.items())
        ]
        if self._turns:
            self._run.turns = {name: total / self._turns for name, total in self._sums.items()}

    def _take_merged(self, line: Mapping[str, Any], moment: float) -> None:
        version, worker = count_of(line, "version"), count_of(line, "worker")
        samples, loss = count_of(line, "samples"), optional_number_of(line, "loss")
        staleness = count_of(line, "staleness")
        several = line.get("losses")
        losses = several if isinstance(several, list) else []
        each = [optional_number_of({"loss": one}, "loss") for one in losses] or [loss]
        timings = line.get("timings")
        if version != self._version:
            self._end_merge()
        self._version, self._moment = version, moment
        self._iteration = count_of(line, "iteration")
        self._merge.append((samples, loss, each))
        self._run.merged += 1
        self._run.staleness[staleness] += 1
        self._take_turn(worker, moment, timings if isinstance(timings, dict) else {})

    def _take_turn(self, worker: int, moment: float, timings: Mapping[str, Any]) -> None:
        before = self._last_turn.get(worker)
        self._last_turn[worker] = moment
        if before is None or moment < before:
            return
        own = {
            name: number_of(timings, name) for name in OWN_PARTS if timings.get(name) is not None
        }
        master = [number_of(timings, name) for name in ("receive", "merge") if name in timings]
        turn = moment - before
        left = max(turn - sum(own.values()), 0.0)
        merging = min(sum(master), left)
        self._turns += 1
        for name, value in (
            *own.items(),
            ("turn", turn),
            ("merge", merging),
            ("rest", left - merging),
        ):
            self._sums[name] = self._sums.get(name, 0.0) + value

    def _end_merge(self) -> None:
        """Add the merge that is being read, in pieces of one round each where its losses are known."""
        if not self._merge:
            return
        run, total = self._run, sum(samples for samples, _, _ in self._merge)
        rounds = {len(losses) for _, _, losses in self._merge}
        count = rounds.pop() if len(rounds) == 1 else 1
        before = run.seconds[-1] if run.seconds else run.began
        for number in range(count):
            weighed = [
                (samples, losses[number] if len(losses) == count else loss)
                for samples, loss, losses in self._merge
            ]
            mean = sum(samples * loss for samples, loss in weighed) / total if total else 0.0
            if total:
                part = (number + 1) / count
                run.ends.append(self._images + total * part)
                run.seconds.append(before + (self._moment - before) * part)
                run.losses.append(mean)
        self._images += total
        self._at[self._iteration] = (self._images, self._moment)
        self._merge, self._version = [], -1

    def _take_test(self, line: Mapping[str, Any], moment: float) -> None:
        """At the images of its iteration: a test takes a while, and training goes on meanwhile."""
        self._end_merge()
        metrics = metrics_of(line)
        images, seconds = self._at.get(count_of(line, "iteration"), (self._images, moment))
        if metrics:
            self._run.tests.append(TestPoint(images, seconds, metrics))

    def _leave(self, worker: int, moment: float, cause: str) -> None:
        if worker in self._here:
            self._run.lives.append(Life(worker, self._here.pop(worker), moment, cause))

    def _undo(self, images: float, moment: float) -> None:
        """The run goes on from a checkpoint: what was merged after it never was; all workers are new."""
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
