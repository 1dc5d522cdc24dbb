"""A batch that goes through the net in parts: fewer records at a time take less memory, and the step is that of all.

The gradients of the parts are added. Each loss is weighted so that the sum over the parts is that of the whole batch,
whatever it is divided by. What mixes records otherwise is refused by name, except BatchNorm, whose statistics are those
of each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from caffenets.box_labels import boxes_of
from caffenets.known_types import type_here
from caffenets.layer import SourceLayer
from caffenets.wiring import Wired
from speedo.engines.pytorch.memory import is_lack_of_memory
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.step_memory import step_memory
from speedo.errors import EngineError
from speedo.system.free_memory import free_memory

AUTO: Final = "auto"
_LEAVE_IT_OUT: Final = "leave micro_batch out"
# They read the first axis as time, as images of regions, or by the values of others.
_MIXING: Final = frozenset(
    {
        "RNN", "LSTM", "LSTMUnit", "BatchReindex", "Filter", "DetectionOutput", "DetectionEvaluate", "Proposal",
        "AnchorTarget", "ProposalTarget", "ROIPooling", "PSROIPooling", "Reverse",
    }
)  # fmt: skip
# Of a GPU's memory; more in use after the first step, and the parts are halved once more.
_FULL: Final = 0.92

Tops = Mapping[int, Tensor]


class MicroBatches:
    """The batches of a net in parts of `wanted` records, or with `auto` of as many as fit the memory.

    So many processes are `sharing` it. Raises `EngineError` for a net whose loss does not follow from those of parts.
    """

    def __init__(self, net: Net, wanted: str, sharing: int = 1) -> None:
        self._net, self._auto, self._sharing = net, wanted == AUTO, sharing
        self.batch = net.batch
        self._boxes = _boxes_in(net)
        self._losses = _losses_of(net, self._boxes)
        self.size = self._first_size() if self._auto else min(int(wanted), self.batch)
        self._checked = not self._auto

    @property
    def parts(self) -> int:
        """Into how many parts a batch is divided."""
        return -(-self.batch // self.size)

    def halve(self) -> bool:
        """Take half as many records at a time from now on; False where a part is one record already."""
        if self.size < 2:
            return False
        self.size = -(-self.size // 2)
        return True

    def loss(
        self, batch: Tops, backward: Callable[[Tensor], None], precision: Callable[[], Any]
    ) -> Tensor:
        """The loss of a batch that `Net.read` gave; `backward` is called with the loss of each part.

        `precision` is the context of a forward pass.
        """
        counts = self._counts(batch)
        total = torch.zeros((), device=self._net.device)
        for records, part in self._divided(batch):
            weights = self._weights(records, part, counts)
            with precision():
                loss, _ = self._net.forward(part, weights)
            total += loss.detach()
            backward(loss)
        self._keep_room()
        return total

    def _divided(self, batch: Tops) -> Iterator[tuple[int, Tops]]:
        """The number of records and the tops of each part; what is no record is whole in each."""
        for start in range(0, self.batch, self.size):
            records = range(start, min(start + self.size, self.batch))
            yield (
                len(records),
                {number: self._part(number, top, records) for number, top in batch.items()},
            )

    def _part(self, number: int, top: Tensor, records: range) -> Tensor:
        if number in self._boxes:
            return torch.from_numpy(boxes_of(top.numpy(), records))
        return top[records.start : records.stop] if top.dim() and len(top) == self.batch else top

    def _weights(
        self, records: int, part: Tops, counts: Mapping[int, Tensor]
    ) -> dict[int, float | Tensor]:
        """By the number of its top the weight of each loss of a part."""
        weights: dict[int, float | Tensor] = {}
        for number, (wired, how) in self._losses.items():
            if how == "mean":
                weights[number] = records / self.batch
            elif how == "counted":
                weights[number] = self._counted(wired, part).clamp(min=1) / counts[number].clamp(
                    min=1
                )
        return weights

    def _counts(self, batch: Tops) -> dict[int, Tensor]:
        """What the losses that divide by a number of labels divide by, of the whole batch."""
        found: dict[int, Tensor] = {}
        for number, (wired, how) in self._losses.items():
            if how == "counted":
                found[number] = torch.stack(
                    [self._counted(wired, part) for _, part in self._divided(batch)]
                ).sum()
        return found

    @torch.no_grad()
    def _counted(self, wired: Wired, part: Tops) -> Tensor:
        layer = wired.layer
        return layer.counted(*(self._value(wired.bottoms[at], part) for at in layer.counts))

    def _value(self, number: int, part: Tops) -> Tensor:
        """The value of this number for these tops of the data layers; computes what it depends on."""
        if number in part:
            return part[number]
        wired = next(one for one in self._net.wired if number in one.tops)
        blank = torch.zeros((), device=self._net.device)
        bottoms = [
            blank.expand(self._net.all_shapes[bottom]) if wired.layer.by_shape else self._value(bottom, part)
            for bottom in wired.bottoms
        ]  # fmt: skip
        return wired.layer.forward(bottoms, wired.blobs)[wired.tops.index(number)]

    def _first_size(self) -> int:
        """The largest part, by halves, whose step takes its share of half of the free memory; a GPU tells itself."""
        if self._net.device.type == "cuda":
            return self.batch
        memory = step_memory(self._net, vectors=0)
        return memory.largest_part(memory.parameters + free_memory() / 2 / self._sharing) or 1

    def _keep_room(self) -> None:
        """After the first step on a GPU: halve the parts if this process's share of it is nearly full."""
        if self._checked or self._net.device.type != "cuda":
            return
        self._checked = True
        _, whole = torch.cuda.mem_get_info(self._net.device)
        if torch.cuda.max_memory_reserved(self._net.device) > _FULL * whole / self._sharing:
            self.halve()


def lacks_memory(error: BaseException | None) -> bool:
    """Whether the error, or what it came from, is a lack of memory."""
    while error is not None:
        if isinstance(error, RuntimeError) and is_lack_of_memory(error):
            return True
        error = error.__cause__
    return False


def _boxes_in(net: Net) -> frozenset[int]:
    """The numbers of the values that have the boxes of a batch."""
    sources = [(one, one.layer.boxes) for one in net.wired if isinstance(one.layer, SourceLayer)]
    return frozenset(n for one, at in sources if at is not None for n in one.tops[at : at + 1])


def _losses_of(net: Net, boxes: frozenset[int]) -> dict[int, tuple[Wired, str]]:
    """By the number of its top each loss, and how it follows from those of parts: `sum`, `mean` or `counted`."""
    found: dict[int, tuple[Wired, str]] = {}
    # Values that differ from part to part, as those with a row for each record do
    varying = set(boxes)
    for wired in net.wired:
        layer = wired.layer
        if type_here(layer.param) in _MIXING:
            raise layer.refuse(
                f"mixes the records of a batch, so that parts do not give its step: {_LEAVE_IT_OUT}"
            )
        if not wired.bottoms:
            varying.update(n for n in wired.tops if net.all_shapes[n][:1] == (net.batch,))
            continue
        reads = not layer.by_shape and any(number in varying for number in wired.bottoms)
        if any(number in found for number in wired.bottoms):
            raise layer.refuse(f"reads a loss, which is another one in each part: {_LEAVE_IT_OUT}")
        losses = {wired.tops[at]: at for at, _, _ in wired.losses}
        for number in wired.tops if reads else ():
            shape = net.all_shapes[number]
            how = layer.loss_of_parts()
            if number in losses and not (how == "" and shape[:1] == (net.batch,)):
                if not how:
                    raise layer.refuse(
                        f"has a loss that does not follow from those of parts: {_LEAVE_IT_OUT}"
                    )
                found[number] = wired, how
            elif shape[:1] == (net.batch,):
                varying.add(number)
            elif shape:
                raise layer.refuse(
                    f"makes {shape} of a batch of {net.batch}, so that parts do not give its step: {_LEAVE_IT_OUT}"
                )
        if not reads:
            for number in losses:
                found[number] = wired, "mean"  # the same in each part
    return found


def micro_batches(net: Net, wanted: str, sharing: int = 1) -> MicroBatches | None:
    """Those of a net; None where its batches go through whole. Raises `EngineError`."""
    if not wanted:
        return None
    if not net.batch:
        raise EngineError(
            "micro_batch divides a batch, and the first layer of the net has none: leave it out"
        )
    return MicroBatches(net, wanted, sharing)
