"""Scores models in child processes: each runs its share of the batches of every test, and the sums are put together.

So the figures are those of one process, to the rounding of a sum. An abort of Caffe ends a child, and is told in its
words. The children end with this process, however it ends: their input and output are closed then.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol

from speedo.engines.caffe_import import prepare_environment
from speedo.engines.evaluation import Part, combined
from speedo.engines.make import CAFFE, EngineChoice
from speedo.engines.native_failures import describe_death
from speedo.engines.weights_check import check_weights
from speedo.errors import EngineError, SolverError
from speedo.run.scratch import scratch_folder
from speedo.scoring.models import Model
from speedo.scoring.scoring_process import BATCH, PROBLEM, SCORED
from speedo.solver import SolverSpec
from speedo.solver.division import state_between_batches
from speedo.solver.proto import caffe_proto, parse_text
from speedo.solver.rewrite import solver_for_scoring
from speedo.system.import_order import with_our_path

SILENCE_S: Final = 600.0  # without a batch of any child; a batch takes less


class Progress(Protocol):
    """Hears of what is done, in the thread of the caller."""

    def begin(self, model: Model, batches: int) -> None: ...

    def passed(self) -> None:
        """One more batch."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """What a model scores: the mean of each output, over so many batches and records, in so many seconds.

    `batches` are those of each test net.
    """

    model: Model
    metrics: Mapping[str, float]
    batches: tuple[int, ...]
    samples: int
    seconds: float


def score_models(
    spec: SolverSpec,
    models: Sequence[Model],
    workers: int,
    progress: Progress,
    choice: EngineChoice = CAFFE,
) -> Iterator[Score]:
    """The score of each model by the test nets of `spec` (`speedo.solver.scored_nets`), one after another.

    No more processes than batches are started, and one alone where a batch depends on those before it. Raises
    `SolverError`, `EngineError`.
    """
    names = _layers(spec)
    for model in models:
        check_weights(model.path, names)
    solver = parse_text(spec.text, caffe_proto().SolverParameter())
    alone = state_between_batches(solver.test_net_param)
    count = 1 if alone else min(workers, max(spec.test_iter))
    with scratch_folder() as scratch, ExitStack() as stack:
        text = solver_for_scoring(spec, scratch=scratch)
        children = _Children()
        for index in range(count):
            request = {
                "nets": text,
                "folder": str(spec.folder),
                "python_layers": list(spec.python_layers),
                "share": [index, count],
                "engine": asdict(choice),
            }
            folder = scratch / str(index)
            folder.mkdir()
            stack.enter_context(children.started(request, folder, spec.net_files[0]))
        for model in models:
            progress.begin(model, sum(spec.test_iter))
            began = time.monotonic()
            parts, samples = children.score(model, progress)
            yield Score(model, combined(parts), spec.test_iter, samples, time.monotonic() - began)


def _layers(spec: SolverSpec) -> list[str]:
    parameter = parse_text(spec.text, caffe_proto().SolverParameter())
    return [str(layer.name) for net in parameter.test_net_param for layer in net.layer]


@dataclass
class _Children:
    """The processes, and the lines of all of them as they come; None as a line is the end of one's output."""

    all: list[_Child] = field(default_factory=list)
    lines: queue.SimpleQueue[tuple[int, str | None]] = field(default_factory=queue.SimpleQueue)

    @contextmanager
    def started(self, request: dict[str, Any], folder: Path, origin: str) -> Iterator[None]:
        environment = with_our_path({**os.environ, "TMPDIR": str(folder)})
        prepare_environment(1, environment)
        with (folder / "stderr").open("w+", encoding="utf-8", errors="replace") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "speedo.scoring.scoring_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,  # a Ctrl-C is for this process, which ends them
            )
            child = _Child(len(self.all), process, errors, origin, self.lines.put)
            self.all.append(child)
            try:
                child.say(request)
                yield
            finally:
                child.end()

    def score(self, model: Model, progress: Progress) -> tuple[list[Part], int]:
        """The parts of all children, and the records that they scored."""
        for child in self.all:
            child.say(str(model.path.absolute()))
        parts: dict[int, Part] = {}
        samples = 0
        while len(parts) < len(self.all):
            try:
                index, line = self.lines.get(timeout=SILENCE_S)
            except queue.Empty:
                raise EngineError(
                    f"no batch was computed for {SILENCE_S:.0f} s; use a smaller batch_size in the test net"
                ) from None
            if line is None:
                raise self.all[index].death(model)
            if line.startswith(BATCH):
                samples += int(line.removeprefix(BATCH))
                progress.passed()
            elif line.startswith(SCORED):
                parts[index] = json.loads(line.removeprefix(SCORED))
            elif line.startswith(PROBLEM):
                problem = json.loads(line.removeprefix(PROBLEM))
                if problem.startswith("weights "):
                    raise SolverError(problem)
                raise EngineError(f"{self.all[index].origin}: {problem}")
        return [parts[index] for index in sorted(parts)], samples


class _Child:
    """One process, whose lines a thread passes on."""

    def __init__(
        self,
        index: int,
        process: subprocess.Popen[str],
        errors: IO[str],
        origin: str,
        put: Callable[[tuple[int, str | None]], None],
    ) -> None:
        self._process, self._errors, self.origin = process, errors, origin
        self._reader = threading.Thread(target=self._read, args=(index, put), daemon=True)
        self._reader.start()

    def _read(self, index: int, put: Callable[[tuple[int, str | None]], None]) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # it was closed
            for line in self._process.stdout:
                put((index, line))
        put((index, None))

    def say(self, what: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # why it is gone is told by the end of its output
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def death(self, model: Model) -> SolverError:
        """Why it ended before it had scored this model, in Caffe's own words."""
        status = self._process.wait()
        self._errors.seek(0)
        said = describe_death(self._errors.read(), status)
        return SolverError(f"{self.origin}, scoring {model.path}: {said}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
