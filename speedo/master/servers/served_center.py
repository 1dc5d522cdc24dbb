"""The center over servers: what the master decides is asked of all of them, each for its range.

The master carries no arrays: it sums the squared norms that the servers answer, judges by them, and keeps in mind which
payloads are held and which merges not every server has confirmed.

The master does not wait for a merge: a worker that is to fetch the new version polls until every server has published
it. A payload that one server refuses is dropped by all. A server that is lost ends the attempt, as whatever else a run
needs besides its workers: the next one begins from the newest checkpoint.

Where servers apply the solver's own update, each has the history of its range. Gradients are clipped by the norm of the
whole: only then the master asks for the parts of that norm first, and waits for them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from speedo.engines.solver_update import Recipe, SolverHistory
from speedo.errors import MissingKeyError
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.served_vectors import Exchange
from speedo.exchange.vector import Layout, Vector
from speedo.master.center import with_payload
from speedo.master.divergence import DivergenceWatch
from speedo.master.servers.server_requests import (
    Clear,
    Combine,
    Load,
    Pending,
    Prepare,
    Probe,
    Restore,
    Servers,
    TakeIn,
    slowest,
)
from speedo.master.servers.whole_center import WholeCenter, fetch_whole, spread_whole
from speedo.messages import Drop, Kind, Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule, State

MOST_ORDERED: Final = 16  # merges that are not confirmed yet


@dataclass
class ServedCenter:
    """Implements `speedo.master.center.RunCenter`. `first` is the center to begin with.

    `fence` raises `FencedError` once another master has taken the run over. With a `solver` the servers apply its
    update to what gradients are sent, from `first_history` on, or from none.
    """

    run: str
    first: Vector
    layout: Layout
    servers: Servers
    version: int = 0
    epoch: int = 0
    fence: Callable[[], None] = lambda: None
    compression: Compression = NO_COMPRESSION
    # By which the next results are expected to be merged.
    rule: Callable[[], MergeRule] | None = None
    solver: Recipe | None = None
    first_history: SolverHistory | None = None
    first_state: State = field(default_factory=State)
    clock: Callable[[], float] = lambda: 0.0
    divergence: DivergenceWatch = field(default_factory=DivergenceWatch)
    outages: int = 0  # that servers reported
    _held: dict[tuple[int, int], TakeIn] = field(default_factory=dict)
    _uses: Counter[int] = field(default_factory=Counter)
    _early: dict[tuple[int, int], tuple[TakeIn, Pending]] = field(default_factory=dict)
    _to_order: list[tuple[Merge, int]] = field(default_factory=list)  # with the iteration before
    _ordered: deque[Pending] = field(default_factory=deque)  # merges under way
    _published: set[int] = field(default_factory=set)
    _old: list[int] = field(default_factory=list)  # versions to delete
    _over: list[tuple[int, int]] = field(default_factory=list)  # payloads to delete
    _received: dict[tuple[int, int], float] = field(default_factory=dict)  # seconds
    _combined: dict[str, float] = field(default_factory=dict)  # seconds of the last confirmed merge

    def __post_init__(self) -> None:
        history = self.first_history
        if self.solver is not None and history is None:
            history = self.solver.no_history()
        # The newest that the master has.
        self._whole = WholeCenter(self.version, self.first, history, self.first_state)

    @property
    def payload_bytes(self) -> int:
        return Exchange.sizes(self.layout, len(self.servers), self.compression)[0]

    @property
    def center_bytes(self) -> int:
        return Exchange.sizes(self.layout, len(self.servers), self.compression)[1]

    @property
    def vector(self) -> Vector:
        return self._newest().vector

    @property
    def state(self) -> State:
        return self._newest().state

    def history(self) -> bytes:
        """The solver's history of the present version, as an engine would give it; empty without a solver."""
        whole = self._newest()
        if self.solver is None or whole.history is None:
            return b""
        return self.solver.write_history(whole.history)

    def _newest(self) -> WholeCenter:
        self._order()
        self._confirm(0)
        if self._whole.version != self.version:
            try:
                self._whole = self._fetched()
            except MissingKeyError:  # a Redis came back empty just now
                self._whole = self._fetched()
        return self._whole

    def _fetched(self) -> WholeCenter:
        self.servers.ask(Restore(whole=True)).answers()
        with self._exchange() as exchange:
            return fetch_whole(exchange, self.version, self.layout, self.solver)

    # ------------------------------------------------------------ what the driver asks for

    def publish(self) -> None:
        """Hand the first center out, once all servers are there."""
        self.fence()
        self.servers.ready()
        self._spread(self._whole)
        self.servers.ask(Load(self.version)).answers()
        self._published.add(self.version)

    def expect(self, event: Trained, then: Callable[[], None]) -> None:
        """A result has come: servers take its payload in, and `then` is called; `receive` then need not wait."""
        if self.rule is None or not event.has_payload:
            return then()
        request = TakeIn(event, self.rule())
        pending = self.servers.ask(request)
        self._early[event.worker, event.ticket] = (request, pending)
        pending.when_done(then)

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        who, began = (event.worker, event.ticket), self.clock()
        request = TakeIn(event, rule)
        early, pending = self._early.pop(who, (None, None))
        if pending is None or early != request:
            pending = self.servers.ask(request)
        norm, refused = 0.0, None
        for answer in pending.answers():
            if isinstance(answer, Refused):
                refused = answer if refused is None or answer.blame else refused
            elif isinstance(answer, (int, float)):
                norm += answer
        if refused is None:
            problem = self.divergence.refusal(rule.payload, event, norm)
            if problem is not None:
                refused = Refused(event.worker, event.incarnation, event.ticket, problem)
        if refused is not None:
            self._over.append(who)
            return refused
        self._held[who] = request
        self._received[who] = self.clock() - began
        return None

    def merge(self, action: Merge, iteration_before: int, *, more: bool = False) -> Merge:
        """See `RunCenter.merge`. Gradients that are clipped are merged one by one: each asks for its norm first."""
        self.fence()
        own = [(part.worker, part.ticket) for part in with_payload(action)]
        clips = self._clips(own)
        if clips:
            self._publish()
        if not self._to_order:
            self._confirm(MOST_ORDERED - 1)
        norm = self._norm_of(action) if clips else None
        for who in own:
            del self._held[who]
        self._to_order.append((action, iteration_before))
        previous, self.version = self.version, action.version
        self._over += own
        self._retire(previous)
        seconds = dict[str, float]()  # of the servers: in the last of those that go together
        if clips or not more:
            self._publish(norm)
            seconds = self._combined
        waited = {ticket: self._received.pop((worker, ticket), 0.0) for worker, ticket in own}
        timings = tuple(
            {"receive": waited.get(part.ticket, 0.0), **seconds} for part in action.parts
        )
        return replace(action, timings=timings)

    def _clips(self, own: Sequence[tuple[int, int]]) -> bool:
        """Whether these are gradients that a solver clips by their norm over several ranges."""
        clips = self.solver is not None and self.solver.fields.clips and len(self.servers) > 1
        return clips and any(self._held[who].rule.payload is Kind.GRADIENT for who in own)

    def _norm_of(self, action: Merge) -> float:
        """The squared norm of the mean gradient over all ranges."""
        answers = self.servers.ask(Prepare(action)).answers()
        return sum(answer for answer in answers if isinstance(answer, (int, float)))

    def _publish(self, norm: float | None = None) -> None:
        if self._to_order:
            self._order(norm)
            self._confirm(MOST_ORDERED)

    def _order(self, norm: float | None = None) -> None:
        """Ask for the merges that were decided together, of which the last makes the version that is published."""
        if not self._to_order:
            return
        (*earlier, (action, before)), self._to_order = self._to_order, []
        self._ordered.append(self.servers.ask(Combine(action, before, norm, tuple(earlier))))
        self._published.add(action.version)

    def drop(self, action: Drop) -> None:
        """Forget a result that is not merged; a late one may repeat one that is held and still counts."""
        who = action.worker, action.ticket
        self._early.pop(who, None)
        if action.decision == "discarded" or who not in self._held:
            self._held.pop(who, None)
            self._received.pop(who, None)
            self._over.append(who)

    def tidy(self) -> None:
        self._publish()
        if self._old or self._over:
            self.servers.ask(Clear(tuple(self._old), tuple(self._over)))
            self._old, self._over = [], []

    def probe(self) -> None:
        self._order()
        self._confirm(0)
        answers = self.servers.ask(Probe()).answers()
        self.outages = sum(answer for answer in answers if isinstance(answer, int))
        # A store that was empty for a moment may have shown it to nobody.
        self.servers.ask(Restore()).answers()

    def restore(self) -> None:
        self._order()
        self._confirm(0)
        self.servers.ask(Restore()).answers()

    def hold(self, version: int) -> None:
        self._uses[version] += 1
        if version == self.version:
            self._publish()

    def release(self, version: int) -> None:
        self._uses[version] -= 1
        if self._uses[version] <= 0:
            del self._uses[version]
            self._retire(version)

    def _retire(self, version: int) -> None:
        if version != self.version and not self._uses[version] and version in self._published:
            self._published.discard(version)
            self._old.append(version)

    def _confirm(self, most: int) -> None:
        """Look at what became of merges; wait until no more than this many are unconfirmed."""
        while self._ordered and (len(self._ordered) > most or self._ordered[0].done()):
            answers = self._ordered[0].answers()
            self._ordered.popleft()
            self._combined = slowest(answers) or self._combined

    def _spread(self, whole: WholeCenter) -> None:
        with self._exchange() as exchange:
            spread_whole(exchange, self.version, self.epoch, whole)

    def _exchange(self) -> Exchange:
        return Exchange(self.run, self.layout, self.servers.stores())
