"""What can go wrong, by kind: every message says what is wrong and what to change.

A `SpeedoError` is the user's to mend, so the command line prints its text alone, without a traceback,
and ends with its `exit_code`. Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class SpeedoError(Exception):
    """Base of all errors that a user can mend; `exit_code` is the status of the command."""

    exit_code = 1


class ConfigError(SpeedoError):
    """Options or configuration that cannot work; `problems` holds every one found, a sentence each."""

    exit_code = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class SolverError(ConfigError):
    """A solver or net prototxt, or the data it names, that Caffe would not train from."""


class MachineError(ConfigError):
    """This machine lacks what a run needs, in the words of `speedo doctor`."""

    exit_code = 1


class DataError(SpeedoError):
    """A dataset that is missing, damaged or not of the form that it claims."""


class EngineError(SpeedoError):
    """Caffe failed; the text carries Caffe's own FATAL line where there is one."""


class StoreError(SpeedoError):
    """The store did not do what was asked: the text names the server and the remedy."""


class StoreUnavailableError(StoreError):
    """Trouble that may pass: no connection, no answer in time, no memory left; the call may be repeated."""


class StoreTimeoutError(StoreUnavailableError):
    """The store did not answer within its deadline."""


class StoreAccessError(StoreError):
    """The store knows neither this user nor this password."""


class MissingKeyError(StoreError):
    """The store holds nothing, or nothing complete, under a key."""


class PayloadError(SpeedoError):
    """Bytes that are not the vector they should be: header, length, layout or checksum differ."""


class NotFiniteError(PayloadError):
    """A worker's own result is not finite: unlike a damaged center, that is its own fault."""


class TeamBrokenError(SpeedoError):
    """A member of a team did not come to a meeting: it died, hangs, or had to end its turn."""


class ClusterError(SpeedoError):
    """Master and workers did not come together: address, token, versions or time."""


class TrainingStopped(SpeedoError):
    """A run ended before its work was done; the text gives the reason."""

    exit_code = 3


class CheckpointError(SpeedoError):
    """A checkpoint that cannot be written or read, or a run that cannot be resumed from it."""


class FencedError(SpeedoError):
    """Another master has taken this run over; this one must not write any more."""

    exit_code = 3
