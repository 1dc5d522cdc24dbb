"""The exceptions of SpeeDO: every message says what is wrong and what to change.

The user can fix the cause of a `SpeedoError`, so the command line prints its text without a traceback and exits with
its `exit_code`. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

from caffenets.errors import (
    HIDDEN,
    ConfigError,
    DataError,
    EngineError,
    NetError,
    SolverError,
    hide_secrets,
)

__all__ = ["HIDDEN", "ConfigError", "DataError", "EngineError", "SolverError", "hide_secrets"]
SpeedoError = NetError


class MachineError(ConfigError):
    """The machine lacks what a run needs; the message is that of `speedo doctor`."""

    exit_code = 1


class RunInterrupted(EngineError):
    """What a run needs besides its workers is gone: its master, Ray or Redis. The command may continue the run.

    `why` is the text without the way to continue by hand.
    """

    def __init__(self, why: str, way_on: str = "") -> None:
        super().__init__(f"{why}{way_on}")
        self.why = hide_secrets(why)

    def __reduce__(self) -> tuple[type[RunInterrupted], tuple[str, str]]:
        return type(self), (self.why, str(self).removeprefix(self.why))


class StoreError(SpeedoError):
    """The store did not do what was asked: the text names the server and the remedy."""


class StoreUnavailableError(StoreError):
    """A passing problem: no connection, no reply in time, no memory left; the call may be repeated."""


class StoreCrowdedError(StoreUnavailableError):
    """The store has no room for one more connection at this moment."""


class StoreTimeoutError(StoreUnavailableError):
    """The store did not answer within its deadline."""


class StoreAccessError(StoreError):
    """The store does not accept this user and password."""


class MissingKeyError(StoreError):
    """The store holds nothing, or nothing complete, under a key."""


Fault = Literal["", "format", "kind", "dtype", "layout", "length", "checksum"]


class PayloadError(SpeedoError):
    """Bytes that are not the expected vector. `fault` says what differs; empty for what is no property of a vector."""

    def __init__(self, text: str, fault: Fault = "") -> None:
        super().__init__(text)
        self.fault = fault

    def __reduce__(self) -> tuple[type[PayloadError], tuple[str, Fault]]:
        return type(self), (str(self), self.fault)


NOT_FINITE: Final = (
    "it is not finite (NaN or infinity): training diverges there; "
    "lower the learning rate or the momentum"
)


class NotFiniteError(PayloadError):
    """A worker's own result is not finite: unlike a damaged center, that is its own fault."""


class TeamBrokenError(SpeedoError):
    """A member of a team did not come to a meeting: it died, hangs, or had to end its turn."""


class ClusterError(SpeedoError):
    """Master and workers could not connect: address, token, versions or time."""


class ScriptMistake(ConfigError):
    """What a script does wrong in the same way in each worker, so that starting one again does not help."""


class TrainingStopped(SpeedoError):
    """A run ended before its work was done; the text gives the reason."""

    exit_code = 3


class CheckpointError(SpeedoError):
    """A checkpoint that cannot be written or read, or a run that cannot be resumed from it."""


class FencedError(SpeedoError):
    """Another master has taken over this run; this one must not write any more."""

    exit_code = 3


class Meaning(Enum):
    """What an error of a store or of Ray means for the call that failed; one place for each of the two decides it."""

    AGAIN = "again"
    """The other side may answer later: repeat the call until the patience of the run is over."""
    GONE = "gone"
    """The other side will not answer any more: it has ended, and something else has to take its part."""
    FENCED = "fenced"
    """Another master has the run: write nothing more."""
    BUG = "bug"
    """An error in the code that was called, or in this one: it keeps its traceback."""
