"""The memory that a step of a net takes in PyTorch, found without computing: its layers are given tensors of no memory.

PyTorch's device `meta` has shapes and no values. A forward pass there tells what each layer has autograd keep. What
the kernels of a library take for themselves is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from caffenets.layer import SourceLayer
from caffenets.wiring import Wired
from speedo.engines.pytorch.data.source import BatchSource
from speedo.engines.pytorch.devices import META
from speedo.engines.pytorch.net import Net
from speedo.engines.step_memory import LayerMemory, StepMemory, bytes_of_blobs

_META: Final = torch.device(META)
_FLOAT: Final = 4


@dataclass(slots=True)
class _Storage:
    """Memory of values: the layer that made it, and the first that reads it in its backward pass, if one does."""

    memory: Any  # held, so that no other storage has its address
    maker: int
    saver: int | None = None


def step_memory(net: Net, vectors: int) -> StepMemory:
    """That of `net`, whose solver keeps this many `vectors` of the parameters' length."""
    trace = _Trace(net)
    layers = net.wired
    kept = [0] * len(layers)  # by the layer that made it
    freed = [0] * len(layers)  # by the layer whose backward pass frees it
    for storage in trace.storages.values():
        if storage.saver is not None and storage.maker not in trace.sources:
            kept[storage.maker] += storage.memory.nbytes()
            freed[storage.saver] += storage.memory.nbytes()
    own = bytes_of_blobs(net.layout)
    found = []
    for at, wired in enumerate(layers):
        name = wired.layer.name
        workspace = 0
        if at in trace.sources:
            batches = wired.layer.batches if isinstance(wired.layer, BatchSource) else 1
            workspace = batches * sum(_bytes(net, number) for number in wired.tops)
        # Weights, gradients, history; a name may stand twice, and its blobs are then at the first.
        parameters = (2 + vectors) * own.pop(name, 0)
        found.append(
            LayerMemory(name, str(wired.layer.param.type), parameters, kept[at], workspace)
        )
    most, left = 0, 0
    for at, gradients in enumerate(trace.gradients()):
        left += freed[at]
        most = max(most, left + gradients)
    return StepMemory(tuple(found), max(most - left, 0), max(net.batch, 1))


class _Trace:
    """A forward pass without values: `storages` by their addresses, `sources` the numbers of the data layers."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.storages: dict[int, _Storage] = {}
        self.sources = {
            at for at, wired in enumerate(net.wired) if isinstance(wired.layer, SourceLayer)
        }
        self._values: list[Tensor] = []
        self._at = 0
        used_up = {number for wired in net.wired for number in wired.used_up}
        with torch.enable_grad(), saved_tensors_hooks(self._save, lambda packed: packed):
            for at, wired in enumerate(net.wired):
                self._at, blobs = at, _blobs_of(wired)
                for top in self._tops(wired, blobs):
                    self._values.append(top)
                    self._note(top)
                for blob in blobs:  # parameters, which are no values
                    self._note(blob).saver = None
        for number, value in enumerate(self._values):
            if number not in used_up:  # an output: there until the end
                storage = self._note(value)
                storage.saver = storage.maker if storage.saver is None else storage.saver

    def gradients(self) -> list[int]:
        """For each layer the bytes of the gradients of values that there are during its backward pass.

        That of a value is there from the backward pass of its last reader to that of its maker. One that is a view of
        a value has no gradient of its own.
        """
        layers = self._net.wired
        readers = {number: at for at, wired in enumerate(layers) for number in wired.bottoms}
        found = [0] * len(layers)
        for maker, wired in enumerate(layers):
            below = {self._address(number) for number in wired.bottoms}
            for number in wired.tops:
                value = self._values[number]
                if value.requires_grad and self._address(number) not in below:
                    for at in range(maker, readers.get(number, maker) + 1):
                        found[at] += _bytes(self._net, number)
        return found

    def _tops(self, wired: Wired, blobs: Sequence[Tensor]) -> Sequence[Tensor]:
        """What the layer makes of its bottoms; where it must see values, tensors of the same shapes."""
        bottoms = [self._values[number] for number in wired.bottoms]
        bottoms = [
            bottom.detach() if at in wired.detached else bottom for at, bottom in enumerate(bottoms)
        ]
        if not isinstance(wired.layer, SourceLayer):
            try:
                tops = copy(wired.layer).forward(bottoms, blobs)  # some note what they have seen
                if all(top.device == _META for top in tops):
                    return tops
            except (RuntimeError, TypeError):  # PyTorch's, where a value is wanted
                pass
        learns = any(one.requires_grad for one in (*bottoms, *blobs))
        shapes = [self._net.all_shapes[number] for number in wired.tops]
        tops = [torch.empty(shape, device=_META, requires_grad=learns) for shape in shapes]
        for one in (*bottoms, *tops) if learns else ():
            self._save(one)
        return tops

    def _save(self, tensor: Tensor) -> None:
        """Note that the present layer's backward pass will read this."""
        if tensor.device == _META:
            storage = self._note(tensor)
            storage.saver = self._at if storage.saver is None else storage.saver

    def _note(self, tensor: Tensor) -> _Storage:
        memory = tensor.untyped_storage()
        return self.storages.setdefault(memory._cdata, _Storage(memory, self._at))

    def _address(self, number: int) -> int:
        return int(self._values[number].untyped_storage()._cdata)


def _blobs_of(wired: Wired) -> list[Tensor]:
    """The layer's blobs, without memory."""
    blobs = [
        torch.empty(tuple(blob.shape), device=_META, requires_grad=blob.requires_grad)
        for blob in wired.blobs
    ]
    return [
        blob.view(wired.views[index]) if index in wired.views else blob
        for index, blob in enumerate(blobs)
    ]


def _bytes(net: Net, number: int) -> int:
    return _FLOAT * torch.Size(net.all_shapes[number]).numel()
