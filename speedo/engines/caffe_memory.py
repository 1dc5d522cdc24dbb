"""The memory that a step of a net takes in pycaffe, from the shapes of the net; Caffe allocates it in the first step.

Each blob between the layers has its values and, if a layer below learns, its gradient. What else a layer holds is taken
from Caffe's sources (Caffe: layers/*_layer.cpp, Reshape; solvers/*_solver.cpp). Not counted are the nets that LSTM and
RNN unroll, and what Python layers hold.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from speedo.engines.step_memory import LayerMemory, StepMemory, bytes_of_blobs
from speedo.engines.update_rules import RULES
from speedo.exchange.vector import Layout

_FLOAT: Final = 4
# Vectors of the parameters' length that a solver uses besides its history: `update_` and `temp_`.
_SCRATCH: Final = {"SGD": 0, "Nesterov": 1, "AdaGrad": 1, "RMSProp": 1, "AdaDelta": 2, "Adam": 1}
_READ_AHEAD: Final = frozenset({"Data", "ImageData", "WindowData"})
_WITHOUT_MEMORY: Final = frozenset({"Flatten", "Reshape"})  # their tops are their bottoms
# Bytes for each value of the first bottom that a layer holds besides its tops.
_HELD: Final = {
    "BatchNorm": 2 * _FLOAT, "Dropout": _FLOAT, "LRN": _FLOAT, "SoftmaxWithLoss": _FLOAT,
    "SigmoidCrossEntropyLoss": _FLOAT, "EuclideanLoss": _FLOAT, "ContrastiveLoss": _FLOAT,
}  # fmt: skip
_HELD_IN_PLACE: Final = {"BatchNorm": _FLOAT, "Scale": _FLOAT, "PReLU": _FLOAT}
_HELD_WITHIN_CHANNELS: Final = 6 * _FLOAT  # LRN: three values and gradients of layers of its own


def step_memory(net: Any, parameter: Any, layout: Layout, solver: str) -> StepMemory:
    """That of `net`, which Caffe built from the NetParameter `parameter`, with a solver of this type."""
    params = {layer.name: layer for layer in parameter.layer}
    own = bytes_of_blobs(layout)
    copies = 2 + RULES[solver].vectors + _SCRATCH[solver]
    learned: set[int] = set()  # blobs with a gradient
    found: list[LayerMemory] = []
    for at, layer in enumerate(net.layers):
        name, kind = str(net._layer_names[at]), str(layer.type)
        bottoms, tops = list(net._bottom_ids(at)), list(net._top_ids(at))
        param = params.get(name)  # a Split of Caffe's own has none
        if _learns(layer, param) or not learned.isdisjoint(bottoms):
            learned.update(tops)
        made = [top for top in tops if top not in bottoms]
        gradients = _FLOAT * sum(_count(net, top) for top in made if top in learned)
        values = workspace = 0
        if not bottoms:
            workspace = _FLOAT * sum(_count(net, top) for top in made)
            if kind in _READ_AHEAD and param is not None:
                workspace *= int(param.data_param.prefetch)
        elif kind == "Split":
            values = gradients
        elif kind not in _WITHOUT_MEMORY:
            values = gradients + _FLOAT * sum(_count(net, top) for top in made)
            values += _held(net, kind, param, bottoms[0], tops, in_place=not made)
            workspace = _columns(net, layer, param, bottoms[0], tops)
        parameters = copies * own.pop(name, 0)
        if parameters or values or workspace:
            found.append(LayerMemory(name, kind, parameters, values, workspace))
    tops = list(net._top_ids(0)) if len(net.layers) else []
    shape = list(net._blobs[tops[0]].shape) if tops else []
    return StepMemory(tuple(found), 0, int(shape[0]) if shape else 1)


def _learns(layer: Any, param: Any) -> bool:
    """Whether Caffe computes a gradient of one of its parameters (Caffe: net.cpp, Init)."""
    if param is None or layer.type == "BatchNorm":
        return False
    rates = [one.lr_mult for one in param.param]
    rates += [1.0] * (len(layer.blobs) - len(rates))
    return any(rate > 0 for rate in rates[: len(layer.blobs)])


def _held(net: Any, kind: str, param: Any, bottom: int, tops: list[int], *, in_place: bool) -> int:
    """Bytes besides the tops that grow with the batch."""
    each = _HELD.get(kind, 0) + (_HELD_IN_PLACE.get(kind, 0) if in_place else 0)
    if kind == "LRN" and param.lrn_param.norm_region == param.lrn_param.WITHIN_CHANNEL:
        each = _HELD_WITHIN_CHANNELS
    if kind == "Pooling" and len(tops) == 1 and param.pooling_param.pool == param.pooling_param.MAX:
        return _FLOAT * _count(net, tops[0])  # the places of the maxima
    return each * _count(net, bottom)


def _columns(net: Any, layer: Any, param: Any, bottom: int, tops: list[int]) -> int:
    """Bytes of the columns into which a convolution copies the windows of one image."""
    if layer.type not in ("Convolution", "Deconvolution"):
        return 0
    kernel = tuple(layer.blobs[0].shape)[1:]  # channels of a group, then the axes of a window
    convolved = net._blobs[tops[0] if layer.type == "Convolution" else bottom].shape
    windows = prod(tuple(convolved)[len(convolved) - len(kernel) + 1 :])
    return _FLOAT * int(prod(kernel) * param.convolution_param.group * windows)


def _count(net: Any, blob: int) -> int:
    return int(net._blobs[blob].count)
