"""A server with the solver's update: what it publishes is finite, and its history is found again."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from speedo.engines.solver.lr_policies import LrPolicy
from speedo.engines.solver_update import Multipliers, Recipe
from speedo.engines.update_rules import SolverFields
from speedo.errors import TrainingStopped
from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.vector import Blob, Layout, Vector, as_bytes
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.server_requests import Combine, Combined, Load, Prepare, Restore, TakeIn
from speedo.messages import Kind, Merge, Part, Trained
from speedo.sgd_modes.rules import ServerGradient, by_servers
from speedo.storage.memory_store import MemoryStore

LAYOUT = Layout((Blob("w/0", (4,)),))
RULE = ServerGradient(by_servers)
HISTORY = "speedo:run:history:"


class Served:
    """One server with the whole vector, which begins at zero, and its store."""

    def __init__(self, lr: float = 0.5, clip: float = -1.0) -> None:
        fields = SolverFields(momentum=0.5, clip_gradients=clip)
        self.recipe = Recipe(fields, LAYOUT, (Multipliers(),), LrPolicy("fixed", lr))
        self.store, self.version = MemoryStore(), 0
        self.exchange = Exchange("run", LAYOUT, [Stores(self.store)])
        self.exchange.publish_history(0, 0, np.zeros(4, np.float32), 0)
        self.exchange.publish_center(0, 0, np.zeros(4, np.float32))
        self.server = self.another()

    def another(self) -> RangeServer:
        self.server = RangeServer(
            "run", LAYOUT, self.store, solver=partial(self.recipe.update_of, None)
        )
        return self.server

    def take_in(self, value: float) -> tuple[Merge, Trained]:
        ticket = self.version + 1
        gradient = np.full(4, value, np.float32)
        sender = Sender(0, 0, ticket, self.version, 0)
        self.exchange.publish(sender, Kind.GRADIENT, [as_bytes(gradient)])
        event = Trained(0, 0, ticket, 1.0, 4)
        self.server.do(TakeIn(event, RULE))
        return Merge(ticket, ticket, 4 * ticket, 1.0, (Part(0, 0, ticket, 4, 0, 1.0),)), event

    def step(self, value: float, norm: float | None = None) -> Vector:
        action, _ = self.take_in(value)
        assert isinstance(self.server.do(Combine(action, self.version, norm)), Combined)
        self.version += 1
        return self.center()

    def center(self) -> Vector:
        found = LAYOUT.zeros()
        self.exchange.fetch_center(self.version, found)
        return found


def test_the_history_is_in_the_store_once_it_is_asked_for_and_another_server_goes_on_with_it() -> (
    None
):
    served = Served()
    served.server.do(Load(0))
    assert served.step(1.0).tolist() == [-0.5] * 4
    assert served.store.keys(HISTORY) == [f"{HISTORY}0"]
    served.server.do(Restore(whole=True))
    assert served.store.keys(HISTORY) == [f"{HISTORY}1"]
    served.another().do(Load(1))
    assert served.step(1.0).tolist() == [-1.25] * 4


def test_the_norm_of_all_ranges_clips_and_the_first_step_tells_the_part_of_one() -> None:
    served = Served(clip=1.0)
    served.server.do(Load(0))
    action, _ = served.take_in(3.0)
    assert served.server.do(Prepare(action)) == 36.0
    assert served.server.do(Prepare(action)) == 36.0  # it may be asked again
    assert served.step(3.0, 144.0).tolist() == [-0.125] * 4  # 0.5 * 3 / 12
    assert served.step(3.0, 144.0).tolist() == [-0.3125] * 4  # not prepared


def test_a_store_that_is_empty_gets_center_and_history_again() -> None:
    served = Served()
    served.server.do(Load(0))
    served.step(1.0)
    served.store.delete(*served.store.keys(""))
    served.server.do(Restore(whole=True))
    served.another().do(Load(1))
    assert served.step(1.0).tolist() == [-1.25] * 4


def test_an_update_that_is_not_finite_is_never_published() -> None:
    served = Served(lr=1e30)
    served.server.do(Load(0))
    action, event = served.take_in(1e10)
    with pytest.raises(TrainingStopped, match="iteration 0 is not finite"):
        served.server.do(Combine(action, 0))
    assert served.store.keys("speedo:run:center:") == ["speedo:run:center:0"]
    for request in (Restore(), TakeIn(event, RULE)):
        with pytest.raises(TrainingStopped, match="iteration 0 is not finite"):
            served.server.do(request)
