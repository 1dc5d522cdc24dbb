"""A server: keeps, merges and publishes one range of the center. The master decides, and asks for it in few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from speedo.engines.solver_update import SolverUpdate
from speedo.errors import TrainingStopped
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.transfer import fetch_state, fetch_vector, put_state
from speedo.exchange.vector import Layout
from speedo.master.center import Center
from speedo.master.servers.range_update import RangeUpdate
from speedo.master.servers.server_requests import (
    Answer,
    Clear,
    Combine,
    Combined,
    Load,
    Prepare,
    Probe,
    Request,
    Restore,
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
    _whole: int | None = field(default=None, init=False)  # whose history and state the store has
    _stopped: TrainingStopped | None = field(default=None, init=False)

    def do(self, request: Request) -> Answer:
        """Carry it out. Raises `StoreError`, and `TrainingStopped` once its range is not finite."""
        if self._stopped is not None:
            raise self._stopped
        if isinstance(request, Load):
            self._load(request.version)
            return None
        center = self._center
        assert center is not None
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
                if request.whole:
                    self._keep_whole(center)
                return None
            case Probe():
                center.probe()
                return int(getattr(self.store, "outages", 0))

    def _combine(self, center: Center, request: Combine) -> Combined:
        seconds = Counter[str]()
        for action, before in request.earlier:
            seconds.update(self._merge(center, action, before, None, more=True))
        version = request.action.version
        center.hold(version)  # until the master says that nobody reads it
        norm = request.squared_norm
        seconds.update(self._merge(center, request.action, request.iteration_before, norm))
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
        except TrainingStopped as error:
            self._stopped = error  # what is not finite is never published
            raise
        one = next(iter(done.timings), {})
        return {name: one[name] for name in ("merge", "publish_center") if name in one}

    def _keep_whole(self, center: Center) -> None:
        version, former = center.version, self._whole
        if center.state:
            put_state(self.store, self.run, version, center.state.pack())
        if self._update is not None:
            self._update.keep(version)
        if former is not None and former != version:
            self.store.delete(keys.rule_state(self.run, former), keys.history(self.run, former))
        self._whole = version

    def _load(self, version: int) -> None:
        center = self._center = Center(
            self.run,
            self.layout.zeros(),
            self.layout,
            self.store,
            version=version,
            epoch=self.epoch,
            clock=self.clock,
            compression=self.compression,
            role="server",
        )
        fetch_vector(
            self.store, keys.center(self.run, version), self.layout, Kind.CENTER, center.vector
        )
        state = fetch_state(self.store, self.run, version)
        center.state = State.unpack(state, self.layout.size)
        if self.solver is not None:
            self._update = RangeUpdate(self.run, self.layout, self.store, self.solver(), self.epoch)
            self._update.load(version)
        self._whole = version
        center.publish()  # in every form
        center.hold(version)
