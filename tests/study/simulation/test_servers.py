"""Runs whose center lies on servers: the same model to the bit, and servers that are lost cost what they must."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from speedo.engines.solver.lr_policies import LrPolicy
from speedo.engines.solver_update import Multipliers, Recipe
from speedo.engines.update_rules import RULES, SolverFields
from speedo.errors import RunInterrupted, StoreError
from speedo.exchange.codecs import Compression
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.master.plan import Plan
from speedo.master.servers.local_servers import Answered, LocalServers
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.served_center import ServedCenter
from speedo.master.servers.server_requests import (
    Answer,
    Clear,
    Combine,
    Load,
    Request,
    Restore,
    TakeIn,
)
from speedo.messages import Drop, Merge
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.rules import (
    NO_STATE,
    AddDelta,
    AverageDeltas,
    Contribution,
    Elastic,
    ServerGradient,
    State,
    by_servers,
)
from speedo.sgd_modes.synchronous import Synchronous
from speedo.storage.memory_store import MemoryStore
from tests.support import schedules
from tests.support.quick import tried
from tests.support.seen import Seen
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.world import Faults, World


@dataclass(frozen=True)
class Heavy(AverageDeltas):
    """A rule with a state."""

    by_ranges: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = ("momentum",)
    numbers: ClassVar[tuple[str, ...]] = ("merges",)

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        momentum = state.vectors["momentum"]
        momentum *= np.float32(0.5)
        super().merge(momentum, contributions, rate, iteration)
        center += momentum
        state.numbers["merges"] += 1


@dataclass(frozen=True)
class Delayed(AddDelta):
    """A rule that looks at the weights that the worker began from."""

    by_ranges: ClassVar[bool] = True
    wants_begun: ClassVar[bool] = True

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        (one,) = contributions
        assert one.begun is not None
        center += np.float32(rate) * one.vector + np.float32(0.1) * (one.begun - center)


MODES: dict[str, Callable[[], Strategy]] = {
    "add": lambda: Asynchronous(AddDelta(), 1),
    "average": lambda: Synchronous(AverageDeltas(), 1),
    "elastic": lambda: Asynchronous(Elastic(0.3), 2),
    "adam": lambda: Synchronous(ServerGradient(by_servers), 1),
    "clipped": lambda: Asynchronous(ServerGradient(by_servers), 1),
    "heavy": lambda: Synchronous(Heavy(), 1),
    "delayed": lambda: Asynchronous(Delayed(), 1),
}
SOLVERS = {
    "adam": SolverFields("Adam", momentum=0.9, weight_decay=0.01, clip_gradients=1.5),
    "clipped": SolverFields("SGD", momentum=0.5, weight_decay=0.01, l1=True, clip_gradients=1.5),
}
SIZE = 70  # 5 multiples of 16, the last not full


def run(mode: str, servers: int, workers: int = 1, **options: Any) -> tuple[Simulation, Seen]:
    seen = Seen()
    world = World(
        step_s=0.01,
        faults=options.pop("faults", Faults()),
        compression=options.pop("compression", Compression()),
    )
    plan = Plan(4, options.pop("iterations", 60), workers, test_interval=20)
    fields = options.pop("solver", SOLVERS.get(mode))
    strategy = MODES[mode]()
    if fields is not None:
        options["solver"] = partial(recipe, fields)
        if not servers:  # the master has the whole
            whole = recipe(fields, Layout((Blob("w/0", (SIZE,)),))).update_of()
            strategy.rule = ServerGradient(
                lambda gradient, center, iteration: whole.update(center, gradient, iteration)
            )
    found = simulate(
        strategy,
        plan,
        world=world,
        size=SIZE,
        momentum=0.5,
        samples_per_step=4,
        observer=seen.follow,
        servers=servers,
        **options,
    )
    return found, seen


def recipe(fields: SolverFields, layout: Layout) -> Recipe:
    own = (Multipliers(lr=2.0, decay=0.5),) * len(layout.blobs)
    return Recipe(fields, layout, own, LrPolicy("inv", 0.02, gamma=0.01, power=0.75))


@pytest.mark.slow
@pytest.mark.parametrize("clip", [-1.0, 1.5])
@pytest.mark.parametrize("l1", [False, True])
@pytest.mark.parametrize("kind", RULES)
def test_every_solver_makes_the_same_update_to_the_bit_over_any_number_of_servers(
    kind: str, l1: bool, clip: float
) -> None:
    fields = SolverFields(kind, momentum=0.5, weight_decay=0.01, l1=l1, clip_gradients=clip)
    for workers in (1, 3):
        alone, _ = run("adam", 0, workers, solver=fields, iterations=30)
        assert alone.outcome.complete
        for servers in (1, 2, 3):
            served, _ = run("adam", servers, workers, solver=fields, iterations=30)
            assert served.center.vector.tobytes() == alone.center.vector.tobytes()


@pytest.mark.parametrize("mode", SOLVERS)
def test_the_gradients_of_these_runs_are_clipped_at_times(mode: str) -> None:
    clipped, _ = run(mode, 2, 2)
    free, _ = run(mode, 2, 2, solver=replace(SOLVERS[mode], clip_gradients=-1.0))
    tight, _ = run(mode, 2, 2, solver=replace(SOLVERS[mode], clip_gradients=0.1))
    found = [one.center.vector.tobytes() for one in (clipped, free, tight)]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("mode", "overlap"),
    [
        ("add", False),
        ("add", True),
        ("average", False),
        ("elastic", False),
        ("elastic", True),
        ("adam", False),
        ("clipped", False),
    ],
)
def test_any_number_of_servers_makes_the_same_model_to_the_bit(mode: str, overlap: bool) -> None:
    options: dict[str, Any] = {"overlap": {0, 1, 2}} if overlap else {}
    for workers in (1, 3):
        alone, _ = run(mode, 0, workers, **options)
        assert alone.outcome.complete
        for servers in (1, 2, 3):
            served, seen = run(mode, servers, workers, **options)
            assert served.center.vector.tobytes() == alone.center.vector.tobytes()
            assert served.outcome == alone.outcome
            assert len(seen.all(Merge)) == alone.outcome.version


@pytest.mark.parametrize("servers", [0, 3])
@pytest.mark.parametrize("mode", ["add", "average", "elastic"])
@pytest.mark.parametrize("compression", [Compression(), Compression("int8", "bfloat16")])
def test_workers_that_share_what_they_fetch_make_the_same_model_to_the_bit(
    mode: str, servers: int, compression: Compression
) -> None:
    alone, _ = run(mode, servers, 4, compression=compression)
    shared, _ = run(
        mode, servers, 4, compression=compression, hosts=lambda worker: f"host {worker % 2}"
    )
    assert shared.center.vector.tobytes() == alone.center.vector.tobytes()


def test_teams_report_to_servers_too() -> None:
    options: dict[str, Any] = {
        "places": lambda worker: f"host {worker % 2}",
        "faults": Faults(),
    }
    alone, _ = run("average", 0, 4, **options)
    served, _ = run("average", 3, 4, **options)
    assert served.center.vector.tobytes() == alone.center.vector.tobytes()


@pytest.mark.parametrize("compression", [Compression("int8"), Compression("none", "bfloat16")])
def test_each_range_is_compressed_by_itself(compression: Compression) -> None:
    exact, _ = run("average", 2, 2)
    served, _ = run("average", 2, 2, compression=compression)
    assert served.outcome.complete
    np.testing.assert_allclose(served.center.vector, exact.center.vector, rtol=0, atol=0.05)
    assert not np.array_equal(served.center.vector, exact.center.vector)


def test_a_tiny_vector_has_fewer_ranges_than_servers() -> None:
    served, _ = run("add", 9)
    assert isinstance(served.center, ServedCenter)
    assert len(served.center.servers) == 5


@pytest.mark.parametrize("mode", ["add", "adam", "heavy", "delayed"])
def test_the_stores_of_servers_are_left_tidy(mode: str) -> None:
    found, _ = run(mode, 3, 3, seed=5)
    _ = found.center.vector  # which the master fetches from all of them
    for stores in found.cluster.servers:
        left = stores.incoming.keys("")
        centers = [key for key in left if ":center:" in key]
        assert centers == [f"speedo:simulated:center:{found.center.version}"]
        histories = [key for key in left if ":history:" in key]
        last = [f"speedo:simulated:history:{found.center.version}"]
        assert histories == (last if mode == "adam" else [])
        states = [key for key in left if ":rule-state:" in key]
        kept = [f"speedo:simulated:rule-state:{found.center.version}"]
        assert states == (kept if mode == "heavy" else [])
        payloads = [key for key in left if ":payload:" in key]
        assert len(payloads) <= 3  # of turns at the end


@pytest.mark.parametrize("seed", range(tried(12)))
@pytest.mark.parametrize("mode", schedules.MODES)
def test_random_runs_keep_the_rules_of_a_run_whoever_has_the_center(mode: str, seed: int) -> None:
    schedule = schedules.make_schedule(mode, random.Random(f"{mode} {seed}"))
    schedules.run(replace(schedule, servers=1 + seed % 3))


def test_the_history_of_all_ranges_is_what_the_master_alone_has() -> None:
    fields = SOLVERS["adam"]
    alone, _ = run("adam", 1, 1)
    served, _ = run("adam", 3, 1)
    histories = []
    for one in (alone, served):
        center = one.center
        assert isinstance(center, ServedCenter)
        made = recipe(fields, center.layout)
        history = made.read_history(center.history())
        assert history.updates == 60
        assert history.flat.any()
        assert made.write_history(history) == center.history()
        histories.append(history.flat.tobytes())
    assert histories[0] == histories[1]


def test_a_payload_that_one_server_refuses_is_refused_by_all() -> None:
    found, seen = run("add", 3, 2, faults=Faults(poison=0.2), seed=3)
    refused = [one for one in seen.all(Drop) if one.decision == "refused"]
    assert refused
    assert found.outcome.complete
    held = [len(server._center._payloads) for server in found.center.servers.servers]  # type: ignore[attr-defined]
    assert max(held) <= 1


class Lost(LocalServers):
    """Server 1 dies of its `number`-th request of this kind."""

    def __init__(self, servers: Sequence[RangeServer], kind: type, number: int) -> None:
        super().__init__(servers)
        self.kind, self.left = kind, number

    def ask(self, request: Request) -> Answered:
        self.left -= isinstance(request, self.kind)
        return super().ask(request) if self.left > 0 else Unanswered([])


class Unanswered(Answered):
    def answers(self) -> Sequence[Answer]:
        raise RunInterrupted("server 1 at here is lost: killed")


@pytest.mark.parametrize("kind", [Load, TakeIn, Combine, Clear])
def test_a_server_that_is_lost_ends_the_attempt(kind: type) -> None:
    """Whatever it was asked, and what was merged since the checkpoint is not asked for."""
    number = 1 if kind is Load else 5
    with pytest.raises(RunInterrupted, match="server 1 at here is lost: killed"):
        run("add", 3, 2, serve=lambda servers: Lost(servers, kind, number))


class Emptied(LocalServers):
    """The store of server 1 comes back empty, once, when the master is about to fetch the whole center."""

    done = False

    def ask(self, request: Request) -> Answered:
        answered = super().ask(request)
        if isinstance(request, Restore) and request.whole and not self.done:
            self.done = True
            store = self.servers[1].store
            store.delete(*store.keys(""))
        return answered


def test_a_center_that_is_lost_while_it_is_fetched_is_asked_for_once_more() -> None:
    sound, _ = run("adam", 3, 2)
    found, _ = run("adam", 3, 2, serve=Emptied)
    assert found.center.vector.tobytes() == sound.center.vector.tobytes()


def test_a_center_counts_as_a_version_only_if_every_range_says_so() -> None:
    found, _ = run("add", 2)
    store = found.cluster.servers[1].incoming
    assert isinstance(store, MemoryStore)
    store.delete(f"speedo:simulated:center:{found.center.version}")
    worker = next(iter(found.cluster._workers.values()))
    with pytest.raises(StoreError, match="center"):
        worker.exchange.fetch_center(found.center.version, np.zeros(SIZE, np.float32))
