"""A run's events for a program: what its log says, as records with which functions of the user's are called."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.run_dir.directory import METRICS
from speedo.run_dir.events import (
    CheckpointWritten,
    LogFollower,
    ModelTested,
    ResultMerged,
    RunEvent,
    WorkerJoined,
    WorkerLeft,
)

# Which callback reports a record of the log; the others are not reported.
CALLBACKS: Final[Mapping[type, str]] = {
    ResultMerged: "on_result",
    ModelTested: "on_test",
    WorkerJoined: "on_join",
    WorkerLeft: "on_leave",
    CheckpointWritten: "on_checkpoint",
}


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions that a caller gives. Raises `ConfigError` for what cannot be called."""

    on_result: Callable[[ResultMerged], object] | None = None
    on_test: Callable[[ModelTested], object] | None = None
    on_join: Callable[[WorkerJoined], object] | None = None
    on_leave: Callable[[WorkerLeft], object] | None = None
    on_checkpoint: Callable[[CheckpointWritten], object] | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value!r:.60}: give a function that takes one event, or leave it out"
            for name, value in self._given()
            if not callable(value)
        ]
        if problems:
            raise ConfigError(problems)

    def __bool__(self) -> bool:
        return bool(self._given())

    def _given(self) -> list[tuple[str, Any]]:
        there = [(one.name, getattr(self, one.name)) for one in fields(self)]
        return [(name, value) for name, value in there if value is not None]


class CallbackError(Exception):
    """What a callback raised, as `error`; `str` is a sentence that names the callback."""

    def __init__(self, name: str, error: BaseException) -> None:
        words = " ".join(str(error).split())
        super().__init__(f"{name}: {type(error).__name__}{f': {words}' if words else ''}"[:300])
        self.error = error


class LogCallbacks:
    """Calls the functions for the lines that a run's log gains."""

    def __init__(self, callbacks: Callbacks, run_dir: Path, begin: int, epoch: int = 0) -> None:
        """From byte `begin` of the log on, which is what `length_of_log` said; `epoch` is the master's."""
        self._callbacks, self._log = callbacks, LogFollower(run_dir, begin, epoch)
        self._events: deque[RunEvent] = deque()

    def call_one(self) -> bool:
        """Call for the next record; whether there was one. Raises `CallbackError` for what the function raises."""
        if not self._events:
            self._events.extend(self._log.new())
        if not self._events:
            return False
        event = self._events.popleft()
        name = CALLBACKS.get(type(event), "")
        if name and (function := getattr(self._callbacks, name)):
            try:
                function(event)
            except (Exception, SystemExit) as error:
                raise CallbackError(name, error) from error
        return True


def length_of_log(run_dir: Path) -> int:
    """Bytes of the whole lines that the log has now; a master that resumes the run keeps these."""
    try:
        data = (run_dir / METRICS).read_bytes()
    except OSError:
        return 0
    return data.rfind(b"\n") + 1
