"""What a round of a team over hosts moves: the inner products that go as factors, and the rest of the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from speedo.exchange.factors import Choice, Product, blocks_of, choices
from speedo.exchange.host_ring import bounds_of
from speedo.study.planning.calibration import Calibration, InnerProduct, Ready
from speedo.study.planning.site import Site

LOTS: Final = 8  # of a gradient that leave one after another, at most
VALUE: Final = 4  # bytes


@dataclass(frozen=True, slots=True)
class Lot:
    """Bytes that a host sends on the ring, from this share of the time of a step on."""

    at: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class SumOfFactors:
    """A product whose gradient goes as factors: its sum has so many `blocks`, which together take `seconds`."""

    name: str
    blocks: int
    seconds: float

    def seconds_of(self, place: int, members: int) -> float:
        """Of the member at this place of a host with so many."""
        first, last = (self.blocks * one // members for one in (place, place + 1))
        return self.seconds * (last - first) / self.blocks


@dataclass(frozen=True, slots=True)
class TeamRound:
    """A round with one local step. `sums` are of the products that go as `factors`, in bytes that a host sends.

    A step is `gradient` and `update`, in times of a plain step. The rest of the gradient is the `share` of the model.
    """

    lots: tuple[Lot, ...]
    sums: tuple[SumOfFactors, ...]
    factors: int
    share: float
    gradient: float
    update: float

    @property
    def ring(self) -> float:
        """Bytes that a host sends on the ring."""
        return sum(lot.nbytes for lot in self.lots)


def team_round(
    calibration: Calibration, site: Site, hosts: Sequence[int], samples: Collection[int]
) -> TeamRound:
    """For hosts with this many workers each, whose steps have so many samples.

    As in a run (`speedo.worker.team_gradients`), workers with unlike batches send no factors.
    """
    over = calibration.over_hosts
    if over is None:
        whole = ring_bytes(calibration.nbytes, len(hosts))
        return TeamRound((Lot(1.0, whole),), (), 0, 1.0, 1.0, 0.0)
    known = {one.start: one for one in over.products}
    found: list[Choice] = []
    if site.factors == "auto" and len(set(samples)) == 1:
        share = max(samples) / calibration.batch
        products = [_of_a_worker(one, share) for one in over.products]
        found = [one for one in choices(products, hosts) if one.pays]
    sums = []
    for product in (one.product for one in found):
        costs, rows = known[product.start], product.rows * sum(hosts)
        seconds = costs.sum_s + costs.row_s * rows
        sums.append(SumOfFactors(product.name, blocks_of(product), seconds))
    apart = {choice.product.start for choice in found}
    rest = [one for one in over.ready if one.start not in apart]
    return TeamRound(
        tuple(lots_of(rest, len(hosts))),
        tuple(sums),
        sum(choice.factors for choice in found),
        sum(VALUE * (one.stop - one.start) for one in rest) / calibration.nbytes,
        over.gradient,
        over.update,
    )


def ring_bytes(nbytes: float, hosts: int) -> float:
    """What each of so many hosts sends on the ring to sum a vector."""
    return 2 * (hosts - 1) / hosts * nbytes


def lots_of(parts: Sequence[Ready], hosts: int) -> list[Lot]:
    """The values of these parts, end to end: a piece leaves once all of its values are ready.

    Pieces that leave about the same time are one lot.
    """
    ordered = sorted(parts, key=lambda one: one.start)
    size = sum(one.stop - one.start for one in ordered)
    bounds = bounds_of(size, VALUE, hosts)
    pieces: Counter[float] = Counter()
    number = first = 0  # the part at hand, and its first value's place
    for start, stop in pairwise(bounds):
        at = 0.0
        while number < len(ordered) and first < stop:
            one = ordered[number]
            last = first + one.stop - one.start
            if last > start:
                at = max(at, one.at)
            if last > stop:
                break
            first, number = last, number + 1
        pieces[at] += stop - start
    lots: list[Lot] = []
    values = 0
    for at, more in sorted(pieces.items()):
        values += more
        if values >= size / LOTS:
            lots.append(Lot(at, ring_bytes(VALUE * values, hosts)))
            values = 0
    if values:
        lots.append(Lot(max(pieces), ring_bytes(VALUE * values, hosts)))
    return lots


def _of_a_worker(one: InnerProduct, share: float) -> Product:
    """With the rows of this share of the whole batch."""
    rows = max(1, round(one.rows * share))
    return Product(one.name, one.start, one.left, one.right, rows)
