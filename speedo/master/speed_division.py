"""Divides the batch of synchronous training by the speeds at which the workers compute. Pure: no clock.

A round takes as long as its slowest worker, so the best division has all come to the sum at the same time. What a
worker takes from one sum to the next, less its waiting for slower ones, is measured in looks of some seconds. A
division is changed once `LOOKS` in a row say that another one shortens the round by `GAIN`, or by `MORE_GAIN` where
shares are unequal already: what a test or a checkpoint costs for a moment changes nothing, nor does the noise of equal
machines. A step also takes what does not depend on the share, as the solver's update; once two shares of a worker are
measured, this is known. Each change doubles the length of a look, up to `LONGEST_LOOK_S`, so changes are few whatever
the speeds do. A division with which rounds take longer than with the former one, at the speeds of now, is taken back: a
net may send more between hosts if batches are unequal.

A worker whose single record would hold up the others has none, and rests: it makes no step. It is tried with one again
after `REST_S`, then after twice as long, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import inf
from typing import Final

from speedo.system.records import record

LOOK_S: Final = 2.0
LONGEST_LOOK_S: Final = 60.0
LOOKS: Final = 3  # two of them may share what happens between them
FEWEST_STEPS: Final = 2  # of a look
GAIN: Final = 0.1  # of a round's time
# Likewise: the first try does not know what a step takes beside its records.
MORE_GAIN: Final = 0.03
OTHER_SHARE: Final = 0.4  # of the larger one: two shares that differ by so much tell what this is
MOST_FIXED: Final = 0.9  # of a step
LOSS: Final = 0.05  # likewise, after which a division is taken back
OTHER: Final = 1.5  # a speed that changed by this factor is another one
# Times the round of an ideal division: so long even one record takes a slow worker.
HOLDS: Final = 1.5
REST_S: Final = 60.0  # until a worker without records is measured again; each time twice as long


@record
class NewDivision:
    """The records of each worker from now on, and the reason as a sentence."""

    records: Mapping[int, int]
    reason: str


@dataclass(slots=True)
class _Seen:
    """What a worker did in a look: solver steps, their seconds, and these without waiting for slower workers."""

    steps: int = 0
    busy_s: float = 0.0
    whole_s: float = 0.0


@record
class Speed:
    """A step of n records takes `fixed_s + n / rate` seconds."""

    rate: float
    fixed_s: float = 0.0

    def takes(self, records: int) -> float:
        return self.fixed_s + records / self.rate


@dataclass
class SpeedDivision:
    """Decides when the `records` of a step of all `workers` are divided anew.

    A record is `unit` samples of a step; a look at first lasts `look_s`. A worker has from `least` to `most` records.
    """

    records: int
    unit: int = 1
    look_s: float = LOOK_S
    workers: int = 0
    least: int = 1
    most: int = 1 << 31
    gain: float = GAIN
    may: Callable[[], bool] = lambda: True  # else shares are equal
    _present: dict[int, tuple[int, int]] = field(default_factory=dict)  # incarnation, records
    _seen: dict[int, _Seen] = field(default_factory=dict)  # since the look began
    _warm: set[int] = field(default_factory=set)  # who has given a result since the last change
    _agreed: int = 0  # looks in a row that ask for a change
    # And what its rounds took beside computing.
    _former: tuple[Mapping[int, int], float] | None = None
    _useless: Mapping[int, float] = field(default_factory=dict)  # speeds by which it was no gain
    # The records of a step and its seconds, before the last change and now.
    _steps: dict[int, tuple[int, float]] = field(default_factory=dict)
    _before: dict[int, tuple[int, float]] = field(default_factory=dict)
    _resting: Mapping[int, Speed] = field(default_factory=dict)  # as they were when they computed
    _rested_s: float = 0.0
    _rest_s: float = REST_S

    def measured(self, worker: int, steps: int, timings: Mapping[str, float]) -> None:
        """A turn of so many steps took this long; the first one of a division also built and connected something."""
        computed = timings.get("compute", 0.0)
        if worker not in self._warm or steps < 1 or not computed > 0.0:
            self._warm.add(worker)
            return
        seen, team = self._seen.setdefault(worker, _Seen()), timings.get("team", 0.0)
        seen.steps += steps
        seen.busy_s += computed + team - timings.get("wait", team)
        seen.whole_s += computed + team

    def due(
        self, members: Mapping[int, tuple[int, int]], *, may_rest: bool = False
    ) -> NewDivision | None:
        """The division to change to now; `members` are the incarnation and the samples of a step of each worker."""
        present = {one: (which, size // self.unit) for one, (which, size) in members.items()}
        if present != self._present:
            self._begin(present)
            self._steps, self._before = {}, {}
        sizes = {worker: size for worker, (_, size) in present.items()}
        computing, total = [one for one in sizes if sizes[one]], sum(sizes.values())
        own, whole, divides = [sizes[one] for one in computing], total == self.records, self.may()
        if not divides and (not whole or max(own) <= min(own) + 1):
            return None
        # More records than there are have those that rested, and came back by themselves.
        if not (computing and divides) or (len(sizes) == self.workers and total > self.records):
            those = set(sizes) if computing else {*sizes, *range(self.workers)}
            best = divided(self.records, dict.fromkeys(those, Speed(1.0)))
            return self._change(best, f"the batch is divided equally: {_listed(best)} records")
        if len(sizes) < 2 or not whole or not self._look_is_over(computing):
            return None
        seen, self._seen = self._seen, {}
        self._steps = {one: (sizes[one], seen[one].busy_s / seen[one].steps) for one in computing}
        speeds = {**self._resting}
        for one, now in self._steps.items():
            speeds[one] = _speed(*now, *self._before.get(one, now))
        round_s = max(seen[one].whole_s / seen[one].steps for one in computing)
        former, self._former = self._former, None
        if former is not None and (may_rest or all(former[0].values())):
            before_s = _slowest(former[0], speeds) + former[1]
            if round_s > (1.0 + LOSS) * before_s:
                self._useless = _relative(speeds)
                why = "rounds became longer, so the batch is divided as before"
                return self._change(former[0], f"{why}: {_listed(former[0])} records", speeds)
        best = self._best(speeds, may_rest=may_rest)
        gain = self.gain if max(own) <= min(own) + 1 else MORE_GAIN
        shorter = _slowest(best, speeds) <= (1.0 - gain) * _slowest(sizes, speeds)
        besides = sizes, round_s - _slowest(sizes, speeds)
        if not shorter or _alike(self._useless, _relative(speeds)):
            self._agreed = 0
            self._rested_s += max(seen[one].whole_s for one in computing)
            if not self._resting or self._rested_s < self._rest_s:
                return None
            self._rest_s, self._former = 2.0 * self._rest_s, besides
            best = _with_resting(sizes)
            who = " and ".join(f"worker {one}" for one in sorted(self._resting))
            why = f"what {who} could train is measured again"
            return self._change(best, f"{why}: {_listed(best)} records", speeds)
        self._agreed += 1
        if self._agreed < LOOKS:
            return None
        self._former = besides
        return self._change(best, _by_speed(best, speeds), speeds)

    def _begin(self, present: dict[int, tuple[int, int]]) -> None:
        """The workers are others, or have other shares: what was measured says nothing of them."""
        self._present, self._former, self._agreed = present, None, 0
        self._seen, self._warm = {}, set()

    def _look_is_over(self, computing: Sequence[int]) -> bool:
        """A worker that is tried again may hold up the others: so that look is short."""
        seen = [self._seen.get(worker, _Seen()) for worker in computing]
        before = {} if self._former is None else self._former[0]
        tries = any(before.get(worker) == 0 for worker in computing)
        long = max(one.whole_s for one in seen) >= (LOOK_S if tries else self.look_s)
        return long and all(one.steps >= FEWEST_STEPS for one in seen)

    def _best(self, speeds: Mapping[int, Speed], *, may_rest: bool) -> dict[int, int]:
        best = divided(self.records, speeds, self.least, self.most)
        while may_rest:
            limit_s = (1.0 - GAIN) * _slowest(best, speeds)
            left = {one: it for one, it in speeds.items() if best[one] and it.takes(1) < limit_s}
            without = dict.fromkeys(speeds, 0) | (divided(self.records, left) if left else {})
            if not left or _slowest(without, speeds) > limit_s:
                break
            best = without
        return best

    def _change(
        self, records: Mapping[int, int], reason: str, speeds: Mapping[int, Speed] | None = None
    ) -> NewDivision:
        former = self._former
        self._begin({one: (which, records[one]) for one, (which, _) in self._present.items()})
        self._former, self._before = former, self._steps
        self._resting = {one: it for one, it in (speeds or {}).items() if not records.get(one)}
        self._rested_s = 0.0
        self.look_s = min(2.0 * self.look_s, LONGEST_LOOK_S)
        return NewDivision(records, reason)


def _speed(records: int, step_s: float, others: int, other_s: float) -> Speed:
    """Of a worker whose step took `step_s` with `records`, and `other_s` with others, or with as many."""
    more = records - others
    if abs(more) > OTHER_SHARE * max(records, others) and (step_s - other_s) / more > 0.0:
        each_s = (step_s - other_s) / more
        each_s = min(max(each_s, (1.0 - MOST_FIXED) * step_s / records), step_s / records)
        return Speed(1.0 / each_s, step_s - records * each_s)
    return Speed(records / step_s)


def divided(
    records: int, speeds: Mapping[int, Speed], least: int = 1, most: int = 1 << 31
) -> dict[int, int]:
    """From `least` to `most` records for each worker, so that the slowest is done as early as possible."""
    shares = dict.fromkeys(sorted(speeds), least)
    ends = [(speed.takes(least + 1), one) for one, speed in speeds.items()]
    heapify(ends)
    for _ in range(records - least * len(shares)):
        _, one = ends[0]
        shares[one] += 1
        full = shares[one] >= most
        heapreplace(ends, (inf if full else speeds[one].takes(shares[one] + 1), one))
    return shares


def _with_resting(sizes: Mapping[int, int]) -> dict[int, int]:
    """A record for each that has none, of those with most."""
    shares = {one: max(size, 1) for one, size in sizes.items()}
    for _ in range(sum(shares.values()) - sum(sizes.values())):
        shares[max(shares, key=lambda one: (shares[one], -one))] -= 1
    return shares


def _slowest(sizes: Mapping[int, int], speeds: Mapping[int, Speed]) -> float:
    """Seconds of the longest step."""
    return max(speeds[worker].takes(size) for worker, size in sizes.items() if size)


def _relative(speeds: Mapping[int, Speed]) -> dict[int, float]:
    """Their rates as parts of the largest."""
    most = max(speed.rate for speed in speeds.values())
    return {worker: speed.rate / most for worker, speed in speeds.items()}


def _alike(these: Mapping[int, float], those: Mapping[int, float]) -> bool:
    if these.keys() != those.keys():
        return False
    return all(1 / OTHER < these[one] / those[one] < OTHER for one in these)


def _listed(records: Mapping[int, int]) -> str:
    sizes = [str(size) for _, size in sorted(records.items())]
    return "+".join(sizes[:8] + ["..."] * (len(sizes) > 8))


def _by_speed(records: Mapping[int, int], speeds: Mapping[int, Speed]) -> str:
    relative = _relative(speeds)
    slowest = min(relative, key=lambda one: (relative[one], one))
    text = (
        f"the batch is divided anew by the workers' speeds: {_listed(records)} records; worker {slowest} computes at "
        f"{relative[slowest]:.2g} of the fastest one's speed"
    )
    single_s, longest = speeds[slowest].takes(1), _slowest(records, speeds)
    ideal = sum(records.values()) / sum(speed.rate for speed in speeds.values())
    if not records[slowest]:
        text += (
            f"; it trains nothing for now: even a single record takes it {single_s:.2g} s, and the others need "
            f"{longest:.2g} s"
        )
    elif records[slowest] == 1 and longest > HOLDS * ideal:
        text += (
            f"; even its single record takes {longest:.2g} s, and the others need {ideal:.2g} s: the run is faster "
            "without it"
        )
    return text
