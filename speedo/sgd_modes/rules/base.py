"""What a merge rule is, and the arithmetic that rules share: in place, in one pass.

Vectors are processed in blocks, so that intermediate results stay in the processor's cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from speedo.errors import SpeedoError, TrainingStopped
from speedo.exchange.vector import Vector
from speedo.messages import Kind
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.system.records import record

BLOCK = 1 << 18  # float32 values: 1 MiB; `bench.store_speed` tells what a size is worth
_spare: list[Vector] = []  # taken and put back whole, so threads may share it


@record
class Contribution:
    """One payload with the number of samples behind it.

    Its worker began from `version` of the center, since when `merges_since` were made; `staleness` counts the results
    that were received in between. `begun` is the center of that version, for a rule that `wants_begun`. `loss` is the
    mean over the samples, NaN if nobody said one. Of a payload that a host has summed, staleness is the largest.
    """

    vector: Vector
    samples: int
    merges_since: int = 0
    staleness: int = 0
    version: int = 0
    begun: Vector | None = None
    loss: float = float("nan")


@record
class OfARun:
    """What a rule may need of a run: the master's `update` by gradients, whether workers use `momentum_correction`,
    and whether their optimizers are `uncorrected` ones of scripts, over several steps."""

    update: Callable[..., None] | None = None
    momentum_correction: bool = False
    uncorrected: bool = False


class MergeRule(ABC):
    """How payloads become a new center. A rule is a frozen dataclass: its fields are its options, and two are equal
    if their options are. What it keeps between merges is not in it, but in the `State` that it is given.

    `name` is what `--rule` takes; empty: it is not chosen by name. `payload` is what workers send. `rounds` says which
    schedules it goes with: True, those that merge the results of a round together; False, those that merge each as it
    comes; None, all. `vectors` and `numbers` name what its state has. `wants_begun`: contributions bring the weights
    that their worker began from, for which the center keeps a copy of each version that somebody trains from. Sums of
    Caffe's BatchNorm are merged without a rule that has vectors or wants those weights: `rate` times their mean change.

    `by_ranges`: each value of the new center and of the state depends only on the values at its own place, and numbers
    of the state on no vector. Only then servers can merge ranges apart. `by_mean`: the merge sees of the contributions
    only their mean, weighted by samples, so the workers of a host may sum before. `adds_mean`: it adds `rate` times
    that mean and nothing else, so a team that has all workers may make it itself. `foreseen`: a worker knows what
    becomes of its result, so turns may overlap. `keeps_finite`: from finite vectors
    of a usual norm it makes a finite center; that of another rule is looked at after each merge.

    Arguments that are annotated with an `Option` are the rule's options; `usual` is the default of one that is None as
    text, and `source` where that comes from. `option` is the one that chooses the rule in modes whose usual rule is
    another. `paper` and `year` say where it is from.
    """

    name: ClassVar[str] = ""
    payload: ClassVar[Kind] = Kind.DELTA
    rounds: ClassVar[bool | None] = None
    vectors: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    wants_begun: ClassVar[bool] = False
    by_ranges: ClassVar[bool] = False
    by_mean: ClassVar[bool] = False
    adds_mean: ClassVar[bool] = False
    foreseen: ClassVar[bool] = False
    keeps_finite: ClassVar[bool] = False
    option: ClassVar[str] = ""
    usual: ClassVar[str] = ""
    source: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        """What a rule promises of its merge is not inherited by one that merges otherwise, nor how it saves a pass."""
        super().__init_subclass__()
        if "merge" in vars(cls):
            if "merge_into" not in vars(cls):
                cls.merge_into = MergeRule.merge_into  # type: ignore[method-assign]
            for promise in ("by_ranges", "by_mean", "adds_mean", "foreseen", "keeps_finite"):
                setattr(cls, promise, vars(cls).get(promise, False))

    @classmethod
    def made(cls, values: Mapping[str, Any], run: OfARun) -> Self:
        """The rule with these values of its options, in this run."""
        return cls(**values)

    def rate(self, workers: int, staleness: int = 0) -> float:
        """The rule's factor for this many live workers and a result of this staleness; 1 if it has none."""
        return 1.0

    @abstractmethod
    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        """Merge into `center`, in place, with the `rate` of this merge. `iteration` is the global one before it.

        With servers `center`, the vectors of the contributions and of the state are those of one range.
        """

    def merge_into(
        self,
        out: Vector,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        """Leave in `out` what `merge` makes of `center`, which stays as it is unless both are the same memory.

        A rule that has this, too, saves the pass over memory that copies the center.
        """
        np.copyto(out, center)
        self.merge(out, contributions, rate, iteration, state)

    def state_for(self, size: int, former: State = NO_STATE) -> State:
        """The state to merge with: the `former` one if it is this rule's and of `size` values, else a new one."""
        title = title_of(type(self))
        if former.rule == title:
            fitting = [name for name, vector in former.vectors.items() if vector.size == size]
            if {*fitting} == {*self.vectors} and former.numbers.keys() == {*self.numbers}:
                return former
        zeros = {name: np.zeros(size, np.float32) for name in self.vectors}
        return State(title, zeros, dict.fromkeys(self.numbers, 0.0))


def title_of(rule: type[MergeRule]) -> str:
    """The rule's name, or that of its class."""
    return rule.name or rule.__name__


def merge_by(
    rule: MergeRule,
    center: Vector,
    out: Vector,
    contributions: Sequence[Contribution],
    rate: float,
    iteration: int,
    state: State,
) -> None:
    """Merge `center` into `out`, which may be the same. Raises `TrainingStopped`, with the center as it was in `out`,
    if the rule fails or the outcome is not finite; of a rule that keeps what is finite so, nothing is looked at."""
    if rule.keeps_finite:
        rule.merge_into(out, center, contributions, rate, iteration, state)
        return
    former = center.copy() if np.may_share_memory(center, out) else center
    what = f"rule {title_of(type(rule))} at iteration {iteration}"
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rule.merge_into(out, center, contributions, rate, iteration, state)
            finite = bool(np.isfinite(out).all()) and state.is_finite
        problem = "" if finite else "it made a center or a state that is not finite"
    except SpeedoError:
        raise
    except Exception as error:
        problem = f"it raised {type(error).__name__}: {error}"
    if problem:
        np.copyto(out, former)
        raise TrainingStopped(f"{what}: {problem}; correct the rule, or its options")


# ---------------------------------------------------------------- arithmetic


class scratch_blocks:
    """Blocks for intermediate results, reused: allocating fresh pages takes longer than the arithmetic."""

    def __init__(self, count: int) -> None:
        self._taken = [
            _spare.pop() if _spare else np.empty(BLOCK, np.float32) for _ in range(count)
        ]

    def __enter__(self) -> list[Vector]:
        return self._taken

    def __exit__(self, *error: object) -> None:
        _spare.extend(self._taken)


def blocks(size: int) -> Iterator[slice]:
    """The blocks of a vector of this many values."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def add_scaled(center: Vector, vector: Vector, factor: float, out: Vector | None = None) -> None:
    """out = center + factor * vector; in place without `out`."""
    out = center if out is None else out
    if factor == 1.0:
        np.add(center, vector, out=out)
        return
    scale = np.float32(factor)
    with scratch_blocks(1) as (scratch,):
        for block in blocks(center.size):
            part = scratch[: block.stop - block.start]
            np.multiply(vector[block], scale, out=part)
            np.add(center[block], part, out=out[block])


def add_mean(
    center: Vector, contributions: Sequence[Contribution], rate: float, out: Vector | None = None
) -> None:
    """out = center + rate * sum_w (samples_w / samples) vector_w; in place without `out`.

    The mean is computed before it is added to the center: added one by one, each vector would be rounded to the
    precision of the weights, which is a ten-thousandth of a small step.
    """
    out = center if out is None else out
    factors, after = shares_of([one.samples for one in contributions], rate)
    with scratch_blocks(1) as (mean,):
        for block in blocks(center.size):
            part = mean[: block.stop - block.start]
            sum_into(part, [one.vector[block] for one in contributions], factors, after)
            np.add(center[block], part, out=out[block])


def mean_into(out: Vector, contributions: Sequence[Contribution]) -> None:
    """out = sum_w (samples_w / samples) vector_w; `out` is none of these vectors."""
    factors, after = shares_of([one.samples for one in contributions], 1.0)
    sum_into(out, [one.vector for one in contributions], factors, after)


def shares_of(samples: Sequence[int], rate: float) -> tuple[list[np.float32], np.float32]:
    """The factors of vectors that are summed, and that of their sum: the products are rate * samples_w / samples.

    If all counts are equal, the sum alone is scaled: one pass for each vector instead of two.
    """
    total = sum(samples)
    factors = [np.float32(rate * own / total) for own in samples]
    if len(factors) > 1 and len(set(factors)) == 1:
        return [np.float32(1.0)] * len(factors), factors[0]
    return factors, np.float32(1.0)


def sum_into(
    out: Vector, vectors: Sequence[Vector], factors: Sequence[np.float32], after: np.float32
) -> None:
    """out = after * sum_w factor_w vector_w; `out` may be the first of the vectors."""
    with scratch_blocks(1) as (scratch,):
        for block in blocks(out.size):
            part, others = out[block], list(zip(vectors, factors, strict=True))
            first, factor = others.pop(0)
            if factor == 1.0 and others and others[0][1] == 1.0:
                np.add(first[block], others.pop(0)[0][block], out=part)
            else:
                np.multiply(first[block], factor, out=part)
            for vector, factor in others:
                if factor == 1.0:
                    part += vector[block]
                else:
                    part += np.multiply(vector[block], factor, out=scratch[: part.size])
            if after != 1.0:
                part *= after


def add_sums(
    center: Vector,
    places: Sequence[slice],
    before: Sequence[Vector],
    contributions: Sequence[Contribution],
    rate: float,
) -> None:
    """Merge the running sums of Caffe's BatchNorm, at these places: whatever the rule has made of them is overwritten.

    center = before + rate * sum_w (samples_w / samples) change_w. Sums and their count change by the same factor, so
    each mean stays one. A rule with a momentum, or a correction for steps of weights, would not keep them so.
    """
    if not places:
        return
    total = sum(one.samples for one in contributions)
    for place, former in zip(places, before, strict=True):
        change = sum(
            one.samples / total * one.vector[place].astype(np.float64) for one in contributions
        )
        center[place] = former + rate * change


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
    is between them. In float64, so a value that all agree on stays as it is.
    """
    if not places:
        return
    total = sum(one.samples for one in contributions)
    since = sum(one.samples * max(0, one.merges_since) for one in contributions) / total
    share = 1.0 / (1.0 + since)
    for place, former in zip(places, before, strict=True):
        merged = (1.0 - share) * former.astype(np.float64)
        for one in contributions:
            merged += share * one.samples / total * one.vector[place].astype(np.float64)
        center[place] = merged
