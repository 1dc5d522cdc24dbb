"""What a master asks of its servers and what they answer, and how the questions reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from speedo.exchange.served_vectors import Stores
from speedo.messages import Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule


@dataclass(frozen=True, slots=True)
class Load:
    """Take this version of the center, which is in the store. Answer: None."""

    version: int


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Hold the payload of this result. Answer: its squared norm, or `Refused`."""

    event: Trained
    rule: MergeRule


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the mean gradient of this merge, for a solver that clips. Answer: its squared norm in this range."""

    action: Merge


@dataclass(frozen=True, slots=True)
class Combine:
    """Merge payloads that are held, and publish; `earlier` merges go before it and are not published.

    `squared_norm` is that of the mean gradient over all ranges, after `Prepare`. Answer: `Combined`.
    """

    action: Merge
    iteration_before: int
    squared_norm: float | None = None
    earlier: tuple[tuple[Merge, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Combined:
    """The seconds that a server's part of these merges took, by the names in the log."""

    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete versions that nobody reads any more, and payloads (worker, ticket). Answer: None."""

    versions: tuple[int, ...] = ()
    payloads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """Publish the present version again if the store has lost it. Answer: None.

    With `whole` what the solver's update and the merge rule keep goes beside it.
    """

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """Write a little into the store. Answer: how many outages of it have ended."""


Request = Load | TakeIn | Prepare | Combine | Clear | Restore | Probe
Answer = int | float | Combined | Refused | None


def slowest(answers: Iterable[Answer]) -> dict[str, float]:
    """The seconds of the slowest server in each part of a merge."""
    found: dict[str, float] = {}
    for answer in answers:
        if isinstance(answer, Combined):
            for name, seconds in answer.seconds.items():
                found[name] = max(found.get(name, 0.0), seconds)
    return found


class Pending(Protocol):
    """What all servers were asked at once, and have perhaps not answered yet."""

    def done(self) -> bool:
        """Whether all have answered, or failed."""
        ...

    def when_done(self, then: Callable[[], None]) -> None:
        """Call this once, in whatever thread, as soon as `done`."""
        ...

    def answers(self) -> Sequence[Answer]:
        """Wait for all; an error of ours that one raised is raised here, and `RunInterrupted` if one is lost."""
        ...


class Servers(Protocol):
    """Who carries requests to the servers: each of them does its requests in the order in which they were made."""

    def __len__(self) -> int: ...

    def ready(self) -> None:
        """Return once all are there. Raises `SpeedoError` if they do not come."""
        ...

    def ask(self, request: Request) -> Pending:
        """Ask all of them, without waiting."""
        ...

    def stores(self) -> Sequence[Stores]:
        """The master's own connections to the stores of all servers."""
        ...
