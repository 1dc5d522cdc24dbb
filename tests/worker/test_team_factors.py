"""Inner products of a team over hosts go as factors where those are fewer bytes; the sum is that of the ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.base import Done, nobody
from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.factors import Factors, Product
from speedo.exchange.vector import Vector
from speedo.messages import Kind, Refused, Trained
from speedo.worker.team_gradients import Rest
from tests.worker.test_team_turn import InProcesses, Members

# Of three hosts' bytes factors are a quarter for the first, and more for the second.
PRODUCTS = (Product("large/0", 3, 20, 30, 2), Product("small/0", 610, 4, 5, 2))
SIZE = 640


class ProductEngine(QuadraticEngine):
    """A part of its gradient is random factors' products. `given` are the names of those that left as factors."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__(SIZE, rank=rank, **options)
        self._random = np.random.default_rng(rank)
        self.given: set[str] = set()
        self.spoils = False

    def products(self) -> tuple[Product, ...]:
        return PRODUCTS

    def gradient(
        self, n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        loss = super().gradient(n, out)
        wanted, ends = {one.product.start: one for one in factors}, {0, SIZE}
        for one in PRODUCTS:
            left = self._random.standard_normal((one.rows, one.left)).astype(np.float32)
            right = self._random.standard_normal((one.rows, one.right)).astype(np.float32)
            ends |= {one.start, one.stop}
            if one.start in wanted:
                wanted[one.start].left[:], wanted[one.start].right[:] = left, right
                if self.spoils:
                    wanted[one.start].left[1, 2] = np.inf
                out[one.start : one.stop] = np.nan
                self.given.add(one.name)
            else:
                out[one.start : one.stop] = (left.T @ right).reshape(-1)
        places = sorted(ends)
        for start, stop in reversed(list(pairwise(places))):
            done(start, stop)
        return loss


class ProductMembers(Members):
    def engine(self, worker: int) -> ProductEngine:
        count, batch = len(self.batches), self.batches[worker]
        return ProductEngine(worker, count=count, batch=batch, momentum=0.9, noise=0.1)


def given(members: Members) -> list[set[str]]:
    return [one.engine.given for one in members.workers.values()]  # type: ignore[attr-defined]


@pytest.fixture
def processes(tmp_path: Path) -> Any:
    made: list[InProcesses] = []

    def make(members: Members, hosts: int) -> InProcesses:
        made.append(InProcesses(members, tmp_path, hosts))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_the_model_is_that_of_the_ring(
    processes: Callable[[Members, int], InProcesses], hosts: int
) -> None:
    apart, ring, simulated = (ProductMembers(4, 4, 4, 4, size=SIZE) for _ in range(3))
    for worker in ring.workers.values():
        worker.factors = False
    ring.train(4, Kind.WEIGHTS, hosts=hosts)
    simulated.train(4, Kind.WEIGHTS, hosts=hosts)
    answers = processes(apart, hosts).turn(apart.commands(4, Kind.WEIGHTS, hosts=hosts))
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers
    assert given(ring) == [set()] * 4
    assert given(apart) == given(simulated) == [{"large/0"}] * 4
    assert len({one.engine.history() for one in apart.workers.values()}) == 1
    expected = ring.published(Kind.WEIGHTS)
    atol = 1e-6 * np.abs(expected).max()
    for members in (apart, simulated):
        np.testing.assert_allclose(members.published(Kind.WEIGHTS), expected, rtol=0, atol=atol)


def test_on_one_host_and_with_unlike_batches_nothing_goes_as_factors() -> None:
    for members, hosts in (
        (ProductMembers(4, 4, size=SIZE), 1),
        (ProductMembers(4, 3, size=SIZE), 2),
    ):
        members.train(2, Kind.WEIGHTS, hosts=hosts)
        assert given(members) == [set()] * 2
        expected = members.by_hand(2)
        np.testing.assert_array_equal(members.published(Kind.WEIGHTS), expected)


@pytest.mark.parametrize("worker", range(3))
def test_a_factor_that_is_not_finite_is_its_worker_s_fault(
    processes: Callable[[Members, int], InProcesses], worker: int
) -> None:
    members = ProductMembers(4, 4, 4, size=SIZE)
    members.workers[worker].engine.spoils = True  # type: ignore[attr-defined]
    answers = processes(members, 2).turn(members.commands(3, Kind.WEIGHTS, hosts=2))
    blamed = [isinstance(one, Refused) and one.blame for one in answers.values()]
    assert blamed == [one == worker for one in range(3)]


def test_the_rest_is_everything_but_the_products_in_its_order() -> None:
    whole, room = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    rest = Rest(whole, room, PRODUCTS)
    assert rest.values.size == SIZE - 620
    assert rest.take(630, 640, 0.5) == (10, 20)
    assert rest.values[10:].tolist() == [0.5 * value for value in range(630, 640)]
    rest.take_all()
    assert rest.values.tolist() == [*range(3), *range(603, 610), *range(630, 640)]
    rest.values[:] = -1
    rest.give_back()
    assert np.flatnonzero(whole == -1).tolist() == [*range(3), *range(603, 610), *range(630, 640)]
    assert Rest(whole, room, ()).values is whole
