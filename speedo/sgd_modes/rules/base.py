"""The interface to the merge rules: what a rule is given, and what it declares of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from speedo.exchange.vector import Vector
from speedo.messages import Kind
from speedo.sgd_modes.rules.state import NO_STATE, State


@dataclass(frozen=True, slots=True)
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
    only their mean, weighted by samples, so the workers of a host may sum before. `keeps_finite`: from finite vectors
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
    keeps_finite: ClassVar[bool] = False
    option: ClassVar[str] = ""
    usual: ClassVar[str] = ""
    source: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        """What a rule promises of its merge is not inherited by one that merges otherwise."""
        super().__init_subclass__()
        if "merge" in vars(cls):
            for promise in ("by_ranges", "by_mean", "keeps_finite"):
                setattr(cls, promise, vars(cls).get(promise, False))

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

    def state_for(self, size: int, former: State = NO_STATE) -> State:
        """The state to merge with: the `former` one if it is this rule's and of `size` values, else a new one."""
        title = title_of(type(self))
        vectors = former.vectors.items()
        if (
            former.rule == title
            and {name for name, vector in vectors if vector.size == size} == {*self.vectors}
            and former.numbers.keys() == {*self.numbers}
        ):
            return former
        zeros = {name: np.zeros(size, np.float32) for name in self.vectors}
        return State(title, zeros, dict.fromkeys(self.numbers, 0.0))


def title_of(rule: type[MergeRule]) -> str:
    """The rule's name, or that of its class."""
    return rule.name or rule.__name__
