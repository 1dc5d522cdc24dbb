"""A Caffe net in PyTorch: the layers in their order, what flows between them, and the parameters that they share.

What Caffe does by inserting Split layers, autograd does: the gradients of all readers of a blob are added. A layer that
works in place makes a new value under the old name (Caffe: net.cpp, Init).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caffenets.graph import NetGraph
from caffenets.known_types import refusals, type_here
from caffenets.layer import BlobSpec, Layer, LayerContext, SourceLayer
from caffenets.layers import LAYERS
from caffenets.layers.detection import DetectionEvaluate
from caffenets.pytorch.layer_params import check_shared, first_values, lr_mult, note_multipliers
from caffenets.weight_files.stored import shape_text
from speedo.engines.evaluation import uses_statistics
from speedo.engines.layer_notes import note_backward, note_forward, noting
from speedo.engines.pytorch.data import SOURCES
from speedo.engines.pytorch.data.source import BatchSource
from speedo.engines.pytorch.flat import FlatParameters
from speedo.engines.pytorch.memory import is_lack_of_memory
from speedo.errors import EngineError
from speedo.exchange.vector import Blob, Layout

_CONVOLUTIONS = frozenset(
    {"Convolution", "Deconvolution", "ConvolutionDepthwise", "DepthwiseConvolution"}
)


class Net(NetGraph):
    """A net made from a NetParameter in today's format, of which only the layers of its own state are left.

    `rank`, `count` and `folder` are for its data layers. `channels_last` allows that order of memory, which is then
    taken where a convolution reads several channels. Random numbers are those of PyTorch's global generators, which
    the caller seeds; `seed` is what data layers are given. With `share` the layers that have the name of one of that
    net use its parameters, as Caffe's test nets do (Caffe: net.cpp, ShareTrainedLayersWith).

    `layout` and `parameters` have the blobs that the net owns. Raises `EngineError`, which names the layer.
    """

    def __init__(
        self,
        net: Any,
        phase: str,
        *,
        rank: int = 0,
        count: int = 1,
        seed: int | None = None,
        folder: Path | None = None,
        device: torch.device | str = "cpu",
        share: Net | None = None,
        channels_last: bool = True,
    ) -> None:
        self.device = torch.device(device)
        try:
            super().__init__(net, phase, LayerContext(phase, rank, count, seed, folder))
            self._make_parameters(share)
        except BaseException:
            self.close()
            raise
        self._channels_last = channels_last and any(map(_reads_channels, self.layers))

    @property
    def bound(self) -> list[list[Tensor]]:
        """The blobs of each layer: those of the `parameters`, or parts of them that do not learn."""
        return [wired.blobs for wired in self._wired]

    @property
    def sources(self) -> list[SourceLayer]:
        return [layer for layer in self.layers if isinstance(layer, SourceLayer)]

    @property
    def layout(self) -> Layout:
        return self.parameters.layout

    @property
    def flat(self) -> Tensor:
        return self.parameters.flat

    @property
    def judged_boxes(self) -> frozenset[str]:
        """The outputs that a DetectionEvaluate layer makes."""
        tops = {
            n
            for wired in self._wired
            if isinstance(wired.layer, DetectionEvaluate)
            for n in wired.tops
        }
        return frozenset(name for name, number in self._outputs.items() if number in tops)

    @property
    def has_statistics(self) -> bool:
        """Whether all BatchNorm layers that normalize by running sums have some."""
        users = [wired for wired in self._wired if uses_statistics(wired.layer.param)]
        return all(float(wired.blobs[2]) for wired in users)

    def read(self) -> dict[int, Tensor]:
        """The tops of the data layers for the next batch, by their numbers, where the layers made them."""
        return {
            number: top
            for wired in self._wired
            if isinstance(wired.layer, SourceLayer)
            for number, top in zip(wired.tops, wired.layer.forward([], []), strict=True)
        }

    def forward(
        self,
        given: Mapping[int, Tensor] | None = None,
        weights: Mapping[int, float | Tensor] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the next batch, for a backward pass, and the outputs without gradient.

        `given` has the tops of the data layers, which then read nothing; `weights` those of losses, besides their own.
        """
        values: list[Tensor | None] = [None] * len(self._shapes)
        total: Tensor | None = None
        noted = noting()
        for wired in self._wired:
            bottoms: list[Any] = [values[number] for number in wired.bottoms]
            for at in wired.detached:
                bottoms[at] = bottoms[at].detach()
            blobs = wired.blobs
            if wired.views:
                blobs = [
                    blob.view(wired.views.get(index, blob.shape))
                    for index, blob in enumerate(blobs)
                ]
            if noted:
                note_forward(wired.layer.param)
            try:
                if given is not None and isinstance(wired.layer, SourceLayer):
                    tops = [given[number] for number in wired.tops]
                else:
                    tops = wired.layer.forward(bottoms, blobs)
            except RuntimeError as error:
                raise _failed(wired.layer, error) from error
            if noted:
                note_backward(wired.layer.param, bottoms, tops)
            if not wired.bottoms:
                tops = [self._place(top) for top in tops]
            for number, top in zip(wired.tops, tops, strict=True):
                values[number] = top
            for at, weight, with_gradient in wired.losses:
                loss = _weighted(tops[at] if with_gradient else tops[at].detach(), weight)
                if weights is not None and wired.tops[at] in weights:
                    loss = loss * weights[wired.tops[at]]
                total = loss if total is None else total + loss
            for number in wired.used_up:
                values[number] = None
        outputs: dict[str, Tensor] = {}
        for name, number in self._outputs.items():
            value = values[number]
            assert value is not None, f"{name} was given away before the end"
            outputs[name] = value.detach()
        if total is None:
            total = torch.zeros((), device=self.device)
        return total, outputs

    def check_indices(self) -> None:
        """Raises `EngineError` for a label or index of the passes since the last call that is none.

        On a CPU the pass itself has raised it; with a GPU the host waits here.
        """
        for layer in self.layers:
            layer.check_indices()

    def skip(self, batches: int) -> None:
        """Let the data layers pass over this many batches, as if the net had computed them."""
        for source in self.sources:
            source.skip(batches)

    def read_next(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Let the data layers read the records of these ranges next."""
        for source in self.sources:
            source.read_next(ranges)

    def next_batch(self) -> dict[str, Tensor]:
        """The tops of the data layers for the next batch, by their names."""
        found: dict[str, Tensor] = {}
        for source in self.sources:
            found.update(zip(source.param.top, source.forward([], []), strict=True))
        return found

    def share_with(self, other: Net) -> None:
        """Use the parameters of `other` from now on; see `share`."""
        for (index, number), blob in self._found_in(other).items():
            self._wired[index].blobs[number] = blob
            self._wired[index].views.pop(number, None)

    def blobs_of_layers(self) -> Iterator[tuple[str, list[Tensor]]]:
        """Each layer's name with the memory of its blobs, shared ones at each of their layers."""
        for wired in self._wired:
            yield (
                wired.layer.name,
                [
                    blob.detach().view(spec.shape)
                    for blob, spec in zip(wired.blobs, wired.layer.blobs, strict=True)
                ],
            )

    def close(self) -> None:
        """End the threads of the data layers; may be called twice."""
        for source in self.sources:
            source.close()

    def make_layer(self, param: Any, context: LayerContext) -> Layer:
        """Also one that reads records; raises `EngineError` for what this engine does not have."""
        known = type_here(param)
        kind = LAYERS.get(known) or SOURCES.get(known)
        if kind is None and known not in refusals():
            raise EngineError(
                f"layer {param.name!r} has the type {param.type!r}, which the PyTorch engine does not have: "
                "use --engine caffe, or layers that docs/layers.md lists"
            )
        if kind is None:
            return super().make_layer(param, context)
        if issubclass(kind, BatchSource):
            return kind(param, context, pin=self.device.type == "cuda")
        return kind(param, context)

    def _make_parameters(self, share: Net | None) -> None:
        """Allocate the blobs that the net owns, fill them, and bind every layer to its own."""
        found = self._found_in(share) if share is not None else {}
        named: dict[str, tuple[int, int]] = {}
        multipliers: dict[str, dict[str, float]] = {}
        owners: dict[tuple[int, int], int] = {}  # to the place among the net's own blobs
        owned: list[Blob] = []
        specs: list[tuple[Layer, int, BlobSpec]] = []
        for index, wired in enumerate(self._wired):
            layer = wired.layer
            for number, spec in enumerate(layer.blobs):
                key = (index, number)
                name = layer.param_name(number)
                if name:
                    note_multipliers(layer, number, multipliers.setdefault(name, {}))
                if name and name in named:
                    owner = named[name]
                    check_shared(layer, number, self._wired[owner[0]].layer, owner[1])
                    if owner in found:
                        found.setdefault(key, found[owner])
                    else:
                        owners[key] = owners[owner]
                elif key not in found:
                    owners[key] = len(owned)
                    owned.append(Blob(f"{layer.name}/{number}", tuple(spec.shape), spec.statistic))
                    specs.append((layer, number, spec))
                if name:
                    named.setdefault(name, key)
        self.parameters = FlatParameters(Layout(tuple(owned)), self.device)
        for leaf, (layer, number, spec) in zip(self.parameters.leaves, specs, strict=True):
            first_values(leaf, layer, number, spec)
        for index, wired in enumerate(self._wired):
            for number, spec in enumerate(wired.layer.blobs):
                key = (index, number)
                if key in found:
                    blob = found[key]
                else:
                    blob = self.parameters.leaves[owners[key]]
                    if spec.statistic or lr_mult(wired.layer, number) <= 0:
                        blob = blob.detach()
                    else:
                        blob.requires_grad_()
                wired.blobs.append(blob)
                if tuple(blob.shape) != tuple(spec.shape):
                    wired.views[number] = tuple(spec.shape)

    def _found_in(self, other: Net) -> dict[tuple[int, int], Tensor]:
        """The blobs of `other` for each of this net's layers that has the name of one of its layers."""
        places: dict[str, int] = {}
        for index, wired in enumerate(self._wired):
            places.setdefault(wired.layer.name, index)
        found = {}
        for name, blobs in other.blobs_of_layers():
            if name not in places:
                continue
            layer = self._wired[places[name]].layer
            theirs, ours = [tuple(b.shape) for b in blobs], [tuple(s.shape) for s in layer.blobs]
            if theirs != ours:
                raise layer.refuse(
                    f"needs blobs of {_all_dims(ours)}, and the layer of this name in the train net has "
                    f"{_all_dims(theirs)}: make both alike, or rename one"
                )
            for number, blob in enumerate(blobs):
                found[places[name], number] = blob
        return found

    def _place(self, records: Tensor) -> Tensor:
        """A top of a layer without bottoms, on the device and in the order of memory that convolutions like best."""
        if records.device != self.device:
            records = records.to(self.device, non_blocking=True)
        if not self._channels_last or records.dim() != 4:
            return records
        if records.shape[1] == 1:
            # Both orders are the same memory: only the strides say which one is meant.
            _, _, height, width = records.shape
            records = records.contiguous()
            return records.as_strided(records.shape, (height * width, 1, width, 1))
        return records.contiguous(memory_format=torch.channels_last)


def _reads_channels(layer: Layer) -> bool:
    """Whether it is a convolution with several channels of input."""
    if layer.param.type not in _CONVOLUTIONS:
        return False
    return layer.blobs[0].shape[1] > 1 or layer.param.convolution_param.group > 1


def _weighted(top: Tensor, weight: float) -> Tensor:
    top = top.float()
    if top.dim():
        top = top.sum()
    return top if weight == 1.0 else top * weight


def _failed(layer: Layer, error: RuntimeError) -> EngineError:
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else type(error).__name__
    if is_lack_of_memory(error):
        return layer.refuse(
            f"found too little memory ({first}): use --engine torch,micro_batch=auto, or a smaller batch_size"
        )
    return layer.refuse(f"failed in PyTorch: {first}")


def _all_dims(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(shape_text(tuple(one)) for one in shapes) or "none"
