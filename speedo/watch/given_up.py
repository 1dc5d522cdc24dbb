"""Which workers were given up, and which records nobody has read since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from speedo.system.bounds import DataShare

GIVEN_UP: Final = "gone, given up"  # how a host's word on such a worker begins
_OTHERS: Final = {
    "once": "trained its records",
    "offset": "read all records",
    "same": "read all records",
}


@dataclass(slots=True)
class _Absence:
    worker: int
    cause: str
    since: int
    shards: int
    until: int | None = None


@dataclass(slots=True)
class GivenUp:
    """The workers that do not come back, with the iterations at which their shards were nobody's.

    There are `shards` shards of the data; 0 if that is not known.
    """

    shards: int = 0
    _absences: list[_Absence] = field(default_factory=list)

    def add(self, worker: int, cause: str, iteration: int) -> None:
        """This worker is given up; only the first cause counts."""
        if not any(one.worker == worker and one.until is None for one in self._absences):
            self._absences.append(_Absence(worker, cause, iteration, self.shards))

    def replaced(self, worker: int, iteration: int) -> None:
        """Another worker has its slot."""
        for one in self._absences:
            if one.worker == worker and one.until is None:
                one.until = iteration

    def redistributed(self, shards: int, iteration: int) -> None:
        """The workers that are left have the data in so many shards now."""
        self.shards = shards
        for one in self._absences:
            one.until = iteration if one.until is None else one.until

    def words(self, share: DataShare | None, records: int | None, reason: str = "") -> str:
        """What is to be said at the end of the run; empty if none was given up. `share` is None for scripts.

        A worker whose end is the `reason` for the run's is left out.
        """
        told = [one for one in self._absences if not reason or one.cause not in reason]
        return "; ".join(_words(one, share, records) for one in told)


def _words(one: _Absence, share: DataShare | None, records: int | None) -> str:
    text = f"worker {one.worker} was given up at iteration {one.since} ({one.cause})"
    if share is None:
        return text
    if share in _OTHERS:
        return f"{text}; the others {_OTHERS[share]}"
    part = f", {records // one.shards:,} of {records:,} records," if records and one.shards else ""
    until = "after that" if one.until is None else f"from there to iteration {one.until}"
    return f"{text}: its share of the data{part} was not read {until}"
