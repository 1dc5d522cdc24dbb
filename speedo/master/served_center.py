"""The center over servers: what the master decides is asked of all of them, each for its range.

The master carries no arrays: it sums the squared norms that the servers answer, judges by them, and keeps in mind what
every server must have: the version, who reads which older one, the payloads that are held. With that a server that
was replaced is brought to where the others are, and the request under way is made to it again. A version is there
once every server has published it; a payload that one refuses is forgotten by all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from speedo.errors import MissingKeyError, StoreError
from speedo.master.center import NormGate
from speedo.master.range_server import (
    Answer,
    Clear,
    Combine,
    Load,
    Probe,
    RangeServer,
    Request,
    Restore,
    TakeIn,
)
from speedo.messages import Drop, Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule
from speedo.vectors.codecs import NO_COMPRESSION, Compression
from speedo.vectors.exchange import Exchange, Stores
from speedo.vectors.vector import Layout, Vector


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server that gives no answer any more, and why."""

    cause: str


class Servers(Protocol):
    """Who carries requests to the servers. One that raises an error of ours is not lost: the error is raised here."""

    def __len__(self) -> int: ...

    def ready(self) -> None:
        """Return once all are there. Raises `SpeedoError` if they do not come."""
        ...

    def ask(self, request: Request) -> Sequence[Answer | ServerLost]:
        """What all of them answer, asked at once."""
        ...

    def ask_one(self, index: int, request: Request) -> Answer | ServerLost: ...

    def tell(self, request: Request) -> None:
        """Ask all of them, and wait for nobody."""
        ...

    def replace(self, index: int, cause: str) -> None:
        """Return once another is in the place of a lost one. Raises `StoreError` if none comes."""
        ...

    def stores(self) -> Sequence[Stores]:
        """The master's own connections to the stores of all servers."""
        ...


@dataclass
class ServedCenter:
    """Implements `speedo.master.center.RunCenter`. `first` is the center to begin with; `note` takes lines for people.

    `fence` raises `FencedError` once another master has taken the run over.
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
    outages: int = 0  # that servers told of, and replacements
    _gate: NormGate = field(default_factory=NormGate)
    _held: dict[tuple[int, int], TakeIn] = field(default_factory=dict)
    _uses: Counter[int] = field(default_factory=Counter)
    _published: set[int] = field(default_factory=set)
    _old: list[int] = field(default_factory=list)  # versions to delete
    _over: list[tuple[int, int]] = field(default_factory=list)  # payloads to delete
    _replaced: int = 0

    def __post_init__(self) -> None:
        self._whole = (self.version, self.first)  # the newest center that the master has seen whole

    @property
    def payload_bytes(self) -> int:
        """See `RunCenter.payload_bytes`."""
        return Exchange.sizes(self.layout, len(self.servers), self.compression)[0]

    @property
    def center_bytes(self) -> int:
        """See `RunCenter.center_bytes`."""
        return Exchange.sizes(self.layout, len(self.servers), self.compression)[1]

    @property
    def vector(self) -> Vector:
        """See `RunCenter.vector`."""
        if self._whole[0] != self.version:
            whole = self.layout.zeros()
            try:
                self._fetch(whole)
            except MissingKeyError:
                self.restore()
                self._fetch(whole)
            self._whole = (self.version, whole)
        return self._whole[1]

    def _fetch(self, into: Vector) -> None:
        with self._exchange() as exchange:
            exchange.fetch_center(self.version, into)

    # ------------------------------------------------------------ what the driver asks for

    def publish(self) -> None:
        """Hand the first center out, once all servers are there."""
        self.fence()
        self.servers.ready()
        self._spread(self.first)
        for index, version in enumerate(self._ask(Load(self.version))):
            if version != self.version:
                raise StoreError(f"server {index} did not find the center that it was given")
        self._published.add(self.version)

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        """See `RunCenter.receive`."""
        who = event.worker, event.ticket
        request = TakeIn(event, rule)
        norm, refused = 0.0, None
        for answer in self._ask(request):
            if isinstance(answer, Refused):
                refused = answer if refused is None or answer.blame else refused
            elif isinstance(answer, (int, float)):
                norm += answer
        if refused is None:
            problem = self._gate.judge(rule.payload, event.loss, norm)
            if problem is not None:
                refused = Refused(event.worker, event.incarnation, event.ticket, problem)
        if refused is not None:
            self._over.append(who)
            return refused
        self._held[who] = request
        return None

    def merge(self, action: Merge, iteration_before: int) -> Merge:
        """See `RunCenter.merge`."""
        self.fence()
        answers = self._ask(Combine(action, iteration_before))
        previous, self.version = self.version, action.version
        self._published.add(self.version)
        for part in action.parts:
            if self._held.pop((part.worker, part.ticket), None) is not None:
                self._over.append((part.worker, part.ticket))
        self._retire(previous)
        told = [answer for answer in answers if isinstance(answer, tuple) and answer]
        timings = tuple(_slowest(parts) for parts in zip(*told, strict=True))
        return Merge(
            action.version,
            action.iteration,
            action.samples_seen,
            action.rate,
            action.parts,
            timings or ({},) * len(action.parts),
        )

    def drop(self, action: Drop) -> None:
        """Forget a result that is not merged; a late one may repeat one that is held and still counts."""
        who = action.worker, action.ticket
        if action.decision == "discarded" or who not in self._held:
            self._held.pop(who, None)
            self._over.append(who)

    def tidy(self) -> None:
        """See `RunCenter.tidy`."""
        if self._old or self._over:
            self.servers.tell(Clear(tuple(self._old), tuple(self._over)))
            self._old, self._over = [], []

    def probe(self) -> None:
        """See `RunCenter.probe`."""
        told = [answer for answer in self._ask(Probe()) if isinstance(answer, int)]
        self.outages = sum(told) + self._replaced

    def restore(self) -> None:
        """See `RunCenter.restore`."""
        self._ask(Restore())

    def hold(self, version: int) -> None:
        """See `RunCenter.hold`."""
        self._uses[version] += 1

    def release(self, version: int) -> None:
        """See `RunCenter.release`."""
        self._uses[version] -= 1
        if self._uses[version] <= 0:
            del self._uses[version]
            self._retire(version)

    def _retire(self, version: int) -> None:
        if version != self.version and not self._uses[version] and version in self._published:
            self._published.discard(version)
            self._old.append(version)

    # ------------------------------------------------------------ servers that are lost

    def _ask(self, request: Request) -> list[Answer]:
        """What every server answers; all are asked again once another is in the place of a lost one."""
        while True:
            found: list[Answer] = []
            for index, answer in enumerate(self.servers.ask(request)):
                if isinstance(answer, ServerLost):
                    self._renew(index, answer.cause)
                else:
                    found.append(answer)
            if len(found) == len(self.servers):
                return found

    def _renew(self, index: int, cause: str) -> None:
        """Have another server in the place of this one, and bring it to where the others are."""
        self.note(f"warning: server {index} is lost: {cause}")
        self.servers.replace(index, cause)
        self._replaced += 1
        self.outages += 1
        newest = self.version + 1  # a merge under way may have been done
        loaded = self.servers.ask_one(index, Load(newest, tuple(self._published)))
        if isinstance(loaded, ServerLost):
            return
        if isinstance(loaded, int) and loaded >= self.version:
            self._take_in_again(index)
        else:
            self._go_back(index)
        self.note(f"server {index} is back, with version {self.version}")

    def _go_back(self, index: int) -> None:
        """Nobody has the range of this server: all begin again from the newest center that the master has whole."""
        version, vector = self._whole
        self.note(
            f"warning: server {index} has lost its range with its store: the center goes back to what it was at "
            f"version {version}, and {self.version - version} merges are lost"
        )
        self._spread(vector)
        self._whole = (self.version, vector)
        for other in range(len(self.servers)):
            self.servers.ask_one(other, Load(self.version, tuple(self._published)))
            self._take_in_again(other)

    def _take_in_again(self, index: int) -> None:
        """The payloads that wait for their merge; what is lost of one is left out of that merge, in this range."""
        for request in self._held.values():
            answer = self.servers.ask_one(index, request)
            if isinstance(answer, Refused):
                self.note(
                    f"warning: what worker {request.event.worker} sent is lost in the range of server {index}: "
                    f"{answer.reason}"
                )

    def _spread(self, vector: Vector) -> None:
        with self._exchange() as exchange:
            exchange.publish_center(self.version, self.epoch, vector)

    def _exchange(self) -> Exchange:
        return Exchange(self.run, self.layout, self.servers.stores())


def _slowest(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each time the longest that a server took."""
    return {name: max(part[name] for part in parts) for name in parts[0]}


class LocalServers:
    """Implements `Servers` by servers of this process, for tests and the simulator."""

    def __init__(self, servers: Sequence[RangeServer]) -> None:
        self.servers = list(servers)

    def __len__(self) -> int:
        return len(self.servers)

    def ready(self) -> None:
        """See `Servers.ready`."""

    def ask(self, request: Request) -> list[Answer | ServerLost]:
        """See `Servers.ask`."""
        return [self.ask_one(index, request) for index in range(len(self.servers))]

    def ask_one(self, index: int, request: Request) -> Answer | ServerLost:
        """See `Servers.ask_one`."""
        return self.servers[index].do(request)

    def tell(self, request: Request) -> None:
        """See `Servers.tell`."""
        self.ask(request)

    def replace(self, index: int, cause: str) -> None:
        """See `Servers.replace`."""
        old = self.servers[index]
        self.servers[index] = RangeServer(
            old.run, old.layout, old.store, old.epoch, old.compression, old.clock
        )

    def stores(self) -> list[Stores]:
        """See `Servers.stores`."""
        return [Stores(server.store) for server in self.servers]
