"""The shapes of inputs where data layers were: as given, as the records are, or as options and weights say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from caffenets.data_layers import batch_of
from caffenets.deploy import Deploy, deploy_of
from caffenets.errors import ConfigError, SolverError
from caffenets.weight_files.stored import MOST_AXES, Shape, shape_text

_GIVEN: Final = re.compile(r"(?P<name>[^=]+)=(?P<sizes>[1-9][0-9]*(?:x[1-9][0-9]*)*)")
MOST_VALUES: Final = 1 << 28  # of an input: 1 GiB
USUAL_BATCH: Final = 1


class SizesError(SolverError):
    """Sizes of an input that have to be given."""


def given_shapes(texts: Sequence[str]) -> dict[str, Shape]:
    """The shapes in `--shape data=1x3x227x227`. Raises `ConfigError`."""
    found = {}
    for text in texts:
        match = _GIVEN.fullmatch(text)
        sizes = [] if match is None else [int(size) for size in match["sizes"].split("x")]
        if match is None or math.prod(sizes) > MOST_VALUES:
            raise ConfigError(
                f"--shape {text!a} is no shape; write the input's name and its sizes, the batch among them: "
                "--shape data=1x3x227x227"
            )
        found[match["name"]] = tuple(sizes)
    return found


def deployed(
    net: Any,
    origin: str,
    given: Mapping[str, Shape],
    known: Mapping[str, Shape] | None = None,
    blobs: Mapping[str, Sequence[Shape]] | None = None,
    remedy: str = "",
) -> Deploy:
    """The deploy net of `deploy_of`, with inputs of the shapes that `InputShapes` finds. Raises `SolverError`."""
    deploy = deploy_of(
        net, InputShapes(net, given, known or {}, blobs or {}, origin, remedy), origin
    )
    for name, shape in deploy.inputs.items():
        if not shape or min(shape) < 1 or math.prod(shape) > MOST_VALUES or len(shape) > MOST_AXES:
            raise SolverError(
                f"{origin}: input {name!r} has the sizes {shape_text(shape)[:200]}: give sizes of 1 or more, which "
                f"hold at most {MOST_VALUES:,} values"
            )
    unknown = [name for name in given if name not in deploy.inputs]
    if unknown:
        raise SolverError(
            f"--shape names {unknown[0]!r}, but the net's inputs are {', '.join(map(repr, deploy.inputs))}: "
            "name one of these"
        )
    return deploy


class InputShapes:
    """Answers for each data layer; `known` are the shapes of a batch of its records, as far as those could be read."""

    def __init__(
        self,
        net: Any,
        given: Mapping[str, Shape],
        known: Mapping[str, Shape],
        blobs: Mapping[str, Sequence[Shape]],
        origin: str,
        remedy: str = "",
    ) -> None:
        """`remedy` is what else than `--shape` may be given, as words with an "or" at their end."""
        self._net, self._given, self._known = net, given, known
        self._blobs, self._origin, self._remedy = blobs, origin, remedy

    def __call__(self, layer: Any, tops: Sequence[str]) -> dict[str, Shape]:
        """The shapes of these tops. Raises `SolverError` with the option that gives them."""
        found = {}
        for top in tops:
            shape = (
                self._given.get(top)
                or self._known.get(top)
                or _declared(layer, list(layer.top).index(top))
                or self._guessed(layer, top)
            )
            if shape is None:
                raise SizesError(
                    f"{self._origin}: the sizes of {top!r} are not known, because the records of layer "
                    f"{layer.name!r} ({layer.type}) are not here: give {self._remedy}--shape {top}=1x3x227x227 with "
                    "its sizes"
                )
            found[top] = shape
        return found

    def _guessed(self, layer: Any, top: str) -> Shape | None:
        """By the crop, or the size that images are given, and the channels that the first convolution reads."""
        crop = int(layer.transform_param.crop_size) or int(layer.window_data_param.crop_size)
        image = layer.image_data_param
        sizes = (crop, crop) if crop else (int(image.new_height), int(image.new_width))
        batch = batch_of(layer) or USUAL_BATCH
        for reader in self._net.layer:
            if top not in reader.bottom or not self._blobs.get(reader.name):
                continue
            weight = self._blobs[reader.name][0]
            if reader.type == "Convolution" and len(weight) == 4 and min(sizes) > 0:
                return (batch, weight[1] * int(reader.convolution_param.group), *sizes)
            if reader.type == "InnerProduct" and not any(sizes) and layer.type != "Data":
                return (batch, weight[0 if reader.inner_product_param.transpose else -1])
        return None


def _declared(layer: Any, at: int) -> Shape | None:
    """What a DummyData or a MemoryData layer says of its top `at`."""
    if layer.type == "MemoryData":
        memory = layer.memory_data_param
        shape = (int(memory.batch_size),)
        return (
            shape if at else (*shape, int(memory.channels), int(memory.height), int(memory.width))
        )
    if layer.type != "DummyData":
        return None
    dummy = layer.dummy_data_param
    if dummy.shape:
        return tuple(map(int, dummy.shape[min(at, len(dummy.shape) - 1)].dim))
    sizes = (dummy.num, dummy.channels, dummy.height, dummy.width)
    if not all(sizes):
        return None
    return tuple(int(one[min(at, len(one) - 1)]) for one in sizes)
