"""Small values that are changed on a condition, in one step: what a lease and a fence are made of.

A store changes them as Redis's WATCH does: they are read, what is to be written is decided from that, and it is written
only if none of them was written meanwhile. So no answer that is late, and no process that was stopped between reading
and writing, can undo what another one has written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from speedo.errors import FencedError, StoreUnavailableError
from speedo.storage import keys

FOREVER: Final = float("inf")
OVER: Final = b"over"
# Entries of the journal that are kept: of more than a second, however fast results come.
FORMER: Final = 512
FORMER_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Small:
    """A small value, and for how many seconds it is there."""

    data: bytes
    left_s: float = FOREVER


Smalls = Mapping[str, Small | None]
"""By key; None: there is none, or it is to be deleted."""
Decide = Callable[[Smalls], Smalls]
"""What to write, from what is there; what it raises reaches the caller, and nothing is written."""


class Conditional(Protocol):
    """A store that can change small values on a condition."""

    @property
    def address(self) -> str: ...

    def change(self, names: tuple[str, ...], decide: Decide) -> None:
        """Write what `decide` answers to the values under `names`, if they are still the same then; else ask it again.

        Raises `StoreError`, also if others change them all the time.
        """
        ...


def look_at(store: Conditional, names: tuple[str, ...]) -> Smalls:
    """The values under these keys at one moment. Raises `StoreError`."""
    found: dict[str, Small | None] = {}

    def decide(there: Smalls) -> Smalls:
        found.update(there)
        return {}

    store.change(names, decide)
    return found


@dataclass(frozen=True, slots=True)
class Term:
    """The content of a run's epoch key: the epoch, by whom it was claimed, and whether the run is over."""

    epoch: int
    token: bytes
    over: bool = False

    def packed(self) -> bytes:
        """As it stands in the store."""
        return b" ".join((b"%d" % self.epoch, self.token, *((OVER,) if self.over else ())))

    @classmethod
    def of(cls, value: Small | None) -> Term | None:
        """What the store has; None if there is none, or none of ours."""
        words = [] if value is None else value.data.split()
        if len(words) < 2 or not words[0].isdigit():
            return None
        return cls(int(words[0]), words[1], words[2:] == [OVER])


@dataclass(slots=True)
class Guard:
    """What a master's store asks before each write: that the master of this epoch still has the run.

    `entry` is the journal's for the version of the center that is written next, in the same step. With `keeps_former`
    the latest entries stay for a while, for a standby to which their lines of the log may be under way.
    """

    run: str
    epoch: int
    entry: bytes = b""
    keeps_former: bool = False
    count: int = 0

    def beside(self, key: str) -> Smalls:
        """What is written with this blob.

        It must be as before until then, too: a write that was sent before, and is carried out late, must not put an
        older entry in its place.
        """
        if not self.entry or not key.startswith(keys.centers(f"{self.run}:{self.epoch}")):
            return {}
        found = {keys.journal(self.run): Small(self.entry)}
        if self.keeps_former:
            place = keys.former_entry(self.run, self.count % FORMER)
            found[place] = Small(self.entry, FORMER_S)
        return found

    def written(self, beside: Smalls) -> None:
        """The blob and this are in the store."""
        if beside:
            self.entry = b""
            self.count += 1

    def require(self, value: Small | None) -> None:
        """Raises `FencedError` if the run has another master, by the content of the epoch's key.

        Raises `StoreUnavailableError` if the store has lost it: who holds the lease writes it again.
        """
        term = Term.of(value)
        if term is None or term.epoch < self.epoch:
            raise StoreUnavailableError(
                "Redis has lost the epoch of this run: the run waits until the master's command has written it again"
            )
        if term.epoch > self.epoch:
            raise FencedError(
                f"another master has taken this run over (its epoch is {term.epoch}, ours {self.epoch}): this one "
                "stops and writes nothing more"
            )
