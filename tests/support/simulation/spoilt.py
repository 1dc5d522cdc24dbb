"""Members of a simulated team whose first payload is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from speedo.engines.base import Done, Engine, nobody
from speedo.exchange.factors import Factors
from speedo.exchange.vector import Vector
from speedo.messages import Train
from speedo.worker.turn import EngineWorker


def spoil(
    chosen: Iterable[int], workers: Mapping[int, EngineWorker], commands: Mapping[int, Train]
) -> None:
    """Nothing that the engines of these workers compute next, for their commands, is finite."""
    for worker in chosen:
        if worker in workers and worker in commands:
            workers[worker].follow(commands[worker])  # which may make another engine
            _spoil(workers[worker].engine)


def _spoil(engine: Engine) -> None:
    """Nothing that its next call computes is finite."""
    step, gradient = engine.step, engine.gradient

    def mend() -> None:
        engine.step, engine.gradient = step, gradient  # type: ignore[method-assign]

    def spoilt_step(n: int, delta: Vector | None = None) -> float:
        mend()
        step(n, delta)
        return math.nan

    def spoilt_gradient(
        n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        mend()
        gradient(n, out, factors=factors)
        out.fill(math.nan)
        done(0, out.size)
        return math.nan

    engine.step, engine.gradient = spoilt_step, spoilt_gradient  # type: ignore[method-assign]
