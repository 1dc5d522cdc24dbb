"""A solver's own update of the center without Caffe: of the whole flat vector, or of the range that one server keeps.

As in Caffe the sum over `iter_size` batches is clipped, then divided; then come the weight decay and the solver's
rule (Caffe: solvers/sgd_solver.cpp, ApplyUpdate). A range is walked in blocks that stay in the processor's cache, so
there is no temporary of its length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from speedo.engines.base import RateSchedule
from speedo.engines.solver_history import history_from, solverstate_in
from speedo.engines.solverstate import read_solverstate, write_solverstate
from speedo.engines.update_rules import RULES, SolverFields, float32
from speedo.errors import EngineError
from speedo.exchange.vector import Layout, Vector

# Float32 values: 256 KiB; the fastest of 16 KiB to 512 KiB for most rules where L2 has 1 MiB
BLOCK: Final = 1 << 16
# Of float64: from 10,000 values on OpenBLAS shares a dot product among threads.
_NORM_BLOCK: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class Multipliers:
    """What a blob's learning rate and weight decay are multiplied by; the defaults are Caffe's."""

    lr: float = 1.0
    decay: float = 1.0


def multipliers(net: Any, layout: Layout) -> tuple[Multipliers, ...]:
    """Those of every blob of the layout; `net` is the NetParameter, in today's format, that it was made from.

    A shared blob has what its owner says, and where that says nothing, what the first other layer says
    (Caffe: net.cpp, AppendParam). Raises `EngineError` if the layout is of another net.
    """
    shared: dict[str, dict[str, float]] = {}
    for layer in net.layer:
        for param in layer.param:
            if param.name:
                _note(param, shared.setdefault(str(param.name), {}))
    found = []
    layers, layer, last = iter(net.layer), None, -1
    for blob in layout.blobs:
        name, _, number = blob.name.rpartition("/")
        index = int(number)
        if layer is None or layer.name != name or index <= last:  # two layers may have one name
            layer = next((one for one in layers if one.name == name), None)
            if layer is None:
                raise EngineError(
                    f"the net has no layer for the blob {blob.name!r}: give its own net"
                )
        last = index
        said: dict[str, float] = {}
        if index < len(layer.param):
            param = layer.param[index]
            said = shared[str(param.name)] if param.name else said
            _note(param, said)
        found.append(Multipliers(**said))
    return tuple(found)


def _note(param: Any, known: dict[str, float]) -> None:
    """Add what this ParamSpec says to what is known; what was said before counts."""
    if param.HasField("lr_mult"):
        known.setdefault("lr", float(param.lr_mult))
    if param.HasField("decay_mult"):
        known.setdefault("decay", float(param.decay_mult))


class SolverUpdate:
    """The update of one range of the vector, with its part of the solver's history.

    `place` is the range, by default the whole vector; arrays that are given have its length. `history` has Caffe's
    vectors in Caffe's order and begins with zeros; they are end to end in `flat`. `updates` counts the solver's own
    updates, by which Adam corrects its bias. BatchNorm's statistics have neither update nor history.

    Where gradients are clipped, it is by the norm of the whole vector. So each `update` takes the sum of what
    `squared_norm` gave for every range.
    """

    def __init__(
        self,
        fields: SolverFields,
        layout: Layout,
        blobs: Sequence[Multipliers],
        schedule: RateSchedule,
        place: slice | None = None,
    ) -> None:
        start, stop, _ = (place or slice(None)).indices(layout.size)
        self._size = max(stop - start, 0)
        self._whole = self._size == layout.size
        self._own = fields, schedule
        self.adjust(None, None, None)
        self._segments = tuple(_segments(layout, blobs, start, stop))
        self._scratch = [np.empty(min(BLOCK, self._size), np.float32) for _ in range(3)]
        self.flat = np.zeros(self._rule.vectors * self._size, np.float32)
        self.history = tuple(self.flat.reshape(self._rule.vectors, self._size))
        self.updates = 0

    def adjust(self, lr: float | None, momentum: float | None, weight_decay: float | None) -> None:
        """Use these from the next update on, None for the solver's own; the history stays."""
        fields, schedule = self._own
        self._fields = replace(
            fields,
            momentum=fields.momentum if momentum is None else momentum,
            weight_decay=fields.weight_decay if weight_decay is None else weight_decay,
        )
        self._schedule = schedule if lr is None else schedule.from_base(lr)
        self._rule = RULES[fields.type](self._fields)

    def restore(self, history: Sequence[Vector], updates: int) -> None:
        """Copy the `history` and `updates` of an equal solver; `EngineError`, and no change, if they do not fit."""
        sizes = [vector.size for vector in history]
        if sizes != [self._size] * self._rule.vectors:
            raise EngineError(
                f"the solver history has {len(sizes)} vectors of {sizes} values, {self._fields.type} needs "
                f"{self._rule.vectors} of {self._size}: resume with the same net and the same solver type"
            )
        for own, given in zip(self.history, history, strict=True):
            np.copyto(own, given)
        self.updates = updates

    def squared_norm(self, gradient: Vector) -> float:
        """The range's part of the gradient's squared L2 norm, without BatchNorm's statistics.

        It is summed in float64, and `update` rounds the sum of all parts to float32: how the vector is cut shows
        only where that sum is within 1e-15 of the border between two float32 values.
        Caffe sums a blob in float32, depending on the processor: for 13 million values its norm was found 2.4e-5
        too small.
        """
        self._check(gradient)
        total = 0.0
        scratch = np.empty(min(_NORM_BLOCK, self._size))
        for segment in self._segments:
            if segment.statistic:
                continue
            for block in _blocks(segment.place, _NORM_BLOCK):
                part = scratch[: block.stop - block.start]
                np.copyto(part, gradient[block])
                total += float(np.dot(part, part))
        return total

    def update(
        self, center: Vector, gradient: Vector, iteration: int, squared_norm: float | None = None
    ) -> None:
        """Apply a mean raw gradient to `center`, in place; `gradient` stays as it is.

        `iteration` is the global one, from which the learning rate follows. `squared_norm` is that of the whole
        vector's gradient; without it the range must be the whole vector, or gradients are not clipped. What stands
        in the places of BatchNorm's statistics is added. As with Caffe, what is not finite is not refused.
        """
        self._check(center, gradient)
        if self._fields.clips and squared_norm is None:
            if not self._whole:
                raise ValueError("to clip a range takes the squared norm of the whole gradient")
            squared_norm = self.squared_norm(gradient)
        with np.errstate(all="ignore"):
            factors = _factors(self._fields, squared_norm)
            rate = np.float32(self._schedule.rate(iteration))
            scale = np.float32(self._rule.scale(self.updates + 1))
            weight_decay = np.float32(self._fields.weight_decay)
            for segment in self._segments:
                if segment.statistic:
                    center[segment.place] += gradient[segment.place]
                    continue
                local_rate = float(rate * np.float32(segment.own.lr) * scale)
                local_decay = float(weight_decay * np.float32(segment.own.decay))
                for block in segment.blocks:
                    self._update_block(
                        center[block], gradient[block], block, factors, local_rate, local_decay
                    )
        self.updates += 1

    def _update_block(
        self,
        w: Vector,
        g: Vector,
        block: slice,
        factors: Sequence[float],
        rate: float,
        decay: float,
    ) -> None:
        own, u, t = (scratch[: w.size] for scratch in self._scratch)
        for factor in factors:
            g = np.multiply(g, factor, out=own)
        if decay:
            np.multiply(np.sign(w, out=u) if self._fields.l1 else w, decay, out=u)
            g = np.add(g, u, out=own)
        w -= self._rule.step(g, [history[block] for history in self.history], u, t, rate)

    def _check(self, *vectors: Vector) -> None:
        for vector in vectors:
            if vector.shape != (self._size,):
                raise ValueError(f"a vector of {vector.size} values for a range of {self._size}")


@dataclass(frozen=True, slots=True)
class SolverHistory:
    """The history of the whole vector: Caffe's vectors end to end. `updates` is how many the solver has made."""

    flat: Vector
    updates: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the update of any range is made from, and sent as; see `SolverUpdate`."""

    fields: SolverFields
    layout: Layout
    blobs: tuple[Multipliers, ...]
    schedule: RateSchedule

    @property
    def vectors(self) -> int:
        """How many vectors of the parameters' length the history has."""
        return RULES[self.fields.type].vectors

    def update_of(self, place: slice | None = None) -> SolverUpdate:
        """The update of one range, with a history of zeros."""
        return SolverUpdate(self.fields, self.layout, self.blobs, self.schedule, place)

    def no_history(self) -> SolverHistory:
        """The history before the first update."""
        return SolverHistory(np.zeros(self.vectors * self.layout.size, np.float32), 0)

    def read_history(self, state: bytes) -> SolverHistory:
        """The history in what `Engine.history` or `write_history` gave; `EngineError` if it is not of this solver."""
        content = solverstate_in(self.fields.type, self.layout, state)
        vectors, updates = read_solverstate(self.layout, self.vectors, content)
        return SolverHistory(np.concatenate(vectors), updates)

    def write_history(self, history: SolverHistory) -> bytes:
        """The history as `Engine.history` would give it."""
        vectors = list(history.flat.reshape(self.vectors, self.layout.size))
        content = write_solverstate(self.layout, vectors, history.updates)
        return history_from(self.fields.type, self.layout, content)


def _factors(fields: SolverFields, squared_norm: float | None) -> tuple[float, ...]:
    """What the mean gradient is multiplied by, in this order: to the sum, to the norm allowed, to the mean again."""
    batches = fields.iter_size
    exact = batches & (batches - 1) == 0  # to the sum and back changes no bit
    factors = [] if exact else [float(batches)]
    if fields.clips and squared_norm is not None:
        norm = np.sqrt(np.float32(squared_norm * batches * batches))
        bound = np.float32(fields.clip_gradients)
        if norm > bound:
            factors.append(float(bound / norm))
    if not exact:
        factors.append(float32(1.0 / batches))
    return tuple(factors)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Neighbouring blobs with the same multipliers, as far as they are in the range, whose places it has."""

    place: slice
    own: Multipliers
    statistic: bool
    blocks: tuple[slice, ...]


def _segments(
    layout: Layout, blobs: Sequence[Multipliers], start: int, stop: int
) -> Iterator[_Segment]:
    kinds = [(own, blob.statistic) for own, blob in zip(blobs, layout.blobs, strict=True)]
    places = [place for _, place in layout.slices()]
    alike = itertools.groupby(zip(kinds, places, strict=True), key=lambda one: one[0])
    for (own, statistic), group in alike:
        found = [place for _, place in group]
        place = slice(max(found[0].start, start) - start, min(found[-1].stop, stop) - start)
        if place.start < place.stop:
            yield _Segment(place, own, statistic, tuple(_blocks(place, BLOCK)))


def _blocks(place: slice, size: int) -> Iterator[slice]:
    for start in range(place.start, place.stop, size):
        yield slice(start, min(start + size, place.stop))
