"""What is seen of a run with faults, and what its log says afterwards."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from speedo.master.reasons import RUN_OVER
from tests.support.record_counts import RecordCounts


@dataclass
class Kill:
    """One fault, `at` seconds after the begin, when `records` were merged; `pause` is None within that of another.

    `back_s` is the time until all workers were in the run again, None if none was seen to be missing. Until the next
    fault the workers lacked `missing_s` seconds, all of them together.
    """

    kind: str
    at: float
    records: int
    pause: float | None = None
    missed: bool = False
    back_s: float | None = None
    missing_s: float = 0.0


@dataclass
class Seen:
    """What was seen of a run: records merged in `seconds`, what was killed, and what went wrong.

    `present_s` has the seconds in which so many workers were in the run, `merged` the records merged meanwhile;
    `points` are seconds, workers in the run and records, for a picture. `unmerged` counts the results that were not
    merged, by decision. `lost` and `repeated` are records of epochs that are over, not trained or more than once.
    """

    seconds: float = 0.0
    records: int = 0
    kills: list[Kill] = field(default_factory=list)
    present_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    merged: Counter[int] = field(default_factory=Counter)
    points: list[tuple[float, int, int]] = field(default_factory=list)
    restarts: int = 0
    unmerged: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    repeated: int = 0
    accuracy: float = float("nan")
    problems: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.records / self.seconds

    def goodput(self, workers: int, calm: float) -> float:
        """Against `calm` records/s; of more than so many workers at once only the share of these counts."""
        shares = [count * min(1.0, workers / max(here, 1)) for here, count in self.merged.items()]
        return sum(shares) / self.seconds / calm

    @property
    def present(self) -> float:
        """Workers in the run, on average."""
        return sum(count * seconds for count, seconds in self.present_s.items()) / self.seconds

    def look(self, now: float, here: int, workers: int, passed: float = 0.0) -> None:
        """So many of the `workers` were in the run for the seconds that `passed`, `now` seconds after the begin."""
        for one in self.kills:
            one.missed |= here < workers
            if one.missed and one.back_s is None and here >= workers:
                one.back_s = now - one.at
        for one in self.kills[-1:]:
            one.missing_s += max(0, workers - here) * passed

    def count(self, lines: Sequence[dict[str, Any]], records: int) -> None:
        """Take from the run's log what was not merged before its end, and how often it has each record of an epoch."""
        self.restarts = sum(line["event"] == "resumed" for line in lines)
        for line in lines:
            if line["event"] == "result" and line["decision"] != "merged":
                self.unmerged[line["decision"]] += line["reason"] != RUN_OVER
        trained = trained_records(lines)
        last = max((epoch for epoch, _ in trained), default=0)
        for epoch in range(last - 1):
            found = [trained[epoch, place] for place in range(records)]
            if set(found) != {1}:
                never, twice = found.count(0), sum(one > 1 for one in found)
                self.lost, self.repeated = self.lost + never, self.repeated + twice
                self.problems.append(
                    f"epoch {epoch}: {never} of {records} records are not trained, {twice} twice or more"
                )


def trained_records(lines: Sequence[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """How often each record of each epoch was trained; what was undone is not counted."""
    undone = {0: sys.maxsize}  # by epoch of the run: merges behind this version are
    for line in lines:
        if line["event"] == "resumed":
            undone = {begun: min(version, line["version"]) for begun, version in undone.items()}
            undone[line["epoch"]] = sys.maxsize
    epoch, counts = 0, RecordCounts()
    for line in lines:
        if line["event"] == "resumed":
            epoch = line["epoch"]
        elif line.get("decision") == "merged" and line["version"] <= undone[epoch]:
            counts.add(line.get("records", ()))
    return counts.trained
