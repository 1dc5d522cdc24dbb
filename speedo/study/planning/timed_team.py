"""What a turn takes that a team does together: one fetch, rounds of steps, meetings and sums, one publication.

The parts are those of `speedo.worker.team_turn`; each round lasts as long as its slowest member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speedo.study.planning.calibration import Calibration
from speedo.study.planning.shared_resources import Job, chain, together

FINITE_SHARE = 0.5  # of `Calibration.check`, which is a checksum and a norm: the norm alone


@dataclass(frozen=True, slots=True)
class TimedTeam:
    """This many `members` on one machine; `compute` takes its processor time, `costs` has the cost of each part."""

    members: int
    compute: Callable[[float], Job]
    costs: Calibration

    def together(self, seconds: float) -> Job:
        """The same work for each member; over when the last has done it."""
        return together(*(self.compute(seconds) for _ in range(self.members)))

    def meeting(self) -> Job:
        """From the last member's arrival until all continue."""
        return self.together(self.costs.meeting * (self.members - 1))

    def rounds(self, count: int, steps: Callable[[], Sequence[Job]], load: float) -> Job:
        """From the fetched center to the sum of the last round. `steps` makes one round's steps, a job per member.

        `load` is what a member takes to put the center into its net. Of a round's sum each member makes its share over
        all members, which is as much work as one payload that the master merges.
        """
        costs = self.costs
        found = [self.meeting(), self.together(load)]
        for number in range(count):
            if number:
                found.append(self.together(load))
            found += [
                together(*steps()),
                self.together(FINITE_SHARE * costs.check),
                self.meeting(),
                self.together(costs.merge),
                self.meeting(),
            ]
        return chain(*found)
