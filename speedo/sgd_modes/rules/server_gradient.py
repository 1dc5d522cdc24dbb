"""The rule of `--server-gradient`: workers send raw gradients, and the center makes the solver's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from speedo.exchange.vector import Vector
from speedo.messages import NO_TUNING, Kind, Tuning
from speedo.sgd_modes.rules.base import Contribution, MergeRule, OfARun, mean_into
from speedo.sgd_modes.rules.state import NO_STATE, State


@dataclass(frozen=True)
class ServerGradient(MergeRule):
    """Workers send raw gradients; the master applies the solver's own update once.

    `update(gradient, center, iteration)` changes the center in place by one step of the solver: clipping,
    weight decay, momentum, learning rate of that iteration. Workers keep no momentum. `by_servers` where servers
    have the center: each has an update of its own (`speedo.master.servers.range_update`).
    """

    payload: ClassVar[Kind] = Kind.GRADIENT
    by_ranges: ClassVar[bool] = True  # each server by an update of its own
    by_mean: ClassVar[bool] = True
    foreseen: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True  # the update looks at it
    option: ClassVar[str] = "server_gradient"
    update: Callable[[Vector, Vector, int], None]

    @classmethod
    def made(cls, values: Mapping[str, Any], run: OfARun) -> Self:
        if run.update is None:
            raise ValueError("server_gradient needs the master's update")
        return cls(run.update)

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        gradient = np.empty_like(center)
        mean_into(gradient, contributions)
        self.update(gradient, center, iteration)


def by_servers(gradient: Vector, center: Vector, iteration: int, own: Tuning = NO_TUNING) -> None:
    """The `update` of a run whose servers make it, each of its range: so the master has none."""
    raise AssertionError("the servers of this run make the solver's update")
