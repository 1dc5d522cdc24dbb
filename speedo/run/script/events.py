"""The callbacks of a script: worker 0 calls them between its steps, a script that runs by itself after each step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from speedo.errors import ConfigError
from speedo.run.script.turns import TurnSource
from speedo.run.script_link import Start
from speedo.run_dir.events import ResultMerged
from speedo.watch.callbacks import CallbackError, Callbacks, LogCallbacks, length_of_log

LOOK_S: Final = 0.2  # between two looks at the log
# Lines at once: a function that takes longer than results come must not stop the training.
MOST: Final = 1000


class ScriptEvents:
    """Calls the functions in the script's own thread."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks, self._began = callbacks, time.monotonic()
        self._log: LogCallbacks | None = None
        self._turns: TurnSource | None = None
        self._next = 0.0

    def join(self, start: Start, turns: TurnSource) -> None:
        """From now on follow the run's log, in worker 0. Raises `ConfigError` on another machine than the master's."""
        callbacks, self._callbacks = self._callbacks, Callbacks()
        if not callbacks or start.place.worker != 0:
            return
        if not start.run_dir:
            raise ConfigError(
                "on_result and the like are called by worker 0, on the machine of the master, and worker 0 is on "
                "another one: leave them out, or start workers on the master's machine first"
            )
        folder = Path(start.run_dir)
        self._turns = turns
        self._log = LogCallbacks(callbacks, folder, length_of_log(folder), start.settings.epoch)

    def stepped(self, step: int, loss: float, samples: int) -> None:
        """A step was made, the run's number `step` where the script runs by itself. Raises what a function raises."""
        if (call := self._callbacks.on_result) is not None:
            call(ResultMerged(0, step, step, loss, samples, 0, time.monotonic() - self._began))
        if self._log is not None and time.monotonic() >= self._next:
            self.look(MOST)

    def look(self, most: int | None = None) -> None:
        """Call for this many lines of the log. Raises what a function raises, once the run is over."""
        called = 0
        try:
            while (most is None or called < most) and self._log and self._log.call_one():
                called += 1
        except CallbackError as error:
            assert self._turns is not None
            self._log = None
            self._turns.stop(f"an exception in {error} (worker 0)")
            self._turns.done()
            raise error.error from None
        self._next = time.monotonic() + LOOK_S
