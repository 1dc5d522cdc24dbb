"""All that servers have at one version: how the master fetches it, and gives it to them."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.engines.solver_update import Recipe, SolverHistory
from speedo.exchange.served_vectors import Exchange
from speedo.exchange.vector import Layout, Vector
from speedo.sgd_modes.rules import State


@dataclass(frozen=True, slots=True)
class WholeCenter:
    """The center, the history of a solver whose update servers apply, and what the merge rule keeps."""

    version: int
    vector: Vector
    history: SolverHistory | None
    state: State


def fetch_whole(
    exchange: Exchange, version: int, layout: Layout, solver: Recipe | None
) -> WholeCenter:
    """What the servers' stores have of this version. Raises what `Exchange.fetch_center` raises."""
    vector, history = layout.zeros(), None
    exchange.fetch_center(version, vector)
    if solver is not None:
        flat = solver.no_history().flat
        history = SolverHistory(flat, exchange.fetch_history(version, flat))
    parts = [State.unpack(one, size) for one, size in exchange.fetch_states(version)]
    return WholeCenter(version, vector, history, State.of_parts(parts))


def spread_whole(exchange: Exchange, version: int, epoch: int, whole: WholeCenter) -> None:
    """Put it into the servers' stores, as this version. Raises `StoreError`."""
    history = whole.history
    if history is not None:
        exchange.publish_history(version, epoch, history.flat, history.updates)
    exchange.publish_states(version, [whole.state.part(place).pack() for place in exchange.places])
    exchange.publish_center(version, epoch, whole.vector)
