"""What a master asks of its servers and what they answer, and how the questions reach them.

Every request may be repeated: what is done already is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from speedo.exchange.served_vectors import Stores
from speedo.messages import Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule


@dataclass(frozen=True, slots=True)
class Load:
    """Take the newest center of the store, up to version `newest`; `keep` are the versions that stay beside it.

    Answer: its version, or None if the store has none.
    """

    newest: int
    keep: tuple[int, ...] = ()


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

    @property
    def count(self) -> int:
        """How many merges it is."""
        return len(self.earlier) + 1


@dataclass(frozen=True, slots=True)
class Combined:
    """The seconds that a server's part of these merges took, by the names in the log; none if they were made before."""

    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete versions that nobody reads any more, and payloads (worker, ticket). Answer: None."""

    versions: tuple[int, ...] = ()
    payloads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """Publish the present version again if the store has lost it. Answer: None."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Write a little into the store. Answer: how many outages of it have ended."""


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server that gives no answer any more, and why. `fresh`: another is in its place, and has loaded nothing yet."""

    cause: str
    fresh: bool = False


NOT_LOADED: Final = ServerLost("it has been started again", fresh=True)
Request = Load | TakeIn | Prepare | Combine | Clear | Restore | Probe
Answer = int | float | Combined | Refused | None


def slowest(answers: Iterable[Answer | ServerLost]) -> dict[str, float]:
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
        """Whether all have answered, or are lost."""
        ...

    def when_done(self, then: Callable[[], None]) -> None:
        """Call this once, in whatever thread, as soon as `done`."""
        ...

    def answers(self) -> Sequence[Answer | ServerLost]:
        """Wait for all; an error of ours that one raised is raised here."""
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

    def ask_one(self, index: int, request: Request) -> Answer | ServerLost:
        """Ask one of them, and wait. An error of ours is raised."""
        ...

    def replace(self, index: int, cause: str) -> None:
        """Return once another is in the place of a lost one. Raises `StoreError` if none comes."""
        ...

    def stores(self) -> Sequence[Stores]:
        """The master's own connections to the stores of all servers."""
        ...
