"""How the layers of a net are joined: which values each reads and makes, which are losses, and when each is read last.

A value is one top of one layer; several may have the same name, if layers work in place. The corners of loss weights
are Caffe's (Caffe: net.cpp, Init; util/insert_splits.cpp; layers/loss_layer.cpp).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from caffenets.layer import Layer, Shape
from caffenets.torch_later import Tensor


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
    """Of each of this many values the layers that read it, and as which bottom."""
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
        # A Split takes over the weight of a top that is read, and all the others of its layer are lost.
        split = {at for at, n in enumerate(wired.tops) if _weight(wired, at) and readers[n]}
        given = 0 if split else len(weights)
        # A loss is given one, whatever its tops are (Caffe: layers/loss_layer.cpp, LayerSetUp).
        given = 1 if wired.is_loss and not given else given
        if given and given != len(wired.tops):
            raise wired.layer.refuse(
                f"has {len(weights)} loss_weight for {len(wired.tops)} tops: give one for each"
                + (", and let no layer read those" if split else "")
            )
        for at, number in enumerate(wired.tops):
            if at in split or (_weight(wired, at) and not split):
                wired.losses.append((at, _weight(wired, at), True))
            if wired.is_loss and at == 0 and (split or not weights):
                wired.losses.append((at, 1.0, not readers[number]))


def _weight(wired: Wired, at: int) -> float:
    """The loss weight that this top is given; 0 for none."""
    weights = wired.layer.param.loss_weight
    return float(weights[at]) if at < len(weights) else 0.0


def check_in_place(layers: Sequence[Wired], readers: Readers) -> None:
    """Refuse a layer that works in place where Caffe does.

    A blob with another use gets a Split, and then the layer's top is a blob that there is (Caffe: net.cpp, AppendTop).
    """
    weighted = {n for wired in layers for at, n in enumerate(wired.tops) if _weight(wired, at)}
    for wired in layers:
        layer = wired.layer
        for name, bottom, number in zip(
            layer.param.top, layer.param.bottom, wired.bottoms, strict=False
        ):
            if name != bottom:
                continue
            if not layer.in_place:
                raise layer.refuse(
                    f"works in place on {name!r}, and Caffe refuses that or computes wrong values: rename its top"
                )
            if len(readers[number]) + (number in weighted) > 1:
                raise layer.refuse(
                    f"works in place on {name!r}, which is also read by another layer, or is a loss: "
                    "rename its top"
                )


def check_gradients(layers: Sequence[Wired], readers: Readers) -> None:
    """Refuse a net in which a gradient is wanted where a layer has none; Caffe ends in its first backward pass.

    As in Caffe all tops of a layer want a gradient if a parameter is below one of its bottoms, labels among them
    (Caffe: net.cpp, Init).
    """
    wanted: set[int] = set()  # values with a parameter below
    needs = []  # of every layer its bottoms that are to get a gradient
    trained = []
    for wired in layers:
        param = wired.layer.param
        given = list(param.propagate_down)
        needs.append(
            [given[at] if given else number in wanted for at, number in enumerate(wired.bottoms)]
        )
        rates = [one.lr_mult for one in param.param]
        rates += [1.0] * (len(wired.layer.blobs) - len(rates))
        trained.append(any(n in wanted for n in wired.bottoms) or any(rate > 0 for rate in rates))
        if trained[-1]:
            wanted.update(wired.tops)
    under_loss: set[int] = set()
    at_of = {id(wired): at for at, wired in enumerate(layers)}
    for index in reversed(range(len(layers))):
        wired = layers[index]
        contributes = bool(wired.losses) or any(number in under_loss for number in wired.tops)
        skipped = all(
            readers[number]
            and not _weight(wired, at)
            and not any(needs[at_of[id(reader)]][bottom] for reader, bottom in readers[number])
            for at, number in enumerate(wired.tops)
        )
        if not contributes or (trained[index] and skipped):
            needs[index] = [False] * len(wired.bottoms)
        if contributes:
            under_loss.update(wired.bottoms)
        for place, what in wired.layer.constant.items():
            if place < len(wired.bottoms) and trained[index] and needs[index][place]:
                raise wired.layer.refuse(
                    f"gives no gradient to its {what}, but a layer below is trained through them: "
                    "set propagate_down: false for that bottom, or lr_mult: 0 below"
                )


def split_outputs(layers: Sequence[Wired], readers: Readers) -> Iterator[tuple[str, int]]:
    """Where a top with a loss weight is read, too, Caffe's Split makes an output for the loss."""
    for wired in layers:
        for at, number in enumerate(wired.tops):
            if _weight(wired, at) and readers[number]:
                name = wired.layer.param.top[at]
                yield f"{name}_{wired.layer.name}_{at}_split_0", number


def find_last_uses(layers: Sequence[Wired], readers: Readers, *, kept: Collection[int]) -> None:
    """Note after which layer each value is read no more: its memory is used again while it is in the cache."""
    last = {id(wired): at for at, wired in enumerate(layers)}
    used_up: list[list[int]] = [[] for _ in layers]
    for number, found in enumerate(readers):
        if found and number not in kept:
            used_up[max(last[id(reader)] for reader, _ in found)].append(number)
    for wired, numbers in zip(layers, used_up, strict=True):
        wired.used_up = tuple(numbers)
