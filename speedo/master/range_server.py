"""A server: keeps, merges and publishes one range of the center. The master decides, and asks for it in few words.

Every request may be repeated: what is done already is not done again. So a server that died can be replaced by one
that loads its range from their store, and the request under way is made once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from speedo.engines.solver_update import SolverUpdate
from speedo.errors import MissingKeyError, PayloadError, TrainingStopped
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.transfer import fetch_state, fetch_vector
from speedo.exchange.vector import Layout
from speedo.master.center import Center
from speedo.master.range_update import RangeUpdate
from speedo.master.server_requests import (
    NOT_LOADED,
    Answer,
    Clear,
    Combine,
    Combined,
    Load,
    Prepare,
    Probe,
    Request,
    Restore,
    ServerLost,
    TakeIn,
)
from speedo.messages import Kind, Merge
from speedo.sgd_modes.rules import State
from speedo.storage import keys
from speedo.storage.base import Store


@dataclass
class RangeServer:
    """`layout` is that of the range, `store` the server's own; see `speedo.master.center.Center` for the rest.

    `solver` makes the solver's update of the range, without history, for a run whose servers apply gradients.
    """

    run: str
    layout: Layout
    store: Store
    epoch: int = 0
    compression: Compression = NO_COMPRESSION
    clock: Callable[[], float] = lambda: 0.0
    solver: Callable[[], SolverUpdate] | None = None

    _center: Center | None = field(default=None, init=False)
    _update: RangeUpdate | None = field(default=None, init=False)

    def do(self, request: Request) -> Answer | ServerLost:
        """Carry it out; before it has loaded its range the answer is `NOT_LOADED`. Raises `StoreError`."""
        if isinstance(request, Load):
            return self._load(request)
        center = self._center
        if center is None:
            return NOT_LOADED
        match request:
            case TakeIn():
                rule = request.rule
                if self._update is not None and rule.payload is Kind.GRADIENT:
                    rule = self._update
                return center.take_in(request.event, rule)
            case Prepare():
                if self._update is None:
                    return 0.0
                contributions = center.contributions(request.action)
                return self._update.prepare(request.action.version, contributions)
            case Combine():
                return self._combine(center, request)
            case Clear():
                for version in request.versions:
                    center.release(version)
                for worker, ticket in request.payloads:
                    center.forget(worker, ticket)
                center.tidy()
                return None
            case Restore():
                center.restore()
                if self._update is not None:
                    self._update.restore()
                return None
            case Probe():
                center.probe()
                return int(getattr(self.store, "outages", 0))

    def _combine(self, center: Center, request: Combine) -> Combined:
        seconds = Counter[str]()
        for action, before in request.earlier:
            if center.version < action.version:
                seconds.update(self._merge(center, action, before, None, more=True))
        version = request.action.version
        if center.version < version:
            center.hold(version)  # until the master says that nobody reads it
            norm = request.squared_norm
            seconds.update(self._merge(center, request.action, request.iteration_before, norm))
            if self._update is not None:
                self._update.keep(version)
        return Combined(dict(seconds))

    def _merge(
        self,
        center: Center,
        action: Merge,
        before: int,
        squared_norm: float | None,
        *,
        more: bool = False,
    ) -> dict[str, float]:
        if self._update is not None:
            self._update.begin(action.version, squared_norm)
        try:
            done = center.merge(action, before, more=more)
        except TrainingStopped:
            self._center = None  # what is not finite is never published
            raise
        one = next(iter(done.timings), {})
        return {name: one[name] for name in ("merge", "publish_center") if name in one}

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
        update = None
        if self.solver is not None:
            solver = self.solver()
            update = RangeUpdate(self.run, self.layout, self.store, solver, self.epoch)
        found: int | None = None
        for version in versions:
            if version > request.newest or found is not None:
                continue
            try:
                key = keys.center(self.run, version)
                header = fetch_vector(self.store, key, self.layout, Kind.CENTER, center.vector)
                state = fetch_state(self.store, self.run, version)
                center.state = State.unpack(state, self.layout.size)
            except (MissingKeyError, PayloadError):
                continue
            if header.version == version and (update is None or update.load(version)):
                found = version
        if found is None:
            return None
        center.version = found
        center.publish()  # in every form
        center.hold(found)
        for version in versions:
            if version < found or version > request.newest:
                center.adopt(version, keep=version in request.keep)
        center.tidy()  # a newer one, that lacks its history or is damaged, is made once more
        if update is not None:
            update.tidy()
        self._center, self._update = center, update
        return found
