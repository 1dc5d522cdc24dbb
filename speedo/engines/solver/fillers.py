"""Replaces the weight fillers of nets whose initial weights are overwritten anyway."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from google.protobuf.message import Message

# Caffe: include/caffe/filler.hpp. They accept every blob, whatever its shape.
_OF_ANY_SHAPE: Final = frozenset({"constant", "uniform", "gaussian", "xavier", "msra"})


class Draws(Enum):
    """Which fillers are kept; the other parameters begin as zeros."""

    ALL = "all"
    DOUBTFUL = "doubtful"  # those that Caffe might refuse: for a trial of the net
    NONE = "none"


def keep_fillers(net: Any, draws: Draws) -> None:
    """Keep those fillers in the net, and replace the others by the constant 0.

    Drawing random numbers for many parameters takes time, and a worker loads other weights before its first step.
    """
    if draws is Draws.ALL:
        return
    for filler in _fillers(net):
        if draws is Draws.NONE or not is_doubtful(filler):
            filler.Clear()  # its defaults are just that


def is_doubtful(filler: Any) -> bool:
    """Whether Caffe might refuse the filler, or it draws no numbers; no only for those that Caffe surely accepts."""
    if filler.type not in _OF_ANY_SHAPE or filler.sparse != -1:
        return True
    # What it would draw from these is no weight, and the trial looks for that.
    if not all(map(math.isfinite, (filler.value, filler.mean, filler.min, filler.max))):
        return True
    if filler.type == "uniform":
        return not filler.min <= filler.max
    return filler.type == "gaussian" and not 0 < filler.std < math.inf


def _fillers(net: Any) -> Iterator[Any]:
    for layer in net.layer:
        for _, settings in layer.ListFields():
            if isinstance(settings, Message):
                for field, value in settings.ListFields():
                    if isinstance(value, Message) and _is_filler(field):
                        yield value


def _is_filler(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and str(kind.name) == "FillerParameter"
