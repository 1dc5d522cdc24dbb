"""How often each record was trained, by what the workers said of the results that were merged."""

from __future__ import annotations

from collections import Counter

from speedo.messages import Action, Event, Merge, Records, Trained


class RecordCounts:
    """An observer of a run. `trained` counts epoch and record."""

    def __init__(self) -> None:
        self.trained = Counter[tuple[int, int]]()
        self._reported: dict[int, Records] = {}

    def saw(self, event: Event, now: float) -> None:
        if isinstance(event, Trained):
            self._reported.setdefault(event.ticket, event.records)

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            for part in action.parts:
                self.add(self._reported[part.ticket])

    def add(self, records: Records) -> None:
        for epoch, start, stop in records:
            self.trained.update((epoch, number) for number in range(start, stop))

    def twice(self) -> int:
        """How many records were trained more often than once in an epoch."""
        return sum(count > 1 for count in self.trained.values())

    def never(self, records: int, samples: int) -> int:
        """How many of the first `samples` positions were not trained, of epochs with so many records."""
        return sum(divmod(place, records) not in self.trained for place in range(samples))
