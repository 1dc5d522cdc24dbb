"""The solver's own update of the range that one server keeps, where workers send gradients (`--server-gradient`).

The history is in the server's memory; it goes into its store where the master fetches the whole center.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from speedo.engines.solver_update import SolverUpdate
from speedo.exchange.transfer import fetch_range_history, put_range_history
from speedo.exchange.vector import Layout, Vector
from speedo.master.divergence import check_update
from speedo.messages import Kind
from speedo.sgd_modes.rules import NO_STATE, Contribution, MergeRule, State, mean_into
from speedo.storage.base import Store


@dataclass(eq=False)
class RangeUpdate(MergeRule):
    """Implements `MergeRule` for one range, with its history; `layout` is the range's.

    Clipping needs the norm of the whole mean gradient: `prepare` gives the range's part of it, and `begin` takes the
    sum over all ranges before `merge`. Without it a range that is the whole vector uses its own.
    """

    payload: ClassVar[Kind] = Kind.GRADIENT
    keeps_finite: ClassVar[bool] = True  # it looks itself
    run: str
    layout: Layout
    store: Store
    solver: SolverUpdate
    epoch: int = 0
    _gradient: Vector = field(init=False)
    _prepared: int | None = None  # the version whose mean gradient is in `_gradient`
    _next: int | None = None
    _norm: float | None = None

    def __post_init__(self) -> None:
        self._gradient = self.layout.zeros()

    def prepare(self, version: int, contributions: Sequence[Contribution]) -> float:
        """The squared norm of the mean gradient that makes this version."""
        mean_into(self._gradient, contributions)
        self._prepared = version
        return self.solver.squared_norm(self._gradient)

    def begin(self, version: int, squared_norm: float | None) -> None:
        """The next merge makes this version, with a mean gradient of this squared norm over all ranges."""
        self._next, self._norm = version, squared_norm

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        """See `MergeRule.merge`. Raises `TrainingStopped`, with the center spoilt, if that is not finite then."""
        if self._prepared is None or self._prepared != self._next:
            mean_into(self._gradient, contributions)
        self._prepared = None
        self.solver.update(center, self._gradient, iteration, self._norm)
        check_update(center, iteration)

    # ------------------------------------------------------------ the history in the store

    def load(self, version: int) -> None:
        """Take over the history beside this version. Raises `StoreError`, `PayloadError`."""
        self.solver.updates = fetch_range_history(
            self.store, self.run, self.layout, version, self.solver.flat
        )

    def keep(self, version: int) -> None:
        """Write the history beside this version."""
        flat, updates = self.solver.flat, self.solver.updates
        put_range_history(self.store, self.run, self.layout, version, self.epoch, flat, updates)
