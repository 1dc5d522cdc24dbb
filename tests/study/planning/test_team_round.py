"""What a team over hosts moves in a round, and what of it backward hides: by hand, and beside a real exchange."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from speedo.engines.make import EngineChoice
from speedo.exchange.factors import Product, choices
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.exchange.host_ring import SAYS, HostRing
from speedo.storage.memory_store import MemoryStore
from speedo.study.planning.calibration import (
    Calibration,
    InnerProduct,
    OverHosts,
    Ready,
    StepTime,
    with_step_time,
)
from speedo.study.planning.predict import predict
from speedo.study.planning.site import PAYLOAD_SHARE, Site
from speedo.study.planning.team_costs import costs_of_team
from speedo.study.planning.team_round import Lot, SumOfFactors, lots_of, team_round
from tests.study.planning.times import calibration
from tests.worker.test_team_factors import PRODUCTS, SIZE, ProductEngine

FAR = Site(cores=8, link=1e8 / PAYLOAD_SHARE)  # 12.5 kB take a millisecond
# Of LeNet: conv1, conv2, ip1 and ip2, weight and bias each.
LENET = (500, 20, 25_000, 50, 400_000, 500, 5_000, 10)
IP1 = InnerProduct(name="ip1/0", start=25_570, left=500, right=800, rows=64, sum_s=0, row_s=0)
IP2 = InnerProduct(name="ip2/0", start=426_070, left=10, right=500, rows=64, sum_s=0, row_s=0)


def over_hosts(**fields: Any) -> OverHosts:
    usual: dict[str, Any] = {"products": (), "gradient": 0.9, "update": 0.1}
    return OverHosts(**{**usual, "ring_call": 0.0, "ring": 0.0, **fields})


def lenet(batch: int = 64) -> Calibration:
    starts = np.cumsum((0, *LENET))
    ready = tuple(
        Ready(start=int(start), stop=int(start) + size, at=0.9)
        for start, size in zip(starts, LENET, strict=False)
    )
    return calibration(
        batch_size=batch,
        nbytes=4 * sum(LENET),
        steps=(StepTime(samples=batch, seconds=0.025),),
        over_hosts=over_hosts(products=(IP1, IP2), ready=ready),
    )


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("hosts", [2, 3, 4, 64])
def test_without_factors_a_host_sends_what_a_ring_carries(hosts: int) -> None:
    """As `bench.ring` counts: 2 (n - 1) / n of the model."""
    whole = 2 * (hosts - 1) / hosts * 1_724_320
    off = replace(FAR, factors="off")
    assert team_round(lenet(), off, [1] * hosts, [64]).ring == pytest.approx(whole)
    unknown = calibration(nbytes=1_724_320)
    assert team_round(unknown, FAR, [1] * hosts, [64]).ring == pytest.approx(whole)
    assert team_round(lenet(), FAR, [1] * hosts, [63, 64]).factors == 0


def test_lenet_sends_its_large_product_as_factors() -> None:
    """64 x 1,300 values for each other host, where a ring takes 400,000 and more; of the rest 31,080 go around."""
    two = team_round(lenet(), FAR, [1, 1], [64])
    assert (two.factors, two.ring) == (332_800, 124_320)
    assert [one.name for one in two.sums] == ["ip1/0"]
    assert two.share == pytest.approx(31_080 / 431_080)
    four = team_round(lenet(), FAR, [1] * 4, [64])
    assert (four.factors, four.ring) == (998_400, pytest.approx(186_480))
    eight = team_round(lenet(), FAR, [1] * 8, [64])
    assert (eight.factors, len(eight.sums)) == (2_329_600, 1)
    many = team_round(lenet(), FAR, [1] * 16, [64])  # each link would carry more than a ring
    assert (many.factors, many.sums) == (0, ())
    divided = team_round(lenet(), FAR, [1] * 4, [16])
    assert divided.factors == 249_600


def test_alexnet_sends_what_was_measured() -> None:
    """Four hosts with 64 records each: 35 MB a round, 367 without factors, with headers (`bench.team_hosts`)."""
    sizes = ((4096, 9216), (4096, 4096), (1000, 4096))
    convolutions = 60_965_224 - sum(left * (right + 1) for left, right in sizes)
    products, ready, at = [], [Ready(start=0, stop=convolutions, at=1.0)], convolutions
    for number, (left, right) in enumerate(sizes):
        name, end = f"fc{6 + number}/0", at + left * right
        products.append(
            InnerProduct(name=name, start=at, left=left, right=right, rows=64, sum_s=0, row_s=0)
        )
        ready += [
            Ready(start=at, stop=end, at=0.5),
            Ready(start=end, stop=end + left, at=0.5),
        ]
        at = end + left
    costs = calibration(
        batch_size=64,
        nbytes=4 * at,
        steps=(StepTime(samples=64, seconds=1.0),),
        over_hosts=over_hosts(products=tuple(products), ready=tuple(ready)),
    )
    moved = team_round(costs, FAR, [1] * 4, [64])
    assert len(moved.sums) == 3
    assert (moved.ring + moved.factors) / 1e6 == pytest.approx(35, rel=0.03)
    off = team_round(costs, replace(FAR, factors="off"), [1] * 4, [64])
    assert off.ring / 1e6 == pytest.approx(367, rel=0.03)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_the_exchange_sends_these_bytes(hosts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sum and one gathering between real leaders, without headers and the words of the calls."""
    sent, pass_on = [0], HostRing._pass_on

    def counted(
        ring: HostRing, what: int, host: int, number: int, *bodies: Any, **more: Any
    ) -> None:
        sent[0] += len(bodies[-1]) if what != SAYS else 0
        pass_on(ring, what, host, number, *bodies, **more)

    monkeypatch.setattr(HostRing, "_pass_on", counted)
    moved = team_round(lenet(), FAR, [1] * hosts, [64])
    ring, rows = round(moved.share * 431_080), 64 * 1_300
    at = Rendezvous(MemoryStore(clock=time.monotonic), "run", "group", "127.0.0.1")
    leaders = [HostExchange(at, range(hosts), own, 20.0, str) for own in range(hosts)]

    def one_round(own: int) -> None:
        leaders[own].all_reduce("sum", np.ones(ring, np.float32), np.add)
        out = np.empty((hosts, rows), np.float32)
        own_rows = np.full((1, rows), own, np.float32)
        leaders[own].all_gather("factors", own_rows, [(one,) for one in range(hosts)], out)
        assert (out[:, 0] == range(hosts)).all()

    with ThreadPoolExecutor(hosts) as pool:
        list(pool.map(one_round, range(hosts)))
    for one in leaders:
        one.close("it is over")
    assert sent[0] == pytest.approx(hosts * (moved.ring + moved.factors))


def test_a_piece_leaves_once_all_of_it_is_ready() -> None:
    """124 kB are four pieces for two hosts. The first layer is in the first, the second in all but the last."""
    parts = [
        Ready(start=0, stop=1_000, at=0.9),
        Ready(start=1_000, stop=25_000, at=0.7),
        Ready(start=425_000, stop=431_080, at=0.4),
    ]
    size = 31_080
    assert lots_of(parts, 2) == [
        Lot(0.7, 4 * (size - size // 4)),
        Lot(0.9, 4 * (size // 4)),
    ]
    parts[1] = Ready(start=1_000, stop=size // 2, at=0.7)
    parts[2] = Ready(start=425_000, stop=425_000 + size - size // 2, at=0.4)
    assert lots_of(parts, 2) == [
        Lot(0.4, 4 * (size // 2)),
        Lot(0.7, 4 * (size // 4)),
        Lot(0.9, 4 * (size // 4)),
    ]


def test_many_layers_leave_in_few_lots_without_a_byte_lost() -> None:
    parts = [
        Ready(start=10_000 * one, stop=10_000 * one + 10_000, at=1.0 - one / 200)
        for one in range(128)
    ]
    lots = lots_of(parts, 4)
    assert 4 <= len(lots) <= 9
    assert sum(lot.nbytes for lot in lots) == pytest.approx(1.5 * 4 * 1_280_000)
    assert [lot.at for lot in lots] == sorted(lot.at for lot in lots)


# ---------------------------------------------------------------- time


def halves(**fields: Any) -> Calibration:
    """125 kB; the later half is ready in the middle of a step of 10 ms, the other at the end of its gradient."""
    ready = (Ready(start=0, stop=15_625, at=0.9), Ready(start=15_625, stop=31_250, at=0.5))
    return calibration(
        nbytes=125_000,
        steps=(StepTime(samples=10, seconds=0.010),),
        over_hosts=over_hosts(**{"ready": ready, **fields}),
    )


def rate(costs: Calibration, site: Site = FAR, workers: int = 2) -> float:
    return predict(costs, site, "sync", workers, 1, split=False).images_per_s


@pytest.mark.slow
def test_what_leaves_early_travels_while_earlier_layers_compute() -> None:
    """Half of 10 ms leaves after 5 ms, the other after 9 ms, and is there after 15 ms; then 1 ms of update."""
    found = predict(halves(), FAR, "sync", 2, 1, split=False)
    assert found.images_per_s == pytest.approx(20 / 0.016, rel=0.03)
    assert found.shares["link"] == pytest.approx(10 / 16, rel=0.05)
    whole = calibration(nbytes=125_000, steps=(StepTime(samples=10, seconds=0.010),))
    assert rate(whole) == pytest.approx(20 / 0.020, rel=0.03)


@pytest.mark.slow
def test_a_lot_waits_for_the_slowest_member_of_all_hosts() -> None:
    """Six workers on two hosts of two cores each: three steps at a time take 15 ms, and all in them."""
    site = replace(FAR, cores=2, per_machine=3)
    assert rate(halves(), site, 6) == pytest.approx(60 / (0.0135 + 0.005 + 0.0015), rel=0.03)


@pytest.mark.slow
def test_the_ring_takes_the_processor_what_it_was_measured_to() -> None:
    """20 ms for what the model has, of which half begins after 5 ms; 2 ms for the call."""
    costs = halves(ring=0.020, ring_call=0.002)
    assert rate(costs) == pytest.approx(20 / (0.005 + 0.022 + 0.001), rel=0.03)


@pytest.mark.slow
def test_factors_travel_after_the_ring_and_each_member_makes_a_part_of_their_sum() -> None:
    """Of 600 x 50 values 10 rows of 650 are 26 kB, 2.08 ms; 5 kB of the rest, 0.4 ms. The sum has two blocks: 3 ms.

    With two members on each host there are twice as many rows, which is 52 kB and 5 ms, of which each makes half.
    """
    product = InnerProduct(
        name="ip/0", start=0, left=600, right=50, rows=10, sum_s=0.001, row_s=0.0001
    )
    ready = (Ready(start=0, stop=30_000, at=0.5), Ready(start=30_000, stop=31_250, at=0.9))
    costs = halves(products=(product,), ready=ready)
    one = predict(costs, FAR, "sync", 2, 1, split=False)
    assert one.images_per_s == pytest.approx(
        20 / (0.009 + 0.0004 + 0.00208 + 0.003 + 0.001), rel=0.03
    )
    assert (one.ring_bytes, one.factor_bytes, one.as_factors) == (5_000, 26_000, ("ip/0",))
    pairs = replace(FAR, per_machine=2)
    assert rate(costs, pairs, 4) == pytest.approx(
        40 / (0.009 + 0.0004 + 0.00416 + 0.0025 + 0.001), rel=0.03
    )
    off = replace(FAR, factors="off")
    # Three of four pieces leave after 5 ms.
    assert rate(costs, off) == pytest.approx(20 / (0.005 + 0.010 + 0.001), rel=0.03)
    assert predict(costs, off, "sync", 2, 1, split=False).as_factors == ()
    several = predict(costs, FAR, "sync", 2, 10, split=False)
    assert (several.ring_bytes, several.factor_bytes) == (125_000, 0)


def test_each_member_makes_its_blocks_and_one_of_few_all() -> None:
    sums = SumOfFactors("ip/0", 3, 0.3)
    assert [sums.seconds_of(place, 2) for place in range(2)] == pytest.approx([0.1, 0.2])
    assert [SumOfFactors("", 1, 1.0).seconds_of(place, 2) for place in range(2)] == [0.0, 1.0]


def test_of_a_step_elsewhere_nothing_leaves_early() -> None:
    given = with_step_time(halves(), 0.010)
    assert rate(given) == pytest.approx(20 / 0.020, rel=0.03)
    assert "nothing of a gradient leaves before" in given.origin["teams over machines"]


# ---------------------------------------------------------------- what is measured


@pytest.mark.parametrize("steps", [True, False])
def test_the_costs_of_a_team_are_those_of_this_engine(steps: bool) -> None:
    told = costs_of_team(ProductEngine(0), EngineChoice("torch", "cpu"), steps=steps)
    batch = 2
    found = OverHosts.model_validate(told)
    assert sorted((one.start, one.stop) for one in found.ready)[0][0] == 0
    assert sum(one.stop - one.start for one in found.ready) == SIZE
    products = [
        Product(one.name, one.start, one.left, one.right, one.rows) for one in found.products
    ]
    assert tuple(products) == PRODUCTS
    assert choices(products, [1, 1])[0].product.rows == batch
    assert all(one.sum_s + one.row_s > 0 for one in found.products)
    assert all(0 < one.at <= found.gradient for one in found.ready)
    assert 0 < found.ring_call < 0.1
    assert found.ring < 0.1
    assert (found.update > 0) == steps
