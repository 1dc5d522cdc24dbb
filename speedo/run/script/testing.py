"""What `run.test` measures: the script's own function, with other weights than its own, and numbers by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from speedo.errors import ConfigError
from speedo.exchange.channel import first_line
from speedo.exchange.vector import Vector
from speedo.run.script.turns import TurnSource
from speedo.storage.meaning import passes
from speedo.system.foreign_text import clean_text
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.weights import Weights

Measure = Callable[..., Mapping[str, float]]  # of no argument, or of an iterator of batches


def measured(measure: Measure, module: Any, *batches: Any) -> dict[str, float]:
    """What `measure` returns, of `batches` if it gets any, while the `module` is in its eval mode.

    Raises `ConfigError` for what is no metric.
    """
    with nullcontext() if module is None else module.evaluating():
        found: Any = measure(*batches)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(
            "run.test takes a function that returns numbers by their names, as in "
            f'lambda: {{"accuracy": 0.9}}; this one returned {found!r:.100}'
        )
    metrics = {}
    for name, value in found.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"run.test: {name!r:.100} is {value!r:.100}, not a number") from None
        if not isinstance(name, str) or not math.isfinite(number):
            raise ConfigError(f"run.test: {name!r:.100} is {number}: give finite numbers by names")
        metrics[clean_text(name)] = number
    return metrics


def center_tested(
    worker: ScriptWorker,
    turns: TurnSource,
    version: int,
    measure: Callable[[], dict[str, float] | None],
    *,
    alone: bool,
) -> dict[str, float] | None:
    """Measure with the weights of this version of the center, and tell the master what came of it.

    If it is not made `alone`, the master knows the metrics. None if the center is not there.
    """
    metrics: dict[str, float] | None = None
    problem = "its script has ended"
    try:
        center = worker.weights.layout.zeros()
        worker.exchange.fetch_center(version, center, exact=True)
        with _with_weights(worker.weights, center):
            metrics, problem = measure(), ""
    except Exception as error:
        if passes(error):
            problem = first_line(error)
            return None
        problem = f"the script's test failed: {type(error).__name__}: {first_line(error)}"
        raise
    finally:
        if alone or problem:
            turns.tested(version, metrics or {}, problem)
    return metrics


@contextmanager
def _with_weights(weights: Weights, center: Vector) -> Iterator[None]:
    """The model has these weights; afterwards its own again."""
    own = weights.layout.zeros()
    weights.read_weights(own)
    weights.load_weights(center)
    try:
        yield
    finally:
        weights.load_weights(own)


def in_words(metrics: Mapping[str, float]) -> str:
    """For a line of output."""
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
