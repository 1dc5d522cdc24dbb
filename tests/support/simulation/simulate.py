"""A whole simulated run: workers, center, coordinator and driver, and what it left."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from speedo.engines.quadratic import QuadraticEngine
from speedo.engines.solver_update import Recipe
from speedo.exchange.ranges import ranges_of
from speedo.exchange.vector import Layout
from speedo.master.center import Center, RunCenter
from speedo.master.checkpoints import Checkpoints
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver, Limits
from speedo.master.observers import Observer, Observers
from speedo.master.plan import Plan
from speedo.master.servers.local_servers import LocalServers
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.server_requests import Servers
from speedo.master.speed_division import SpeedDivision
from speedo.master.stopping import Outcome, Stopping
from speedo.master.turn_records import TurnRecords
from speedo.sgd_modes.base import Strategy
from speedo.storage.memory_store import MemoryStore
from tests.support.simulation.simulated_servers import SimulatedHosts, center_on_servers
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import World


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated run left: its outcome, the books, the center and the trace."""

    outcome: Outcome
    coordinator: Coordinator
    center: RunCenter
    cluster: SimulatedCluster
    trace: Trace


def simulate(
    strategy: Strategy,
    plan: Plan,
    *,
    world: World | None = None,
    seed: int = 0,
    size: int = 8,
    lr: float = 0.05,
    momentum: float = 0.0,
    keep_trace: bool = True,
    samples_per_step: int | None = None,
    script: Callable[[SimulatedCluster], None] | None = None,
    joins: Iterable[int] | None = None,
    observer: Callable[[Observer], Observer] = lambda trace: trace,
    limits: Limits | None = None,
    overlap: Container[int] = (),
    places: Callable[[int], str] | None = None,
    servers: int = 0,
    serve: Callable[[Sequence[RangeServer]], Servers] = LocalServers,
    solver: Callable[[Layout], Recipe] | None = None,
    stopping: Stopping | None = None,
    seconds_before: float = 0.0,
    hosts: Callable[[int], str] | None = None,
    run: str = "simulated",
    fence: Callable[[], None] = lambda: None,
    checkpoints: Callable[[RunCenter, SimulatedCluster], Checkpoints] | None = None,
    kind: type[QuadraticEngine] = QuadraticEngine,
    records: TurnRecords | None = None,
    division: SpeedDivision | None = None,
) -> Simulation:
    """Run `plan` on simulated workers, `plan.workers` of them unless `joins` says otherwise.

    `samples_per_step` is each worker's batch: the plan's by default. `script` may add joins and deaths. The workers in
    `overlap` are given their next turns ahead; `places` says where a worker can meet others, as a team. With `servers`
    each of this many has a range of the center; `serve` makes the way to them. `seconds_before` is as in a driver. With
    a `solver`, made for the simulated layout, servers apply its update. With `hosts`, which names the host of a worker,
    those of one host share the centers that they fetch. `fence` is that of the center, if no servers have it; `run` is
    the keyspace; `checkpoints` keeps some; `kind` is the engine. `records` gives the turns theirs. `division` divides
    the plan's batch, of which each worker at first has `samples_per_step`.
    Raises `TrainingStopped` for a run that makes no progress.
    """
    world = world or World()
    store = MemoryStore(clock=lambda: cluster.now)
    samples = samples_per_step or plan.batch

    def engine(rank: int, batch: int = samples) -> QuadraticEngine:
        return kind(size, seed=seed, rank=rank, batch=batch, lr=lr, momentum=momentum, noise=0.01)

    first = engine(0)
    ranges = ranges_of(first.layout, servers) if servers else ()
    recipe = solver(first.layout) if solver is not None else None
    stores = [MemoryStore(clock=lambda: cluster.now) for _ in ranges]
    memories = SimulatedHosts(hosts)
    cluster = SimulatedCluster(world, store, run, engine, seed, overlap, stores, memories)
    cluster.places = places or cluster.places
    cluster.shares.follow(division, engine, samples)
    for worker in range(plan.workers) if joins is None else joins:
        cluster.join(worker)
    if script is not None:
        script(cluster)
    coordinator = Coordinator(strategy, plan, stopping=stopping or Stopping(), division=division)
    cluster.version = lambda: coordinator.version
    vector = first.layout.zeros()
    first.read_weights(vector)
    center: RunCenter = (
        center_on_servers(ranges, stores, vector, first.layout, serve, world.compression, recipe)
        if servers
        else Center(run, vector, first.layout, store, fence=fence, compression=world.compression)
    )
    trace = Trace(keep_trace)
    observed = observer(trace)
    more: dict[str, Any] = {}
    if records is not None:
        observed, more = Observers(records, observed), {"with_records": records.with_records}
    driver = Driver(
        coordinator, center, cluster, observed, cluster.clock, limits or Limits(),
        has_tester=True, seconds_before=seconds_before, **more,
        checkpoints=None if checkpoints is None else checkpoints(center, cluster),
        divide=cluster.shares.divide,
    )  # fmt: skip
    return Simulation(driver.run(), coordinator, center, cluster, trace)
