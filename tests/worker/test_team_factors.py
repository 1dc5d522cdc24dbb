"""Inner products of a team over hosts go as factors where those are fewer bytes; the sum is that of the ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from speedo.engines.base import Done, nobody
from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.factors import Factors, Product
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.messages import Kind, Refused, Trained
from speedo.worker.team_gradients import OutgoingSum
from speedo.worker.team_memory import TeamMemory
from tests.worker.test_team_turn import InProcesses, Members

# Of three hosts' bytes factors are a quarter for the first, and more for the second.
PRODUCTS = (Product("large/0", 3, 20, 30, 2), Product("small/0", 610, 4, 5, 2))
SIZE = 640
SIZES = (3, 600, 7, 20, 10)
LAYOUT = Layout(tuple(Blob(f"blob/{at}", (size,)) for at, size in enumerate(SIZES)))


class ProductEngine(QuadraticEngine):
    """A part of its gradient is random factors' products. `given` are the names of those that left as factors."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__(SIZE, rank=rank, **options)
        self._random = np.random.default_rng(rank)
        self.given: set[str] = set()
        self.spoils = False
        self._layout = LAYOUT

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        for blob, place in LAYOUT.slices():
            change(blob, place, self._weights[place])

    def products(self) -> tuple[Product, ...]:
        return PRODUCTS

    def gradient(
        self, n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        loss = super().gradient(n, out)
        wanted = {one.product.start: one for one in factors}
        for one in PRODUCTS:
            left = self._random.standard_normal((one.rows, one.left)).astype(np.float32)
            right = self._random.standard_normal((one.rows, one.right)).astype(np.float32)
            if one.start in wanted:
                wanted[one.start].left[:], wanted[one.start].right[:] = left, right
                if self.spoils:
                    wanted[one.start].left[1, 2] = np.inf
                out[one.start : one.stop] = np.nan
                self.given.add(one.name)
            else:
                out[one.start : one.stop] = (left.T @ right).reshape(-1)
        for _, place in reversed(list(LAYOUT.slices())):
            done(place.start, place.stop)
        return loss


class ProductMembers(Members):
    def engine(self, worker: int) -> ProductEngine:
        count, batch = len(self.batches), self.batches[worker]
        return ProductEngine(worker, count=count, batch=batch, momentum=0.9, noise=0.1)


def given(members: Members) -> list[set[str]]:
    return [one.engine.given for one in members.workers.values()]  # type: ignore[attr-defined]


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


def test_blobs_leave_once_all_members_of_the_host_have_them_and_products_do_not() -> None:
    memory = TeamMemory.over(bytearray(TeamMemory.bytes_for(2, 4, LAYOUT)), 2, 4, LAYOUT)
    for number, payload in enumerate(memory.payloads):
        payload[:] = np.arange(SIZE) + number
    leaving = OutgoingSum(
        memory, LAYOUT, PRODUCTS, 7, [np.float32(1), np.float32(1)], np.float32(0.25)
    )
    left: list[tuple[int, int]] = []
    leaving.reduction = Left(left)
    assert leaving.values.size == SIZE - 620
    memory.ready[0] = 7
    memory.ready[1] = 6  # of the round before
    memory.ready[1, [4, 1]] = 7
    leaving.let_go()
    assert left == [(10, 20)]
    assert leaving.values[10:].tolist() == [0.25 * (2 * value + 1) for value in range(630, 640)]
    memory.ready[1] = 7
    leaving.let_go()
    leaving.let_go()
    assert left == [(10, 20), (3, 10), (0, 3)]
    leaving.values[:] = -1
    leaving.give_back()
    kept = [*range(3), *range(603, 610), *range(630, 640)]
    assert np.flatnonzero(memory.center == -1).tolist() == kept
    whole = OutgoingSum(memory, LAYOUT, (), 8, [np.float32(1), np.float32(1)], np.float32(0.25))
    assert whole.values is memory.center


class Left:
    """A sum over hosts that notes what becomes ready."""

    def __init__(self, left: list[tuple[int, int]]) -> None:
        self._left = left

    def ready(self, start: int, stop: int) -> None:
        self._left.append((start, stop))

    def finish(self) -> None:
        """Nobody waits for it."""
