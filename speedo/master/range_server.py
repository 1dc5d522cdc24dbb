"""A server: keeps, merges and publishes one range of the center. The master decides, and asks for it in few words.

Every request may be repeated: what is done already is not done again. So a server that died can be replaced by one
that loads its range from their store, and the request under way is made once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from speedo.errors import MissingKeyError, PayloadError
from speedo.master.center import Center
from speedo.messages import Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.vectors.codecs import NO_COMPRESSION, Compression
from speedo.vectors.transfer import fetch_vector
from speedo.vectors.vector import Kind, Layout

# ---------------------------------------------------------------- requests, and what answers them


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
class Combine:
    """Merge payloads that are held, and publish. Answer: None."""

    action: Merge
    iteration_before: int


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
Request = Load | TakeIn | Combine | Clear | Restore | Probe
Answer = int | float | Refused | None


@dataclass
class RangeServer:
    """`layout` is that of the range, `store` the server's own; see `speedo.master.center.Center` for the rest."""

    run: str
    layout: Layout
    store: Store
    epoch: int = 0
    compression: Compression = NO_COMPRESSION
    clock: Callable[[], float] = lambda: 0.0

    _center: Center | None = field(default=None, init=False)

    def do(self, request: Request) -> Answer | ServerLost:
        """Carry it out; before it has loaded its range the answer is `NOT_LOADED`. Raises `StoreError`."""
        if isinstance(request, Load):
            return self._load(request)
        center = self._center
        if center is None:
            return NOT_LOADED
        match request:
            case TakeIn():
                return center.take_in(request.event, request.rule)
            case Combine():
                if center.version < request.action.version:
                    center.hold(
                        request.action.version
                    )  # until the master says that nobody reads it
                    center.merge(request.action, request.iteration_before)
                return None
            case Clear():
                for version in request.versions:
                    center.release(version)
                for worker, ticket in request.payloads:
                    center.forget(worker, ticket)
                center.tidy()
                return None
            case Restore():
                center.restore()
                return None
            case Probe():
                center.probe()
                return int(getattr(self.store, "outages", 0))

    def _at(self, version: int) -> Center:
        return Center(
            self.run,
            self.layout.zeros(),
            self.layout,
            self.store,
            version=version,
            epoch=self.epoch,
            clock=self.clock,
            compression=self.compression,
            keeps_payloads=True,
            role="server",
        )

    def _load(self, request: Load) -> int | None:
        """What was in this process before is forgotten, payloads too."""
        stem = keys.centers(self.run)
        tails = [key.removeprefix(stem) for key in self.store.keys(stem)]
        versions = sorted({int(tail.partition(":")[0]) for tail in tails}, reverse=True)
        center = self._at(0)
        found: int | None = None
        for version in versions:
            if version > request.newest or found is not None:
                continue
            try:
                key = keys.center(self.run, version)
                header = fetch_vector(self.store, key, self.layout, Kind.CENTER, center.vector)
            except (MissingKeyError, PayloadError):
                continue
            if header.version == version:
                found = version
        if found is None:
            return None
        center.version = found
        center.publish()  # in every form
        center.hold(found)
        for version in versions:
            if version != found:
                center.adopt(version, keep=version in request.keep)
        center.tidy()
        self._center = center
        return found
