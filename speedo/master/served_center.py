"""The center over servers: what the master decides is asked of all of them, each for its range.

The master carries no arrays: it sums the squared norms that the servers answer, judges by them, and keeps in mind what
every server must have: the version, the older versions that are read, the payloads that are held, the merges that not
every server has confirmed. From these a replaced server is brought to the state of the others.

The master does not wait for a merge: a worker that is to fetch the new version polls until every server has published
it. A payload that one server refuses is dropped by all.

Where servers apply the solver's own update, each has the history of its range. Gradients are clipped by the norm of the
whole: only then the master asks for the parts of that norm first, and waits for them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from speedo.engines.solver_update import History, Recipe
from speedo.errors import MissingKeyError, StoreError
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.served_vectors import Exchange
from speedo.exchange.vector import Layout, Vector
from speedo.master.divergence import DivergenceWatch
from speedo.master.server_requests import (
    Answer,
    Clear,
    Combine,
    Load,
    Pending,
    Prepare,
    Probe,
    Request,
    Restore,
    ServerLost,
    Servers,
    TakeIn,
    slowest,
)
from speedo.master.whole_center import Whole, fetch_whole, spread_whole
from speedo.messages import Drop, Kind, Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule, State

MOST_ORDERED: Final = 16  # merges that are not confirmed yet


@dataclass(eq=False, slots=True)
class _Ordered:
    """Merges that servers were asked to make, with their payloads; `renewed` are those that made them once more."""

    request: Combine
    taken: list[TakeIn]
    pending: Pending
    renewed: set[int] = field(default_factory=set)


@dataclass
class ServedCenter:
    """Implements `speedo.master.center.RunCenter`. `first` is the center to begin with; `note` takes lines for people.

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
    note: Callable[[str], None] = lambda _: None
    # By which the next results are expected to be merged.
    rule: Callable[[], MergeRule] | None = None
    solver: Recipe | None = None
    first_history: History | None = None
    first_state: State = field(default_factory=State)
    clock: Callable[[], float] = lambda: 0.0
    divergence: DivergenceWatch = field(default_factory=DivergenceWatch)
    outages: int = 0  # that servers reported, and replacements
    _held: dict[tuple[int, int], TakeIn] = field(default_factory=dict)
    _uses: Counter[int] = field(default_factory=Counter)
    _early: dict[tuple[int, int], tuple[TakeIn, int, Pending]] = field(default_factory=dict)
    _to_order: list[tuple[Merge, int]] = field(default_factory=list)  # with the iteration before
    _taken: list[TakeIn] = field(default_factory=list)  # the payloads in these
    _ordered: deque[_Ordered] = field(default_factory=deque)
    _cleared: deque[tuple[Clear, Pending]] = field(default_factory=deque)
    _published: set[int] = field(default_factory=set)
    _old: list[int] = field(default_factory=list)  # versions to delete
    _over: list[tuple[int, int]] = field(default_factory=list)  # payloads to delete
    _replaced: int = 0
    _gone: StoreError | None = None  # what ended the wait for a server that never came
    _to_keep: threading.Event = field(default_factory=threading.Event)
    _kept: threading.Event = field(default_factory=threading.Event)
    _received: dict[tuple[int, int], float] = field(default_factory=dict)  # seconds
    _combined: dict[str, float] = field(default_factory=dict)  # seconds of the last confirmed merge

    def __post_init__(self) -> None:
        history = self.first_history
        if self.solver is not None and history is None:
            history = self.solver.no_history()
        # The newest that the master has.
        self._whole = Whole(self.version, self.first, history, self.first_state)

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

    def _newest(self) -> Whole:
        self._order()
        self._confirm(0)
        if self._whole.version != self.version:
            try:
                self._whole = self._fetched()
            except MissingKeyError:
                self.restore()
                self._whole = self._fetched()
        return self._whole

    def _fetched(self) -> Whole:
        with self._exchange() as exchange:
            return fetch_whole(exchange, self.version, self.layout, self.solver)

    # ------------------------------------------------------------ what the driver asks for

    def publish(self) -> None:
        """Hand the first center out, once all servers are there."""
        self.fence()
        self.servers.ready()
        self._spread(self._whole)
        for index, version in enumerate(self._ask(Load(self.version))):
            if version != self.version:
                raise StoreError(f"server {index} did not find the center that it was given")
        self._published.add(self.version)

    def expect(self, event: Trained, then: Callable[[], None]) -> None:
        """A result has come: servers take its payload in, and `then` is called; `receive` then need not wait."""
        if self.rule is None or not event.has_payload:
            return then()
        request = TakeIn(event, self.rule())
        pending = self.servers.ask(request)
        self._early[event.worker, event.ticket] = (request, self._replaced, pending)
        pending.when_done(then)

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        who, began = (event.worker, event.ticket), self.clock()
        request = TakeIn(event, rule)
        early, replaced, pending = self._early.pop(who, (None, 0, None))
        asked = pending if early == request and replaced == self._replaced else None
        norm, refused = 0.0, None
        for answer in self._ask(request, asked):
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
        own = [(part.worker, part.ticket) for part in action.parts if part.summed_by is None]
        clips = self._clips(own)
        if clips:
            self._publish()
        if not self._to_order:
            self._confirm(MOST_ORDERED - 1)
        norm = self._norm_of(action) if clips else None
        self._taken += [self._held.pop(who) for who in own]
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
        answers = self._ask(Prepare(action))
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
        taken, self._taken = self._taken, []
        request = Combine(action, before, norm, tuple(earlier))
        self._ordered.append(_Ordered(request, taken, self.servers.ask(request)))
        self._published.add(action.version)

    def drop(self, action: Drop) -> None:
        """Forget a result that is not merged; a late one may repeat one that is held and still counts."""
        who = action.worker, action.ticket
        self._early.pop(who, None)
        if action.decision == "discarded" or who not in self._held:
            self._held.pop(who, None)
            self._received.pop(who, None)
            self._over.append(who)

    def keep_whole(self, patience_s: float) -> bool:
        """From another thread: let the driver's fetch the whole center, as a server is about to leave; if it did."""
        self._kept.clear()
        self._to_keep.set()
        return self._kept.wait(patience_s)

    def tidy(self) -> None:
        if self._to_keep.is_set():
            self._to_keep.clear()
            _ = self.vector
            self._kept.set()
        self._publish()
        if self._old or self._over:
            request = Clear(tuple(self._old), tuple(self._over))
            self._cleared.append((request, self.servers.ask(request)))
            self._old, self._over = [], []
        while self._cleared and self._cleared[0][1].done():
            if len(self._cleared) < MOST_ORDERED and self._any_lost(self._cleared[0][1]):
                break  # it is asked for once more, of the one in its place
            self._cleared.popleft()

    @staticmethod
    def _any_lost(pending: Pending) -> bool:
        return any(isinstance(answer, ServerLost) for answer in pending.answers())

    def probe(self) -> None:
        self._order()
        self._confirm(0)
        told = [answer for answer in self._ask(Probe()) if isinstance(answer, int)]
        self.outages = sum(told) + self._replaced
        self._ask(Restore())  # a store that was empty for a moment may have shown it to nobody

    def restore(self) -> None:
        self._order()
        self._confirm(0)
        self._ask(Restore())

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

    # ------------------------------------------------------------ servers that are lost

    def _ask(self, request: Request, pending: Pending | None = None) -> list[Answer]:
        """What every server answers; all are asked again once another is in the place of a lost one.

        `pending`: they were asked before.
        """
        while True:
            found: list[Answer] = []
            answers = (pending or self.servers.ask(request)).answers()
            pending = None
            for index, answer in enumerate(answers):
                if isinstance(answer, ServerLost):
                    self._renew(index, answer)
                else:
                    found.append(answer)
            if len(found) == len(self.servers):
                return found

    def _confirm(self, most: int) -> None:
        """Look at what became of merges; wait until no more than this many are unconfirmed."""
        while self._ordered and (len(self._ordered) > most or self._ordered[0].pending.done()):
            first = self._ordered[0]
            lost = [
                (index, answer)
                for index, answer in enumerate(first.pending.answers())
                if isinstance(answer, ServerLost) and index not in first.renewed
            ]
            for index, loss in lost:
                self._renew(index, loss)
            if not lost:
                self._ordered.popleft()
                self._combined = slowest(first.pending.answers()) or self._combined

    def _renew(self, index: int, loss: ServerLost) -> None:
        """Have another server in the place of this one, unless it is there, and bring it to where the others are."""
        if self._gone is not None:
            raise self._gone
        self._order()  # so that all of it is known
        self.note(f"warning: server {index} is lost: {loss.cause}")
        try:
            if not loss.fresh:
                self.servers.replace(index, loss.cause)
        except StoreError as error:
            self._gone = error  # who asks again need not wait again
            raise
        self._replaced += 1
        self.outages += 1
        to_delete = (version for request, _ in self._cleared for version in request.versions)
        load = Load(self.version, (*self._published, *self._old, *to_delete))  # for merges to come
        loaded = self.servers.ask_one(index, load)
        oldest = self.version - sum(one.request.count for one in self._ordered)
        if isinstance(loaded, ServerLost):
            return  # which the next question shows
        if isinstance(loaded, int) and loaded >= oldest:
            self._merge_again(index, loaded)
            self._take_in_again(index, self._held.values())
        else:
            self._go_back(index)
        for request, _ in self._cleared:
            self.servers.ask_one(index, request)
        self.note(f"server {index} is back, with version {self.version}")

    def _go_back(self, index: int) -> None:
        """Nobody has the range of this server: all begin again from the newest center that the master has whole."""
        version = self._whole.version
        what = "the center is reset"
        if self.solver is not None:
            what = "the center and the solver's history are reset"
        self.note(
            f"warning: server {index} has lost its range with its store: {what} to version {version}, and "
            f"{self.version - version} merges are lost"
        )
        self._spread(self._whole)
        self._whole = replace(self._whole, version=self.version)
        self._ordered.clear()
        for other in range(len(self.servers)):
            self.servers.ask_one(other, Load(self.version, tuple(self._published)))
            self._take_in_again(other, self._held.values())

    def _merge_again(self, index: int, loaded: int) -> None:
        """Let a server that came back with version `loaded` make the merges after it."""
        for one in self._ordered:
            if one.request.action.version > loaded:
                self._take_in_again(index, one.taken)
                if isinstance(self.servers.ask_one(index, one.request), ServerLost):
                    return  # once more, when this merge is to be confirmed
            one.renewed.add(index)

    def _take_in_again(self, index: int, requests: Iterable[TakeIn]) -> None:
        """Payloads that wait for their merge; what is lost of one is left out of that merge, in this range."""
        for request in requests:
            answer = self.servers.ask_one(index, request)
            if isinstance(answer, Refused):
                self.note(
                    f"warning: what worker {request.event.worker} sent is lost in the range of server {index}: "
                    f"{answer.reason}"
                )

    def _spread(self, whole: Whole) -> None:
        with self._exchange() as exchange:
            spread_whole(exchange, self.version, self.epoch, whole)

    def _exchange(self) -> Exchange:
        return Exchange(self.run, self.layout, self.servers.stores())
