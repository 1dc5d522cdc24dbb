"""Passes what happens in a run to exporters in a thread, so that the driver never waits for their files."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from speedo.exchange.vector import Vector
from speedo.messages import Action, Evaluate, Event, Finish, Merge
from speedo.watch.export.base import CenterCopy, Exporter, Told

LOOK_S: Final = 0.25  # between two looks at what has happened
# Events and actions; a file system that hangs must not fill the memory.
MOST_WAITING: Final = 100_000
FAILED: Final = "failed"  # the problem of an exporter that is left out
CLOSE_S: Final = 10.0  # for the rest to be written at the end


class Background:
    """An observer of the driver: it only queues events, a thread passes them on.

    `tell` is called for each problem of an exporter, and when it is over. An exporter that fails is left out from then
    on. Neither ends the run.
    """

    def __init__(self, exporters: Sequence[Exporter], tell: Callable[[str], None]) -> None:
        self._exporters, self._tell = list(exporters), tell
        self._problems: dict[int, str] = {}
        self._waiting: deque[tuple[Told, float]] = deque()
        self._lost = False
        self._owned = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporters", daemon=True)
        self._thread.start()

    def saw(self, event: Event, now: float) -> None:
        self.hand(event, now)

    def did(self, action: Action, now: float) -> None:
        self.hand(action, now)

    def hand(self, told: Told, now: float) -> None:
        """Note it; returns at once."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((told, now))
        else:
            self._lost = True

    def disown(self) -> None:
        """Write nothing more: the files are another master's."""
        self._owned = False

    def close(self) -> None:
        """Write the rest and close the files; gives up on a file system that hangs."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._hand_over()
        self._hand_over()
        for place, exporter in self._working():
            self._try(place, exporter, exporter.close)

    def _hand_over(self) -> None:
        while self._waiting and self._owned:
            told, now = self._waiting.popleft()
            for place, exporter in self._working():
                self._try(place, exporter, exporter.take, told, now)
        for place, exporter in self._working():
            before, problem = self._problems.get(place, ""), exporter.problem
            if bool(problem) != bool(before):
                self._tell(
                    f"warning: {problem}" if problem else f"{exporter.name} is written again"
                )
            self._problems[place] = problem
        if self._lost:
            self._lost = False
            names = [exporter.name for _, exporter in self._working()]
            self._tell(f"warning: gaps in {' and '.join(names)}")

    def _working(self) -> list[tuple[int, Exporter]]:
        """The exporters that have not failed, with their places."""
        return [
            (place, one)
            for place, one in enumerate(self._exporters)
            if self._problems.get(place) != FAILED
        ]

    def _try(
        self, place: int, exporter: Exporter, call: Callable[..., None], *arguments: Any
    ) -> None:
        try:
            call(*arguments)
        except Exception as error:  # whatever a library raises, the run continues
            self._problems[place] = FAILED
            self._tell(f"warning: {exporter.name} has failed and stops writing: {error!r}")


class CenterCopies:
    """An observer that copies the center whenever it is tested, and at the end; skips it while a copy waits.

    `center` gives the vector; the copy is made in the driver's thread.
    """

    def __init__(self, center: Callable[[], Vector], background: Background) -> None:
        self._center, self._background = center, background
        self._iteration = 0

    def saw(self, event: Event, now: float) -> None:
        """No event changes the center."""

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            self._iteration = action.iteration
        elif isinstance(action, Evaluate | Finish):
            self._background.hand(CenterCopy(self._iteration, self._center().copy()), now)
