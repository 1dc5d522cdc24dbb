"""What `run.test` measures: the script's own function, with other weights than its own, and numbers by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from speedo.errors import ConfigError
from speedo.foreign_text import clean_text
from speedo.vectors.vector import Vector
from speedo.worker.weights import Weights

Measure = Callable[[], Mapping[str, float]]


def measured(measure: Measure, module: Any) -> dict[str, float]:
    """What `measure` returns, while the `module` is in its eval mode; raises `ConfigError` for what is no metric."""
    with nullcontext() if module is None else module.evaluating():
        found: Any = measure()
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


@contextmanager
def with_weights(weights: Weights, center: Vector) -> Iterator[None]:
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
