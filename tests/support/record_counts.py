"""How often each record was trained, by what the workers said of the results that were merged."""

from __future__ import annotations

from collections import Counter

from speedo.messages import Action, Event, Merge, Records, Trained


class RecordCounts:
    """An observer of a run. `trained` counts epoch and record, `untold` the results of turns that a death has ended."""

    def __init__(self) -> None:
        self.trained = Counter[tuple[int, int]]()
        self._reported: dict[int, Records] = {}
        self.untold = 0

    def saw(self, event: Event, now: float) -> None:
        if isinstance(event, Trained) and not event.broken:
            self._reported.setdefault(event.ticket, event.records)

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            for part in action.parts:
                # Of who has died, or could not know all rounds, the master says it.
                self.untold += part.ticket not in self._reported
                self.add(self._reported.get(part.ticket, part.records))

    def add(self, records: Records) -> None:
        for epoch, start, stop in records:
            self.trained.update((epoch, number) for number in range(start, stop))

    def twice(self) -> int:
        """How many records were trained more often than once in an epoch."""
        return sum(count > 1 for count in self.trained.values())

    def never(self, records: int, samples: int) -> int:
        """How many of the first `samples` positions were not trained, of epochs with so many records."""
        return sum(divmod(place, records) not in self.trained for place in range(samples))
