"""Gradients that leave one by one during a backward pass, and those of inner products that leave as factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from caffenets.layers.inner_product import InnerProduct
from speedo.engines.base import Done
from speedo.engines.layer_notes import note
from speedo.engines.pytorch.flat import FlatParameters
from speedo.engines.pytorch.net import Net
from speedo.errors import EngineError
from speedo.exchange.factors import Factors, Product


def inner_products(net: Net) -> dict[int, InnerProduct]:
    """By the number of their weight in the layout: those whose weight learns and belongs to no other layer, too."""
    blobs = net.parameters.leaves
    numbers = {id(leaf): number for number, leaf in enumerate(blobs)}
    users = Counter(id(blob) for bound in net.bound for blob in bound)
    return {
        numbers[id(bound[0])]: layer
        for layer, bound in zip(net.layers, net.bound, strict=True)
        if isinstance(layer, InnerProduct) and bound[0].requires_grad and users[id(bound[0])] == 1
    }


def products(net: Net, batches: int) -> tuple[Product, ...]:
    """Those weights, with the rows of this many batches."""
    layers, found = inner_products(net), []
    for number, (blob, place) in enumerate(net.layout.slices()):
        if number in layers:
            left, right = blob.shape
            rows = batches * layers[number].rows
            found.append(Product(blob.name, place.start, left, right, rows))
    return tuple(found)


def backward_of(loss: Tensor) -> None:
    """The backward pass, where the loss depends on a parameter."""
    note("")
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
        note("")


class LeavingGradient:
    """The sum over `batches` backward passes, divided by that, in `whole`; parts of it are `done` in the last one.

    A batch that goes through in parts has several passes: `begin` says how many there will be in all.
    To be made before the first forward pass: BatchNorm's running sums have their change in `whole`.
    """

    def __init__(self, parameters: FlatParameters, whole: Tensor, batches: int, done: Done) -> None:
        self._parameters, self._whole, self._batches, self._done = parameters, whole, batches, done
        self._before = parameters.read_statistics()
        self._blobs = list(parameters.layout.slices())
        self._left = set(range(len(self._blobs)))
        self._batch, self._passes = 0, batches
        self._apart: set[int] = set()

    def begin(self, passes: int) -> None:
        """Begin, or begin once more, with this many backward passes. Raises `EngineError` if a part is done already."""
        if len(self._left) < len(self._blobs):
            raise EngineError(
                "the memory was used up in the last part of a batch: use a smaller micro_batch"
            )
        self._batch, self._passes = 0, passes

    @contextmanager
    def as_factors(
        self, layers: Mapping[int, InnerProduct], factors: Sequence[Factors]
    ) -> Iterator[None]:
        """Inside, the gradients of these layers' weights are not made: their factors are kept."""
        places = {place.start: number for number, (_, place) in enumerate(self._blobs)}
        given = {places[one.product.start]: one for one in factors}
        self._apart = set(given)
        try:
            for number, one in given.items():
                one.left.fill(0.0)  # no backward pass may reach the layer
                one.right.fill(0.0)
                layers[number].keep = partial(self._keep, number, one, layers[number])
            yield
        finally:
            for number in given:
                layers[number].keep = None

    def backward(self, loss: Tensor) -> None:
        """The backward pass of the next batch."""
        self._batch += 1
        if self._batch < self._passes:
            backward_of(loss)
            return
        self._parameters.read_statistics_change(self._before, self._whole)
        hooks = []
        for number, leaf in enumerate(self._parameters.leaves):
            if number in self._apart:
                continue
            if leaf.requires_grad:
                hook = partial(self._leave, number)
                hooks.append(leaf.register_post_accumulate_grad_hook(hook))
            else:
                self._leave(number)
        try:
            backward_of(loss)
        finally:
            for hook in hooks:
                hook.remove()
        self._parameters.write_statistics(self._before)
        for number in sorted(self._left, reverse=True):
            self._leave(number)  # the loss does not depend on it

    def _leave(self, number: int, _leaf: Tensor | None = None) -> None:
        blob, place = self._blobs[number]
        if not blob.statistic and number not in self._apart:
            self._parameters.read_gradient(number, self._whole, self._batches)
        self._left.discard(number)
        self._done(place.start, place.stop)

    def _keep(
        self, number: int, factors: Factors, layer: InnerProduct, bottom: Tensor, top: Tensor
    ) -> None:
        """Called with the gradient of the layer's top."""
        rows = slice((self._batch - 1) * layer.rows, self._batch * layer.rows)
        left, right = (torch.from_numpy(one[rows]) for one in (factors.left, factors.right))
        tops, bottoms = (right, left) if layer.transposed else (left, right)
        tops.copy_(top.reshape(tops.shape))
        if self._batches > 1:
            tops.div_(self._batches)
        bottoms.copy_(bottom.reshape(bottoms.shape))
        if self._batch == self._batches:
            self._leave(number)
