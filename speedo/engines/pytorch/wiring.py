"""How the layers of a net are joined: which values each reads and makes, which are losses, and when each is read last.

A value is one top of one layer; several may have the same name, if layers work in place. The corners of loss weights
are Caffe's (Caffe: net.cpp, Init; util/insert_splits.cpp; layers/loss_layer.cpp).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from speedo.engines.pytorch.layer import Layer, Shape


@dataclass(slots=True)
class Wired:
    """A layer with the numbers of the values that it reads and makes."""

    layer: Layer
    bottoms: tuple[int, ...]
    tops: tuple[int, ...]
    detached: frozenset[int]  # bottoms that get no gradient
    blobs: list[Tensor] = field(default_factory=list)
    # Shared blobs that it sees in another shape.
    views: dict[int, Shape] = field(default_factory=dict)
    # Of each loss the top, its weight, and whether it has a gradient.
    losses: list[tuple[int, float, bool]] = field(default_factory=list)
    used_up: tuple[int, ...] = ()  # values that nobody reads afterwards

    @property
    def is_loss(self) -> bool:
        """Whether Caffe derives it from LossLayer."""
        return str(self.layer.param.type).endswith("Loss")


Readers = Sequence[Sequence[tuple[Wired, int]]]


def readers_of(layers: Sequence[Wired], values: int) -> Readers:
    """Of each of so many values the layers that read it, and as which bottom."""
    readers: list[list[tuple[Wired, int]]] = [[] for _ in range(values)]
    for wired in layers:
        for at, number in enumerate(wired.bottoms):
            readers[number].append((wired, at))
    return readers


def find_losses(layers: Sequence[Wired], readers: Readers) -> None:
    """Note the losses of every layer.

    A loss with the weight that it has by default, and which another layer reads, counts in the value only: in Caffe
    that layer's gradient overwrites the weight, or is none. One with a weight of its own has it added to that
    gradient, by a Split layer; but then a layer of losses has the default besides, in the value only.
    """
    for wired in layers:
        weights = wired.layer.param.loss_weight
        for at, number in enumerate(wired.tops):
            read = bool(readers[number])
            default = 1.0 if wired.is_loss and at == 0 else 0.0
            if weights and weights[at]:
                wired.losses.append((at, float(weights[at]), True))
            if default and (not weights or (weights[at] and read)):
                wired.losses.append((at, default, not read))


def split_outputs(layers: Sequence[Wired], readers: Readers) -> Iterator[tuple[str, int]]:
    """Where a top with a loss weight is read, too, Caffe's Split makes an output for the loss."""
    for wired in layers:
        for at, weight in enumerate(wired.layer.param.loss_weight):
            if weight and readers[wired.tops[at]]:
                name = wired.layer.param.top[at]
                yield f"{name}_{wired.layer.name}_{at}_split_0", wired.tops[at]


def find_last_uses(layers: Sequence[Wired], readers: Readers, *, kept: Collection[int]) -> None:
    """Note after which layer each value is read no more: its memory is used again while it is in the cache."""
    last = {id(wired): at for at, wired in enumerate(layers)}
    used_up: list[list[int]] = [[] for _ in layers]
    for number, found in enumerate(readers):
        if found and number not in kept:
            used_up[max(last[id(reader)] for reader, _ in found)].append(number)
    for wired, numbers in zip(layers, used_up, strict=True):
        wired.used_up = tuple(numbers)
