"""Decides when a worker that died is restarted, and how many workers each host should run. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
HEALTHY_S: Final = 60.0
AT_WORK_S: Final = 15.0


class Restarts:
    """Counts one worker's deaths in a row, or the master's; it is restarted up to `most` times.

    One that was up for `healthy_s` seconds died of something new; after `at_work_s` it is started again at once.
    """

    def __init__(
        self, most: int, *, healthy_s: float = HEALTHY_S, at_work_s: float = AT_WORK_S
    ) -> None:
        self._most, self._deaths, self._doublings = most, 0, 0
        self._healthy_s, self._at_work_s = healthy_s, at_work_s

    def pause_after(self, up_s: float) -> float | None:
        """Seconds to wait before a restart, after the worker ran `up_s` seconds; None: do not restart it."""
        if up_s >= self._healthy_s:
            self._deaths = 0
        self._deaths += 1
        if self._deaths > self._most:
            return None
        if up_s >= self._at_work_s:
            self._doublings = 0
            return 0.0
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._doublings, 10))
        self._doublings += 1
        return pause

    @property
    def used(self) -> int:
        """Restarts since it was last healthy."""
        return min(self._deaths, self._most)


def spread(wanted: int, present: Mapping[str, int], cores: Mapping[str, int]) -> dict[str, int]:
    """Workers per host, `wanted` in all, with as few changes as possible.

    A worker is added on the host with the fewest workers per core, and removed from the host with the most.
    """
    counts = dict(present)
    while counts and sum(counts.values()) < wanted:
        host = min(counts, key=lambda name: ((counts[name] + 1) / cores[name], name))
        counts[host] += 1
    while sum(counts.values()) > max(wanted, 0):
        host = max(counts, key=lambda name: (counts[name] / cores[name], name))
        counts[host] -= 1
    return counts
