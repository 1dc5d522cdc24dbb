"""Scores models in child processes: each runs its share of the batches of every test, and the sums are put together.

So the figures are those of one process, to the rounding of a sum. An abort of Caffe is reported in its words.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Final, Protocol, Self

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.child import Child, started
from speedo.engines.evaluation import Part, combined
from speedo.engines.make import CAFFE, EngineChoice
from speedo.engines.solver import SolverSpec
from speedo.engines.solver.division import state_between_batches
from speedo.engines.solver.rewrite import solver_for_scoring
from speedo.engines.weights_check import check_weights
from speedo.errors import EngineError
from speedo.run.scratch import scratch_folder
from speedo.study.scoring.models import ScoredModel
from speedo.study.scoring.scoring_process import BATCH, SCORED

SCORER: Final = "speedo.study.scoring.scoring_process"
SILENCE_S: Final = 600.0  # without a batch of any child; a batch takes less


class ScoringListener(Protocol):
    """Hears of what is done, in the thread of the caller."""

    def begin(self, model: ScoredModel, batches: int) -> None: ...

    def passed(self) -> None:
        """One more batch."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """What a model scores: the mean of each output, over this many batches and records, in this many seconds.

    `batches` are those of each test net.
    """

    model: ScoredModel
    metrics: Mapping[str, float]
    batches: tuple[int, ...]
    samples: int
    seconds: float


def score_models(
    spec: SolverSpec,
    models: Sequence[ScoredModel],
    workers: int,
    progress: ScoringListener,
    choice: EngineChoice = CAFFE,
    elsewhere: Iterable[str] = (),
) -> Iterator[Score]:
    """The score of each model by the test nets of `spec` (`speedo.engines.solver.scored_nets`), one after another.

    No more processes than batches are started, and one alone where a batch depends on those before it. `elsewhere` are
    layers of the model that the nets have in an ONNX file. Raises `SolverError`, `EngineError`.
    """
    names = [*_layers(spec), *elsewhere]
    for model in models:
        check_weights(model.path, names)
    solver = parse_text(spec.text, caffe_schema().SolverParameter())
    alone = state_between_batches(solver.test_net_param)
    count = 1 if alone else min(workers, max(spec.test_iter))
    with scratch_folder() as scratch, ExitStack() as stack:
        text = solver_for_scoring(spec, scratch=scratch)
        children = []
        for index in range(count):
            request = {
                "nets": text,
                "folder": str(spec.folder),
                "python_layers": list(spec.python_layers),
                "share": [index, count],
                "engine": asdict(choice),
            }
            child = started(SCORER, request, scratch / str(index), spec.net_files[0])
            children.append(stack.enter_context(child))
        scorers = stack.enter_context(_Scorers(children))
        for model in models:
            progress.begin(model, sum(spec.test_iter))
            began = time.monotonic()
            parts, samples = scorers.score(model, progress)
            yield Score(model, combined(parts), spec.test_iter, samples, time.monotonic() - began)


def _layers(spec: SolverSpec) -> list[str]:
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    return [str(layer.name) for net in parameter.test_net_param for layer in net.layer]


class _Scorers:
    """The children, and their lines as they come, each passed on by a thread; None is the end of one's output."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(index,), daemon=True)
            for index in range(len(children))
        ]

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        for child, reader in zip(self._children, self._readers, strict=True):
            child.process.kill()
            reader.join()

    def _read(self, index: int) -> None:
        for line in self._children[index].lines():
            self._lines.put((index, line))
        self._lines.put((index, None))

    def score(self, model: ScoredModel, progress: ScoringListener) -> tuple[list[Part], int]:
        """The parts of all children, and the records that they scored."""
        for child in self._children:
            child.say(str(model.path.absolute()))
        parts: dict[int, Part] = {}
        samples = 0
        while len(parts) < len(self._children):
            try:
                index, line = self._lines.get(timeout=SILENCE_S)
            except queue.Empty:
                raise EngineError(
                    f"no batch was computed for {SILENCE_S:.0f} s; use a smaller batch_size in the test net"
                ) from None
            child = self._children[index]
            if line is None:
                raise child.death(f", scoring {model.path}")
            child.check(line)
            if line.startswith(BATCH):
                samples += int(line.removeprefix(BATCH))
                progress.passed()
            elif line.startswith(SCORED):
                parts[index] = json.loads(line.removeprefix(SCORED))
        return [parts[index] for index in sorted(parts)], samples
