"""The shares of a batch that is divided by speed, in the simulator: the engines for them, and what steps take then."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from speedo.engines.base import Engine
from speedo.engines.quadratic import QuadraticEngine
from speedo.master.speed_division import SpeedDivision
from speedo.messages import Divided, Refused, Trained
from speedo.worker.turn import EngineWorker
from tests.support.simulation.world import World


@dataclass
class SimulatedShares:
    """`engine` makes that of a worker with its first share. `changed` are the divisions so far."""

    world: World
    engine: Callable[[int], QuadraticEngine]
    noise: random.Random
    shares: dict[int, int] = field(default_factory=dict)  # samples by worker, once they changed
    changed: list[tuple[int, ...]] = field(default_factory=list)
    usual: int = 0  # each worker's share at the start; 0 if the batch is never divided anew
    _with_share: Callable[[int, int], QuadraticEngine] | None = None

    def follow(
        self,
        division: SpeedDivision | None,
        with_share: Callable[[int, int], QuadraticEngine],
        usual: int,
    ) -> None:
        """If there is a division, it decides from now on; `with_share` makes the engine of a worker for a share."""
        if division is not None:
            self._with_share, self.usual = with_share, usual

    def give(self, worker: EngineWorker) -> None:
        """It takes the shares that it is given."""
        if self.usual:
            worker.rebuild = partial(self.rebuilt, worker.worker)

    def timed(self, result: Trained | Refused, steps: int) -> Trained | Refused:
        """The result of a worker by itself, with what its turn took."""
        if not self.usual or isinstance(result, Refused):
            return result
        return replace(result, timings=self.timings(result.worker, steps))

    def divide(self, divided: Divided) -> None:
        """The workers have these from their next turn on."""
        self.shares = dict(zip(divided.workers, divided.records, strict=True))
        self.changed.append(divided.records)

    def engine_of(self, worker: int) -> QuadraticEngine:
        """A new one for the worker's present share."""
        share = self.shares.get(worker)
        if share is None or self._with_share is None:
            return self.engine(worker)
        return self._with_share(worker, share or 1)

    def rebuilt(self, worker: int, former: Engine) -> Engine:
        """Likewise, with the history of the former one."""
        engine = self.engine_of(worker)
        engine.load_history(former.history())
        return engine

    def seconds(self, worker: int, steps: int) -> float:
        """What so many steps take this worker."""
        usual = self.usual or 1
        part = self.shares.get(worker, usual) / usual
        return self.world.step_s * steps * self.world.slowness(worker) * part

    def timings(self, worker: int, steps: int, lasts: float | None = None) -> dict[str, float]:
        """Those of a turn of so many steps, which takes its team, if there is one, so long."""
        if not self.usual and lasts is not None:
            return {"compute": lasts}
        noise = 1.0 + self.world.jitter * (2.0 * self.noise.random() - 1.0)
        computed = noise * self.seconds(worker, steps)
        if lasts is None:
            return {"compute": computed}
        computed = min(lasts, computed)
        return {"compute": computed, "team": lasts - computed}
