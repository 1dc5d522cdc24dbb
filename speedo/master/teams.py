"""Teams in the coordinator's books: workers that do their turns together, and how many rounds they do at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from speedo.messages import Left, Part, Trained
from speedo.sgd_modes.rules import MergeRule, TakeCenter

# Such a report makes a stretch 5 s long: where rounds take longer, the link has time for it.
MOST_FOR_BYTES_S: Final = 0.1
MOST_TO_BEGIN_S: Final = 0.1  # likewise
AGREE_S: Final = 2.0  # between two rounds after which a stretch may end, as a member is to leave
MOST_BROKEN: Final = 8  # stretches in a row; a worker whose results are bad is set aside before


@dataclass(slots=True)
class Stretch:
    """A turn that the members of a team do together; `void` is why its results do not count, empty if they do.

    `tests` counts the members that wait for what it comes to, to test that; `left` are those that have trained all that
    they had, and have answered. `broken` is why it ends early: the rounds that one member knows to be whole count then
    for all. `steps` has one step of each member, if that is so.
    """

    unit: int
    rule: MergeRule
    workers: tuple[int, ...]
    rounds: int = 1
    void: str = ""
    tests: int = 0
    left: list[Left] = field(default_factory=list)
    broken: str = ""
    steps: list[Part] = field(default_factory=list)
    begin_s: float = 0.0  # until the slowest member had the center
    owing: set[int] = field(default_factory=set)
    _trained: dict[int, Part] = field(default_factory=dict)
    _results: dict[int, Trained] = field(default_factory=dict)  # those with a payload

    def __post_init__(self) -> None:
        self.owing = set(self.workers)

    @property
    def result(self) -> Trained | None:
        """The first that has a payload, the leader's if that lives; none that lacks a round that another has made."""
        least = max((part.steps for part in self.parts), default=0) if self.broken else 0
        having = [one for one in self.workers if one in self._results]
        return next(
            (self._results[one] for one in having if self._trained[one].steps >= least), None
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The results that have come, in the order of summing."""
        return tuple(self._trained[worker] for worker in self.workers if worker in self._trained)

    @property
    def merged(self) -> tuple[Part, ...]:
        """The parts of its merge. What one has made, all have: also who has died or did not hear the last sum."""
        found, result = dict(self._trained), self.result
        loss, most = (
            sum(part.loss for part in self.parts) / len(found),
            max(part.steps for part in self.parts),
        )
        for one in self.steps if self.broken else ():
            part = found.get(one.worker, replace(one, loss=loss))
            samples = most * one.samples
            found[one.worker] = replace(part, samples=samples, steps=most)
        leader = None if result is None else result.worker
        in_order = [found[worker] for worker in self.workers if worker in found]
        return tuple(
            replace(part, summed_by=None if part.worker == leader else leader) for part in in_order
        )

    def has_answer_of(self, worker: int) -> bool:
        """Whether this member has answered, and others have not."""
        return worker in self.workers and worker not in self.owing

    def take(self, part: Part, event: Trained) -> bool:
        """A member has answered; whether all have."""
        self._trained[part.worker] = part
        self.begin_s = max(self.begin_s, event.timings.get("fetch", 0.0))
        self.owing.discard(part.worker)
        self.broken = self.broken or event.broken
        if event.has_payload:
            self._results[part.worker] = event
        return not self.owing

    def lose(self, worker: int, why: str) -> bool:
        """A member is gone; whether nobody's answer is waited for now."""
        self.owing.discard(worker)
        self._results.pop(worker, None)
        self.broken = self.broken or why
        return not (self.owing and self.steps and self.rounds > 1)

    @property
    def outcome(self) -> Trained | None:
        """The result that counts, if there is one; of a turn that was ended early, if it had several rounds."""
        counts = not self.owing and (not self.broken or (self.steps and self.rounds > 1))
        return self.result if counts else None

    def forget(self, worker: int) -> None:
        """What this member answered is accounted for elsewhere."""
        self._trained.pop(worker, None)
        self._results.pop(worker, None)


@dataclass(slots=True)
class TeamUnit:
    """The workers that can meet, as the one unit that the strategy knows.

    `meets` is their place; empty if they are of all hosts. `members` train in its next turn. `owing` still have to
    answer for a stretch that is void. `formed` names the gathering whose connections they use, 0 if they have to
    connect again. A round of the last stretch took `round_s` seconds, to begin it `begin_s`, until the slowest member
    was there, and its report `report_s`, with what beginning takes each time; it `spans` several hosts. `broken` counts
    the stretches in a row that came to nothing with the same members, who are `tried`. It has trained `calm_s` seconds
    since a stretch was void or broken, and some `between_s` between two that were.
    """

    meets: str
    members: set[int] = field(default_factory=set)
    owing: set[int] = field(default_factory=set)
    joined: bool = False
    formed: int = 0
    stretch: Stretch | None = None
    round_s: float = 0.0
    begin_s: float = 0.0
    report_s: float = 0.0
    spans: bool = False
    alone: TakeCenter | None = None
    broken: int = 0
    tried: tuple[tuple[int, int, int], ...] = ()
    calm_s: float = 0.0
    between_s: float = math.inf

    @property
    def awaited(self) -> set[int]:
        """Members that still have to answer for a stretch that others have ended."""
        stretch = self.stretch
        return stretch.owing if stretch is not None and stretch.broken else self.owing

    @property
    def is_given_up(self) -> bool:
        """Whether its members cannot work together: each reports to the master by itself then."""
        return self.broken >= MOST_BROKEN

    def tries(self, members: tuple[tuple[int, int, int], ...], *, spans: bool) -> None:
        """These, as in `Team.members`, are about to do a stretch."""
        if members != self.tried:
            self.broken = 0
        self.tried, self.spans = members, spans

    def times(self, hosts: int, *, far: bool) -> tuple[float, float, float]:
        """Seconds of a round, of its report, and between two stretches that are void.

        A leader far from the master reports in its part of a link's bytes: in a round each link carries
        2 (hosts - 1) / hosts vectors each way, a report is one.
        """
        report_s = self.report_s
        if far and hosts > 1:
            as_bytes = self.round_s * hosts / (2 * (hosts - 1))
            report_s = max(report_s, min(as_bytes, MOST_FOR_BYTES_S))
        return self.round_s, report_s, max(self.between_s, self.calm_s)

    @property
    def agree_every(self) -> int:
        """See `Team`: it costs a meeting, of hosts too."""
        return max(1, int(AGREE_S / self.round_s)) if self.round_s else 0

    def add(self, worker: int) -> None:
        """It trains from the next turn on."""
        self.members.add(worker)
        self.formed = 0

    def remove(self, worker: int) -> None:
        """It has left."""
        self.members.discard(worker)
        self.owing.discard(worker)
        self.formed = 0

    def complete(self, stretch: Stretch) -> None:
        """All have answered, and the payload can be merged."""
        self.stretch, self.broken = None, 0
        if stretch.broken:  # it shows no usual times, and who is left has parted
            self.formed = 0
            return self._interrupted()
        assert stretch.result is not None
        made = max(part.steps for part in stretch.parts)  # a member may have ended it
        timings = stretch.result.timings
        publish_s, before_s = timings.get("publish", 0.0), self.begin_s
        self.begin_s = stretch.begin_s
        self.report_s = publish_s + min(before_s, self.begin_s, MOST_TO_BEGIN_S)
        in_rounds = sum(timings.values()) - publish_s - timings.get("fetch", 0.0)
        self.round_s = in_rounds / max(1, min(stretch.rounds, made))
        self.calm_s += in_rounds

    def broke(self) -> None:
        """Its stretch is void."""
        self.stretch = None
        self.broken += 1
        self._interrupted()

    def _interrupted(self) -> None:
        known = self.between_s < math.inf
        self.between_s = (self.between_s + self.calm_s) / 2 if known else self.calm_s
        self.calm_s = 0.0


def spread_of(places: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """`Team.spread` of members that are at these places."""
    hosts: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place, []).append(rank)
    return tuple(map(tuple, hosts.values())) if len(hosts) > 1 else ()
