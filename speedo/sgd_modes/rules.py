"""The arithmetic of merging, apart from the schedules: in place on the float32 center, in one pass.

Vectors are processed in blocks, so that intermediate results stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from speedo.vectors.vector import Kind, Vector

BLOCK = 1 << 18  # float32 values: 1 MiB; `bench.store_speed` tells what a size is worth


@dataclass(frozen=True, slots=True)
class Contribution:
    """One payload with the number of samples behind it; `merges_since` were made since its worker began."""

    vector: Vector
    samples: int
    merges_since: int = 0


class MergeRule(Protocol):
    """How payloads become a new center."""

    @property
    def payload(self) -> Kind:
        """What the workers send."""
        ...

    def rate(self, workers: int, staleness: int = 0) -> float:
        """The rule's factor for this many live workers and a result of this staleness; 1 if it has none."""
        ...

    def merge(
        self, center: Vector, contributions: Sequence[Contribution], rate: float, iteration: int
    ) -> None:
        """Merge into `center`, in place. `iteration` is the global one before the merge."""
        ...


class RuleClass(Protocol):
    """A rule's class, as a mode names it. `option` is the option that chooses and sets the rule, empty for none.

    `usual` is the option's default as text, `source` where that comes from.
    """

    @property
    def option(self) -> str: ...

    @property
    def usual(self) -> str: ...

    @property
    def source(self) -> str: ...

    def __call__(self, value: Any, /) -> MergeRule:
        """The rule with this value of its option; None is its default."""
        ...


_spare: list[Vector] = []  # taken and put back whole, so threads may share it


@contextmanager
def _scratch(count: int) -> Iterator[list[Vector]]:
    """Blocks for intermediate results, reused: allocating fresh pages takes longer than the arithmetic."""
    taken = [_spare.pop() if _spare else np.empty(BLOCK, np.float32) for _ in range(count)]
    try:
        yield taken
    finally:
        _spare.extend(taken)


def _blocks(size: int) -> Iterator[slice]:
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def add_scaled(center: Vector, vector: Vector, factor: float) -> None:
    """center += factor * vector."""
    if factor == 1.0:
        center += vector
        return
    scale = np.float32(factor)
    with _scratch(1) as (scratch,):
        for block in _blocks(center.size):
            part = scratch[: block.stop - block.start]
            np.multiply(vector[block], scale, out=part)
            center[block] += part


def _add_mean(center: Vector, contributions: Sequence[Contribution], rate: float) -> None:
    """center += rate * sum_w (samples_w / samples) vector_w.

    The mean is computed before it is added to the center: added one by one, each vector would be rounded to the
    precision of the weights, which is a ten-thousandth of a small step. If all counts are equal, the sum is scaled: one
    pass for each vector instead of two.
    """
    total = sum(contribution.samples for contribution in contributions)
    factors = [np.float32(rate * contribution.samples / total) for contribution in contributions]
    alike = len(contributions) > 1 and len(set(factors)) == 1
    with _scratch(2) as (mean, scratch):
        for block in _blocks(center.size):
            part = mean[: block.stop - block.start]
            if alike:
                np.add(contributions[0].vector[block], contributions[1].vector[block], out=part)
                for contribution in contributions[2:]:
                    part += contribution.vector[block]
                part *= factors[0]
            else:
                np.multiply(contributions[0].vector[block], factors[0], out=part)
                for contribution, factor in zip(contributions[1:], factors[1:], strict=True):
                    other = scratch[: part.size]
                    np.multiply(contribution.vector[block], factor, out=other)
                    part += other
            center[block] += part


def mean_into(out: Vector, contributions: Sequence[Contribution]) -> None:
    """out = sum_w (samples_w / samples) vector_w."""
    out.fill(0.0)
    _add_mean(out, contributions, 1.0)


def average_into(
    center: Vector,
    places: Sequence[slice],
    before: Sequence[Vector],
    contributions: Sequence[Contribution],
) -> None:
    """Merge the moving averages, at these places, by averaging: whatever the rule has made of them is overwritten.

    center = before + share * (sum_w (samples_w / samples) value_w - before), share = 1 / (1 + merges_since), where
    merges_since is the mean over the results, weighted by samples. So results that began together weigh the same,
    whether they are merged at once, as in sync, or one after the other: the k-th of them has the share 1 / k, and the
    center is their running mean. With n equal workers in async the share is 1 / n.

    The values are sent, not their changes: n changes from the same center, all added, go n times too far, and each
    divided by n still overshoots, because the center has moved since: a variance became negative. A mean of values
    lies between them. In float64, so a value that all agree on stays as it is.
    """
    total = sum(one.samples for one in contributions)
    since = sum(one.samples * max(0, one.merges_since) for one in contributions) / total
    share = 1.0 / (1.0 + since)
    for place, former in zip(places, before, strict=True):
        merged = (1.0 - share) * former.astype(np.float64)
        for one in contributions:
            merged += share * one.samples / total * one.vector[place].astype(np.float64)
        center[place] = merged


@dataclass(frozen=True)
class AddDelta:
    """Downpour's rule: center += scale * delta (Dean et al. 2012, section 4.1, with a scale).

    `scale` None means min(1, whole / n) for n live workers. Each worker keeps its own momentum, which sees every n-th
    step of the center, so it acts n times as long as that of one solver. With momentum 0.9 two workers whose deltas
    are added whole converge, and four diverge at the rate that one bears. With momentum correction four converge.
    `whole` is 1 for scripts that make several local steps: their optimizers are not corrected, and their momentum has
    come to its full length at the end of a turn.

    `by_staleness`: also divided by the result's staleness tau, if that is above 1 (Zhang, Gupta, Lian, Liu,
    Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI 2016, section 3: alpha / tau).
    """

    payload: ClassVar[Kind] = Kind.DELTA
    option: ClassVar[str] = "delta_scale"
    usual: ClassVar[str] = (
        "min(1, 4 / workers); without momentum correction min(1, 2 / workers); with staleness scaling 1; "
        "of a script's several local steps 1 / workers"
    )
    source: ClassVar[str] = "measured: modes.md, momentum and the scale of deltas"
    scale: float | None = None
    whole: float = 2.0
    by_staleness: bool = False

    def rate(self, workers: int, staleness: int = 0) -> float:
        scale = min(1.0, self.whole / max(workers, 1)) if self.scale is None else self.scale
        return scale / max(staleness, 1) if self.by_staleness else scale

    def merge(
        self, center: Vector, contributions: Sequence[Contribution], rate: float, iteration: int
    ) -> None:
        for contribution in contributions:
            add_scaled(center, contribution.vector, rate)


@dataclass(frozen=True)
class AverageDeltas:
    """center += scale * sum_w (samples_w / samples) delta_w: the step of one solver with the whole batch."""

    payload: ClassVar[Kind] = Kind.DELTA
    option: ClassVar[str] = "delta_scale"
    usual: ClassVar[str] = "1"
    source: ClassVar[str] = "the mean is the step of one solver"
    scale: float | None = None

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.scale if self.scale is not None else 1.0

    def merge(
        self, center: Vector, contributions: Sequence[Contribution], rate: float, iteration: int
    ) -> None:
        _add_mean(center, contributions, rate)


@dataclass(frozen=True)
class TakeCenter:
    """The new center is what a team that trained alone made of it, round by round, by its rule `each`.

    Taken whole, so the outcome is the same to the bit however many rounds the team does between two reports.
    """

    payload: ClassVar[Kind] = Kind.WEIGHTS
    each: MergeRule

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.each.rate(workers)

    def merge(
        self, center: Vector, contributions: Sequence[Contribution], rate: float, iteration: int
    ) -> None:
        (team,) = contributions
        np.copyto(center, team.vector)


@dataclass(frozen=True)
class Elastic:
    """Elastic averaging (Zhang, Choromanska, LeCun 2015, eq. 5 and 6): the center's half.

    d = alpha (x_w - center); center += d. The worker's half, x_w -= d, is `pull_towards`. `alpha` None
    means the paper's 0.9 / n for n live workers.
    """

    payload: ClassVar[Kind] = Kind.WEIGHTS
    option: ClassVar[str] = "moving_rate"
    usual: ClassVar[str] = "0.9 / workers"
    source: ClassVar[str] = "Zhang, Choromanska, LeCun 2015"
    alpha: float | None = None

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.alpha if self.alpha is not None else 0.9 / max(workers, 1)

    def merge(
        self, center: Vector, contributions: Sequence[Contribution], rate: float, iteration: int
    ) -> None:
        alpha = np.float32(rate)
        with _scratch(1) as (scratch,):
            for contribution in contributions:
                for block in _blocks(center.size):
                    pull = scratch[: block.stop - block.start]
                    np.subtract(contribution.vector[block], center[block], out=pull)
                    pull *= alpha
                    center[block] += pull


def pull_towards(local: Vector, center: Vector, alpha: float, sent: Vector | None = None) -> None:
    """The worker's half of elastic averaging: x_w -= alpha (x_w - center before the merge), in place.

    Only the center after the merge is sent. As center' = center + alpha (x_w - center), the distance before
    was x_w - center = (x_w - center') / (1 - alpha), so alpha must be below 1. `sent` is the x_w that was merged,
    if the worker has trained on since: the worker still loses exactly what the center gained.
    """
    share = np.float32(alpha / (1.0 - alpha))
    with _scratch(1) as (scratch,):
        for block in _blocks(local.size):
            way = scratch[: block.stop - block.start]
            np.subtract((local if sent is None else sent)[block], center[block], out=way)
            way *= share
            local[block] -= way


@dataclass(frozen=True)
class ServerGradient:
    """Workers send raw gradients; the master applies the solver's own update once.

    `update(gradient, center, iteration)` changes the center in place by one step of the solver: clipping,
    weight decay, momentum, learning rate of that iteration. Workers keep no momentum. `by_servers` where servers
    have the center: each has an update of its own (`speedo.master.range_update`).
    """

    payload: ClassVar[Kind] = Kind.GRADIENT
    option: ClassVar[str] = "server_gradient"
    usual: ClassVar[str] = ""
    source: ClassVar[str] = ""
    update: Callable[[Vector, Vector, int], None]

    def rate(self, workers: int, staleness: int = 0) -> float:
        return 1.0

    def merge(
        self, center: Vector, contributions: Sequence[Contribution], rate: float, iteration: int
    ) -> None:
        gradient = np.empty_like(center)
        mean_into(gradient, contributions)
        self.update(gradient, center, iteration)


def by_servers(gradient: Vector, center: Vector, iteration: int) -> None:
    """The `update` of a run whose servers make it, each of its range: so the master has none."""
    raise AssertionError("the servers of this run make the solver's update")
