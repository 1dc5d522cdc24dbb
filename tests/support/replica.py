"""The merge rules once more, in plain numpy: what a center must be after the payloads that were accepted."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from speedo.messages import Merge, Trained
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from tests.support.rules_of_a_run import Turn

if TYPE_CHECKING:
    from tests.support.checker import Checker

SIZE = 4  # parameters of the net
HEADER_BYTES = 60
# Of the update that the schedules give to `server_gradient`: SGD, whose gradient has this norm at most.
GRADIENT_LR = 0.05
GRADIENT_MOMENTUM = 0.5
GRADIENT_CLIP = 1.0


def kind_of(options: Mapping[str, Any]) -> str:
    """What workers send under these options."""
    if options["mode"] == "easgd" or options.get("moving_rate") is not None:
        return "WEIGHTS"
    return "GRADIENT" if options.get("server_gradient") else "DELTA"


def rate_of(options: Mapping[str, Any], members: int, staleness: int = 0) -> float:
    """The factor of a merge of a result of this staleness while so many workers are in the run."""
    workers, kind = max(members, 1), kind_of(options)
    if kind == "WEIGHTS":
        return float(options.get("moving_rate") or 0.9 / workers)
    if kind == "GRADIENT":
        return 1.0
    if options.get("staleness_scaling"):
        return float(options.get("delta_scale") or 1.0) / max(staleness, 1)
    plain = 1.0 if options["mode"] == "sync" else min(1.0, 2.0 / workers)
    return float(options.get("delta_scale") or plain)


def merge_into(
    center: np.ndarray,
    history: np.ndarray,
    kind: str,
    vectors: Sequence[np.ndarray],
    samples: Sequence[int],
    rate: float,
) -> None:
    """One merge of payloads of this kind, in place, in float32; `history` is the solver's momentum."""
    shares = [np.float32(rate * count / sum(samples)) for count in samples]
    mean = np.sum([vector * share for vector, share in zip(vectors, shares, strict=True)], axis=0)
    if kind == "GRADIENT":
        norm = np.sqrt(np.float32(np.sum(mean.astype(np.float64) ** 2)))
        if norm > GRADIENT_CLIP:
            mean = mean * (np.float32(GRADIENT_CLIP) / norm)
        history *= np.float32(GRADIENT_MOMENTUM)
        history += np.float32(GRADIENT_LR) * mean
        center -= history
    elif kind == "DELTA":
        center += mean
    else:
        for vector in vectors:
            center += (vector - center) * np.float32(rate)


def equal(found: np.ndarray, expected: np.ndarray, parts: int) -> bool:
    """Bit by bit, where the order of additions is given; else to a few units of the last place."""
    if parts == 1:
        return found.tobytes() == expected.tobytes()
    return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6))


def decoded(dtype: int, body: bytes) -> np.ndarray:
    """The `SIZE` values of a body, by what the codecs say of their formats."""
    if dtype == 2:  # bfloat16: the upper halves of float32
        return np.array([struct.unpack("<f", b"\0\0" + two)[0] for two in batched(body, 2)], "f4")
    if dtype == 3:  # int8: one scale, and a code a value
        scale, *codes = struct.unpack(f"<f{SIZE}b", body)
        return np.array([np.float32(scale) * np.float32(code) for code in codes], "f4")
    if dtype == 4:  # top-k: values, their number, their places
        kept = (len(body) - 4) // 6
        numbers = struct.unpack(f"<{kept}fI{kept}H", body)
        vector = np.zeros(SIZE, np.float32)
        vector[list(numbers[kept + 1 :])] = numbers[:kept]
        return vector
    # Sparse, half of the values: two levels, and bytes whose i-th bit is of the i-th value
    if dtype == 5:
        low, high, signs, is_high, lower, upper = struct.unpack("<2f4B", body)
        vector = np.zeros(SIZE, np.float32)
        for number, mark in enumerate(place for place in range(8) if upper >> (7 - place) & 1):
            bit = 7 - number
            value = high if is_high >> bit & 1 else low
            place = 2 * (mark - number) + (lower >> bit & 1)
            vector[place] = -value if signs >> bit & 1 else value
        return vector
    return np.frombuffer(body, np.float32)


def batched(body: bytes, length: int) -> list[bytes]:
    return [body[start : start + length] for start in range(0, len(body), length)]


class Replica:
    """A center of our own, merged from what lies in the store; `books` objects where they differ."""

    def __init__(self, books: Checker) -> None:
        self.books = books
        self.center = np.zeros(SIZE, np.float32)  # where the quadratic begins
        self.history = np.zeros(SIZE, np.float32)
        self.rounded = 1  # parts of the largest merge that the history has seen
        self.payloads: dict[tuple[int, int], np.ndarray] = {}

    def watch(self, store: MemoryStore, run: str) -> None:
        """Look into this store."""
        self.store, self.run = store, run

    def published(self) -> set[int]:
        """The versions of the center that lie in the store, in whatever form."""
        prefix = f"speedo:{self.run}:center:"
        names = (key.removeprefix(prefix) for key in self.store.keys(prefix))
        return {int(name.removesuffix(":rounded")) for name in names}

    def unread(self) -> set[tuple[int, int]]:
        """Worker and ticket of the payloads that lie in the store."""
        found = (key.split(":")[-2:] for key in self.store.keys(f"speedo:{self.run}:payload:"))
        return {(int(worker), int(ticket)) for worker, ticket in found}

    def receive(self, event: Trained, turn: Turn) -> bool:
        """Whether the payload that lies in the store may be merged; kept for the merge."""
        key = keys.payload(self.run, event.worker, event.ticket)
        head, size = self.store.read_head(key)
        body = bytearray(size)
        self.store.read(key, memoryview(body))
        require = self.books.require
        require(len(head) == HEADER_BYTES and head[:4] == b"SPDO", "has no header", key)
        require(head[5] == turn.train.payload, "is of another kind than asked for", key)
        may = turn.train.norm > 0 or event.worker in self.books.leaving
        ends_early = may and event.samples < turn.samples
        require(ends_early or event.samples == turn.samples, "claims other samples", event)
        vector = self.payloads[event.worker, event.ticket] = decoded(head[6], bytes(body))
        return bool(np.isfinite(vector).all()) and math.isfinite(event.loss)

    def merge(self, merge: Merge, kind: str) -> None:
        """The same merge here: the published center must equal it."""
        vectors = [self.payloads.pop((part.worker, part.ticket)) for part in merge.parts]
        samples = [part.samples for part in merge.parts]
        merge_into(self.center, self.history, kind, vectors, samples, merge.rate)
        if kind == "GRADIENT":
            self.rounded = max(self.rounded, len(vectors))
        parts = self.rounded if kind == "GRADIENT" else len(vectors)
        require = self.books.require
        if merge.version not in self.published():
            require(self.books.left > 0, "not published", merge)
            return
        found = np.empty_like(self.center)
        self.store.read(keys.center(self.run, merge.version), memoryview(found).cast("B"))
        require(bool(np.isfinite(found).all()), "the center is not finite", merge)
        require(equal(found, self.center, parts), "not its replay", merge, found)
        self.center = found
