"""The center: the merged weights, what comes in to be merged, and the versions in the store.

Everything that can be wrong with a payload is found in `receive`, before the strategy hears of the result,
so that a merge, once decided, is carried out.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from speedo.errors import MissingKeyError, PayloadError
from speedo.failpoints import reached
from speedo.messages import Drop, Merge, Refused, Trained
from speedo.sgd_modes.rules import Contribution, MergeRule
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.vectors.codecs import NO_COMPRESSION, Codec, Compression, make_codec
from speedo.vectors.transfer import fetch_vector, look_at_vector
from speedo.vectors.vector import HEADER_BYTES, Header, Kind, Layout, Vector, header_for

PROBE_EXPIRY_S: Final = 60.0
LARGEST_RATIO: Final = (
    1_000.0  # a step of a learning rate policy is 10 or 100; a flipped exponent bit far more
)
REMEMBERED: Final = 100
FEWEST: Final = 10  # accepted norms before there is a judgement


@dataclass
class NormGate:
    """Refuses vectors that are finite but out of proportion: compares each L2 norm with the running median of the
    accepted ones of its kind.

    `check` remembers nothing: a refused vector must not make the next one look usual.
    """

    _accepted: dict[Kind, deque[float]] = field(default_factory=dict)

    def check(self, kind: Kind, squared_norm: float) -> str | None:
        """Why a vector of this (finite) squared norm is refused; None if it is not."""
        known = self._accepted.get(kind, ())
        if len(known) < FEWEST:
            return None
        norm = math.sqrt(squared_norm)
        if norm <= LARGEST_RATIO * min(known):
            return None  # the median, which takes longer to find, is not less
        usual = statistics.median(known)
        if usual == 0.0 or norm <= LARGEST_RATIO * usual:
            return None
        return (
            f"its norm is {norm:.3g}, more than {LARGEST_RATIO:,.0f} times the {usual:.3g} that is usual here: "
            "training diverges there, or the worker computes nonsense; lower --lr or --momentum, or look at its node"
        )

    def accept(self, kind: Kind, squared_norm: float) -> None:
        """A vector of this squared norm goes into the center; the last `REMEMBERED` say what is usual."""
        known = self._accepted.setdefault(kind, deque(maxlen=REMEMBERED))
        known.append(math.sqrt(squared_norm))


@dataclass(slots=True)
class Payload:
    """A payload until it is merged: in `own` memory, which is then used again, or where it lies in the store."""

    key: str
    header: Header
    vector: Vector
    own: bool
    rule: MergeRule
    seconds: float = 0.0


@dataclass
class Center:
    """The center vector of a run at `version`, owned by the master; published from the start.

    `fence` raises `FencedError` once another master has taken the run over. Where `compression` rounds centers, a
    version lies in the store twice: as it is, for the tester, and in the form that workers fetch. Where these are
    pulled towards centers, they would come to rest where these round to: each makes up for what the last one lost.
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
    _gate: NormGate = field(default_factory=NormGate)
    # By worker and ticket; which of them are held, merged and dropped is in the coordinator's book.
    _payloads: dict[tuple[int, int], Payload] = field(default_factory=dict)
    _over: list[str] = field(default_factory=list)  # keys to delete, once nobody waits for it
    _spare: list[Vector] = field(default_factory=list)
    _uses: Counter[int] = field(default_factory=Counter)
    _published: set[int] = field(default_factory=set)
    _lost: Vector | None = None

    def __post_init__(self) -> None:
        self._codec = make_codec(self.compression.payload, self.layout)
        self._forms: list[tuple[Callable[[str, int], str], Codec]] = [
            (keys.center, make_codec("none", self.layout))
        ]
        rounded = make_codec(self.compression.center, self.layout)
        if not rounded.is_exact:
            self._forms.append((keys.rounded, rounded))

    @property
    def payload_bytes(self) -> int:
        """What a worker sends for a result."""
        return HEADER_BYTES + self._codec.body_bytes

    @property
    def center_bytes(self) -> int:
        """What a worker fetches for a turn."""
        return HEADER_BYTES + self._forms[-1][1].body_bytes

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        """Take a result's payload out of the store; `Refused` says why it cannot be merged, None that it can."""
        began = self.clock()
        key = keys.payload(self.run, event.worker, event.ticket)
        try:
            held = self._take(key, rule)
            try:
                norm = self._check(held, event)
            except PayloadError:
                self._let_go(held)
                raise
        except (PayloadError, MissingKeyError) as error:
            self._over.append(key)
            blame = isinstance(error, PayloadError)
            return Refused(event.worker, event.incarnation, event.ticket, str(error), blame)
        self._gate.accept(rule.payload, norm)
        if held.own:
            self._over.append(key)
        held.seconds = self.clock() - began
        self._payloads[event.worker, event.ticket] = held
        return None

    def _take(self, key: str, rule: MergeRule) -> Payload:
        seen = look_at_vector(self.store, key, self.layout, rule.payload, self._codec)
        if seen is not None:
            return Payload(key, seen.header, seen.vector, False, rule)
        own = self._spare.pop() if self._spare else self.layout.zeros()
        try:
            header = fetch_vector(self.store, key, self.layout, rule.payload, own, self._codec)
        except (PayloadError, MissingKeyError):
            self._spare.append(own)
            raise
        return Payload(key, header, own, True, rule)

    def _check(self, held: Payload, event: Trained) -> float:
        """The squared norm of a payload that is what was asked for; raises `PayloadError`."""
        header = held.header
        sender = (header.worker, header.incarnation, header.ticket, header.epoch)
        if sender != (event.worker, event.incarnation, event.ticket, self.epoch):
            raise PayloadError(f"{held.key} was written by another turn {sender}")
        norm = squared_norm(held.vector)
        if not (math.isfinite(event.loss) and math.isfinite(norm)):
            raise PayloadError(
                "it is not finite (NaN or infinity): training diverges there; lower --lr or --momentum"
            )
        absurd = self._gate.check(held.rule.payload, norm)
        if absurd is not None:
            raise PayloadError(absurd)
        return norm

    def _let_go(self, held: Payload) -> None:
        """A payload is merged, or never will be."""
        if held.own:
            self._spare.append(held.vector)
        else:
            self._over.append(held.key)

    def merge(self, action: Merge, iteration_before: int) -> Merge:
        """Carry out a merge and publish the version that it makes; the same action with its timings."""
        reached("master-merging")
        own_parts = [part for part in action.parts if part.summed_by is None]
        taken = [self._payloads.pop((part.worker, part.ticket)) for part in own_parts]
        leads = {part.worker: part.ticket for part in own_parts}
        samples = Counter[int]()  # by ticket of the payload that has them
        for part in action.parts:
            samples[part.ticket if part.summed_by is None else leads[part.summed_by]] += (
                part.samples
            )
        contributions = [
            Contribution(held.vector, samples[part.ticket])
            for held, part in zip(taken, own_parts, strict=True)
        ]
        began = self.clock()
        taken[0].rule.merge(self.vector, contributions, action.rate, iteration_before)
        merged = self.clock()
        if len(self._forms) == 1 or taken[0].rule.payload is not Kind.WEIGHTS:
            self._lost = None
        elif self._lost is None:
            self._lost = self.layout.zeros()
        for held in taken:
            self._let_go(held)
        previous, self.version = self.version, action.version
        reached("master-merged")
        self.publish()
        reached("master-published")
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

    def drop(self, action: Drop) -> None:
        """Forget a result that is not merged; a late one may repeat one that is held and still counts."""
        held = self._payloads.get((action.worker, action.ticket))
        if held is not None and action.decision == "discarded":
            self._let_go(self._payloads.pop((action.worker, action.ticket)))
        elif held is None:
            self._over.append(keys.payload(self.run, action.worker, action.ticket))

    def tidy(self) -> None:
        """Delete what is over, now that nobody waits for the master."""
        if self._over:
            over, self._over = self._over, []
            self.store.delete(*over)

    def publish(self) -> None:
        """Write the present version to the store."""
        self.fence()
        for form, codec in self._forms:
            key = form(self.run, self.version)
            body = codec.encode(self.vector, None if codec.is_exact else self._lost)
            place = self.store.place(key, len(body))
            if place is not None:
                place[:] = (
                    body  # checked and sent from there, while the processor still has it at hand
                )
                body = place
            header = header_for(
                body,
                self.layout,
                Kind.CENTER,
                version=self.version,
                epoch=self.epoch,
                dtype=codec.dtype,
            )
            self.store.write(key, header.pack(), body)
        self._published.add(self.version)

    def probe(self) -> None:
        """Return if the store takes a write: one that is full still answers."""
        self.store.write(keys.probe(self.run), b"", memoryview(b"."), expire_s=PROBE_EXPIRY_S)

    def restore(self) -> None:
        """Publish the present version again if the store has lost it, as after a restart, or damaged it."""
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

    def hold(self, version: int) -> None:
        """Somebody was told to read this version: it stays until released as often as held."""
        self._uses[version] += 1

    def release(self, version: int) -> None:
        self._uses[version] -= 1
        if self._uses[version] <= 0:
            del self._uses[version]
            self._retire(version)

    def _retire(self, version: int) -> None:
        if version != self.version and not self._uses[version] and version in self._published:
            self._published.discard(version)
            self._over.extend(key(self.run, version) for key, _ in self._forms)


def squared_norm(vector: Vector) -> float:
    """In one pass, without a temporary: it is finite only if every value is.

    A norm above 1e19, whose square overflows float32, counts as not finite; so no sum of two accepted
    vectors can overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(vector, vector))
