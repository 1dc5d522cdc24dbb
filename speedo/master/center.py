"""The center: the merged weights, what comes in to be merged, and the versions in the store.

Everything that can be wrong with a payload is found in `receive`, before the strategy hears of the result,
so that a merge, once decided, is carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.codecs import NO_COMPRESSION, Codec, Compression, make_codec
from speedo.exchange.transfer import fetch_vector, look_at_vector, put_vector
from speedo.exchange.vector import HEADER_BYTES, Header, Layout, Vector, squared_norm
from speedo.master.begun_versions import BegunVersions
from speedo.master.divergence import DivergenceWatch
from speedo.messages import Drop, Kind, Merge, Part, Refused, Trained
from speedo.sgd_modes.rules import Contribution, MergeRule, State, add_sums, average_into, merge_by
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.system.failpoints import reached

PROBE_EXPIRY_S: Final = 60.0


class RunCenter(Protocol):
    """The center as the driver of a run sees it: in the master's own memory, or over servers."""

    @property
    def version(self) -> int: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def vector(self) -> Vector:
        """The present version, whole. Where servers have it, it is fetched now; raises `StoreError`."""
        ...

    @property
    def state(self) -> State:
        """What the merge rule keeps beside the present version, likewise."""
        ...

    @property
    def outages(self) -> int:
        """How many times a store did not answer for a while."""
        ...

    @property
    def payload_bytes(self) -> int:
        """What a worker sends for a result."""
        ...

    @property
    def center_bytes(self) -> int:
        """What a worker fetches for a turn."""
        ...

    def publish(self) -> None:
        """Make the present version one that workers can fetch."""
        ...

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        """Take a result's payload out of the store; `Refused` says why it cannot be merged, None that it can."""
        ...

    def merge(self, action: Merge, iteration_before: int, *, more: bool = False) -> Merge:
        """Carry out a merge and publish the version that it makes; the same action with its timings.

        `more`: the next merge may follow at once. Then this version is published only if somebody holds it before that.
        """
        ...

    def drop(self, action: Drop) -> None:
        """Forget a result that is not merged."""
        ...

    def tidy(self) -> None:
        """Delete what is over, now that nobody waits for the master."""
        ...

    def probe(self) -> None:
        """Return if the store takes a write."""
        ...

    def restore(self) -> None:
        """Publish the present version again if the store has lost it."""
        ...

    def hold(self, version: int) -> None:
        """A worker is to read this version: it stays until it is released as often as held."""
        ...

    def release(self, version: int) -> None: ...


def with_payload(action: Merge) -> list[Part]:
    """The parts that sent a payload of their own: what the others trained is summed in one of these."""
    return [part for part in action.parts if part.summed_by is None]


@dataclass(slots=True)
class Payload:
    """A payload until it is merged: in `own` memory, which is then used again, or where it is in the store."""

    key: str
    header: Header
    vector: Vector
    own: bool
    rule: MergeRule
    norm: float  # squared
    seconds: float = 0.0


@dataclass
class Center:
    """The center vector of a run at `version`, owned by the master; published from the start.

    Each version is merged into memory of the store, if that has some; so `vector` is another one after each merge.

    `fence` raises `FencedError` once another master has taken the run over. Where `compression` rounds centers, a
    version is in the store twice: as it is, for the tester, and in the form that workers fetch. Elastic workers would
    converge to the rounded center: so each rounded center also carries the rounding error of the one before it.

    A payload that was received stays in the store until it is merged or forgotten: another master may have to take it
    in. `role` names the failpoints.
    """

    run: str
    vector: Vector
    layout: Layout
    store: Store
    version: int = 0
    epoch: int = 0
    fence: Callable[[], None] = lambda: None
    clock: Callable[[], float] = lambda: 0.0
    compression: Compression = NO_COMPRESSION
    state: State = field(default_factory=State)
    role: str = "master"
    divergence: DivergenceWatch = field(default_factory=DivergenceWatch)
    publishing: Callable[[], None] = lambda: None  # called before a version can be seen
    # The epoch of results that workers bring from a former master, by ticket.
    handed: dict[int, int] = field(default_factory=dict)
    # By worker and ticket; which of them are held, merged and dropped is in the coordinator's book.
    _payloads: dict[tuple[int, int], Payload] = field(default_factory=dict)
    _begun: BegunVersions = field(default_factory=BegunVersions)
    _over: list[str] = field(default_factory=list)  # keys to delete, once nobody waits for it
    _spare: list[Vector] = field(default_factory=list)
    _uses: Counter[int] = field(default_factory=Counter)
    _published: set[int] = field(default_factory=set)
    _lost: Vector | None = None
    _in_store: bool = False  # where `vector` is
    _asked: tuple[int, int] = (-1, 0)  # the version of the last `restore`, and how many were of it

    def __post_init__(self) -> None:
        self._codec = make_codec(self.compression.payload, self.layout)
        self._forms: list[tuple[Callable[[str, int], str], Codec]] = [
            (keys.center, make_codec("none", self.layout))
        ]
        rounded = make_codec(self.compression.center, self.layout)
        if not rounded.is_exact:
            self._forms.append((keys.rounded, rounded))

    @property
    def outages(self) -> int:
        return int(getattr(self.store, "outages", 0))

    @property
    def payload_bytes(self) -> int:
        """What a worker sends for a result."""
        return HEADER_BYTES + self._codec.body_bytes

    @property
    def center_bytes(self) -> int:
        """What a worker fetches for a turn."""
        return HEADER_BYTES + self._forms[-1][1].body_bytes

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        norm = self.take_in(event, rule)
        if isinstance(norm, Refused):
            return norm
        problem = self.divergence.refusal(rule.payload, event, norm)
        if problem is None:
            return None
        self.forget(event.worker, event.ticket)
        return Refused(event.worker, event.incarnation, event.ticket, problem)

    def take_in(self, event: Trained, rule: MergeRule) -> float | Refused:
        """Hold a payload that is undamaged and this turn's: its squared norm. It may still be judged and forgotten."""
        began = self.clock()
        held = self._payloads.get((event.worker, event.ticket))
        if held is not None and held.rule == rule:
            return held.norm
        key = self._key_of(event.worker, event.ticket)
        try:
            held = self._take(key, rule)
            try:
                self._check_sender(held, event)
                if rule.wants_begun:
                    version = held.header.version
                    self._begun.hold(version, lambda: self._read(version))
            except (PayloadError, MissingKeyError):
                self._let_go(held, begun=False)
                raise
        except (PayloadError, MissingKeyError) as error:
            self._over.append(key)
            blame = isinstance(error, PayloadError)
            return Refused(event.worker, event.incarnation, event.ticket, str(error), blame)
        held.seconds = self.clock() - began
        self._payloads[event.worker, event.ticket] = held
        return held.norm

    def forget(self, worker: int, ticket: int) -> None:
        """Hold this payload no more, if it is held; what the store has of it goes at the next `tidy`."""
        held = self._payloads.pop((worker, ticket), None)
        if held is not None:
            self._let_go(held)
        self._over.append(self._key_of(worker, ticket))

    def _key_of(self, worker: int, ticket: int) -> str:
        """Where the payload is; that of a result from a former master is among the keys of its epoch."""
        epoch = self.handed.get(ticket)
        run = self.run if epoch is None else f"{self.run.rpartition(':')[0]}:{epoch}"
        return keys.payload(run, worker, ticket)

    def _take(self, key: str, rule: MergeRule) -> Payload:
        seen = look_at_vector(self.store, key, self.layout, rule.payload, self._codec)
        if seen is not None:
            norm = squared_norm(seen.vector) if seen.squares is None else seen.squares
            return Payload(key, seen.header, seen.vector, False, rule, norm)
        own = self._spare.pop() if self._spare else self.layout.zeros()
        try:
            header = fetch_vector(self.store, key, self.layout, rule.payload, own, self._codec)
        except (PayloadError, MissingKeyError):
            self._spare.append(own)
            raise
        return Payload(key, header, own, True, rule, squared_norm(own))

    def _check_sender(self, held: Payload, event: Trained) -> None:
        header = held.header
        sender = (header.worker, header.incarnation, header.ticket, header.epoch)
        epoch = self.handed.get(event.ticket, self.epoch)
        if sender != (event.worker, event.incarnation, event.ticket, epoch):
            raise PayloadError(f"{held.key} was written by another turn {sender}")

    def _read(self, version: int) -> Vector:
        """A copy of a version that somebody began from, and that is still held."""
        if version == self.version:
            return self.vector.copy()
        copy = self.layout.zeros()
        fetch_vector(self.store, keys.center(self.run, version), self.layout, Kind.CENTER, copy)
        return copy

    def _let_go(self, held: Payload, *, begun: bool = True) -> None:
        """A payload is merged, or never will be."""
        if begun and held.rule.wants_begun:
            self._begun.release(held.header.version)
        if held.own:
            self._spare.append(held.vector)
        self._over.append(held.key)

    def merge(self, action: Merge, iteration_before: int, *, more: bool = False) -> Merge:
        reached(f"{self.role}-merging")
        own_parts = with_payload(action)
        contributions = self.contributions(action)
        taken = [self._payloads.pop((part.worker, part.ticket)) for part in own_parts]
        began = self.clock()
        if taken:
            rule, averages = taken[0].rule, self.layout.averages
            before, after = self.vector, self._memory_for(action.version)
            former = [before[place].copy() for place in averages]
            sums = self.layout.sums if rule.vectors or rule.wants_begun else ()
            former_sums = [before[place].copy() for place in sums]
            self.state = rule.state_for(self.vector.size, self.state)
            at = action.rate, iteration_before, self.state
            merge_by(rule, before, after, contributions, *at)
            average_into(after, averages, former, contributions)
            add_sums(after, sums, former_sums, contributions, action.rate)
            self.vector = after
        merged = self.clock()
        if len(self._forms) == 1 or (taken and taken[0].rule.payload is not Kind.WEIGHTS):
            self._lost = None
        elif self._lost is None:
            self._lost = self.layout.zeros()
        for held in taken:
            self._let_go(held)
        previous, self.version = self.version, action.version
        reached(f"{self.role}-merged")
        if not more:
            self.publish()
            reached(f"{self.role}-published")
        own = {"merge": merged - began, "publish_center": self.clock() - merged}
        self._retire(previous)
        receive = {part.ticket: held.seconds for held, part in zip(taken, own_parts, strict=True)}
        timings = tuple({"receive": receive.get(part.ticket, 0.0), **own} for part in action.parts)
        return Merge(
            action.version,
            action.iteration,
            action.samples_seen,
            action.rate,
            action.parts,
            timings,
        )

    def _memory_for(self, version: int) -> Vector:
        """Where this version is made; where the present one is, if nobody reads that."""
        if self.version not in self._published:
            return self.vector
        memory = self.store.place(keys.center(self.run, version), self.layout.nbytes)
        was_in_store, self._in_store = self._in_store, memory is not None
        if memory is not None:
            return np.frombuffer(memory, np.float32)
        return self.layout.zeros() if was_in_store else self.vector

    def contributions(self, action: Merge) -> list[Contribution]:
        """The payloads of this merge, which are held, with the results that each stands for."""
        own_parts = with_payload(action)
        leads = {part.worker: part.ticket for part in own_parts}
        behind: dict[int, list[Part]] = {part.ticket: [] for part in own_parts}
        for part in action.parts:
            ticket = part.ticket if part.summed_by is None else leads.get(part.summed_by)
            if ticket in behind:  # else the payload is lost
                behind[ticket].append(part)
        return [
            self._contribution(
                self._payloads[part.worker, part.ticket], behind[part.ticket], action
            )
            for part in own_parts
        ]

    def _contribution(self, held: Payload, parts: list[Part], action: Merge) -> Contribution:
        # Of several optimizers one may have stepped alone, with records that another has counted.
        samples = max(1, sum(part.samples for part in parts))
        version = held.header.version
        return Contribution(
            held.vector,
            samples,
            merges_since=action.version - 1 - version,
            staleness=max(part.staleness for part in parts),
            version=version,
            begun=self._begun[version] if held.rule.wants_begun else None,
            loss=sum(part.loss * part.samples for part in parts) / samples,
        )

    def drop(self, action: Drop) -> None:
        """Forget a result that is not merged; a late one may repeat one that is held and still counts."""
        if action.decision == "discarded" or (action.worker, action.ticket) not in self._payloads:
            self.forget(action.worker, action.ticket)

    def tidy(self) -> None:
        """Delete what is over, now that nobody waits for the master."""
        if self._over:
            over, self._over = self._over, []
            self.store.delete(*over)

    def publish(self) -> None:
        """Write the present version to the store."""
        self.fence()
        self.publishing()
        for form, codec in self._forms:
            key = form(self.run, self.version)
            body = codec.encode(self.vector, None if codec.is_exact else self._lost)
            said = {"version": self.version, "epoch": self.epoch, "dtype": codec.dtype}
            put_vector(self.store, key, self.layout, Kind.CENTER, body, **said)
        self._published.add(self.version)

    def probe(self) -> None:
        """Return if the store takes a write: one that is full still answers."""
        self.store.write(keys.probe(self.run), b"", memoryview(b"."), expire_s=PROBE_EXPIRY_S)

    def restore(self) -> None:
        """Publish the present version again if the store has lost it, as after a restart, or damaged it.

        Whether it is there is looked at in each call. It is read, which takes long, in the first call for a version,
        the second, the fourth and so on: many may ask for one fault, and few faults are the center's.
        """
        if self.version not in self._published:
            return self.publish()  # for the first time: the store has lost nothing
        version, calls = self._asked
        calls = calls + 1 if version == self.version else 1
        self._asked = (self.version, calls)
        if calls & (calls - 1) and self._is_there():
            return
        copy = self._spare.pop() if self._spare else self.layout.zeros()
        try:
            for key, codec in self._forms:
                name = key(self.run, self.version)
                fetch_vector(self.store, name, self.layout, Kind.CENTER, copy, codec)
        except MissingKeyError:
            self._published.clear()
            self.publish()
        except PayloadError:
            self.publish()
        finally:
            self._spare.append(copy)

    def _is_there(self) -> bool:
        try:
            for key, _ in self._forms:
                self.store.read_head(key(self.run, self.version))
        except MissingKeyError:
            return False
        return True

    def hold(self, version: int) -> None:
        self._uses[version] += 1
        if version == self.version and version not in self._published:
            self.publish()

    def release(self, version: int) -> None:
        self._uses[version] -= 1
        if self._uses[version] <= 0:
            del self._uses[version]
            self._retire(version)

    def _retire(self, version: int) -> None:
        if version != self.version and not self._uses[version] and version in self._published:
            self._published.discard(version)
            self._over.extend(key(self.run, version) for key, _ in self._forms)
