"""The deploy net of a train or test net: inputs for data layers, no losses, Softmax or Sigmoid where the loss had it.

What only a loss, an accuracy or a side classifier needed is left out. A net without losses stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from caffenets.data_layers import FED_FROM_OUTSIDE, is_data_layer
from caffenets.errors import SolverError
from caffenets.prototxt.text import did_you_mean, line_of_layer
from caffenets.weight_files.stored import Shape

# What a loss computes of its first bottom before it compares: the layer, and where the loss has its axis.
_WITHIN: Final = {
    "SoftmaxWithLoss": ("Softmax", "softmax_param"),
    "InfogainLoss": ("Softmax", "infogain_loss_param"),
    "SigmoidCrossEntropyLoss": ("Sigmoid", ""),
}
# Layers of other Caffes that measure, or compute for losses alone; whoever reads them does so, too.
_MEASURES: Final = (
    "SegAccuracy", "LabelsequenceAccuracy", "CTCGreedyDecoder", "EvalDetection", "MatWrite", "BoxAnnotatorOHEM",
    "SoftmaxWithLossOHEM", "SmoothL1LossOHEM", "MarginInnerProduct", "LargeMarginInnerProduct", "AdaptiveBiasChannel",
    "UniqueLabel", "Yolov3", "YoloSeg",
)  # fmt: skip
_MOVES: Final = ("Flatten", "Reshape", "Permute", "Slice", "Split", "Concat", "Power", "Interp")
_FILLER: Final = "FillerParameter"


@dataclass(slots=True)
class Deploy:
    """A deploy net, and sentences about what it leaves out. `inputs` are its inputs in their order."""

    net: Any
    inputs: dict[str, Shape] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_whole(net: Any) -> bool:
    """Whether each blob that a layer of this net reads is made by one before it."""
    made: set[str] = set()
    for layer in net.layer:
        if not made.issuperset(layer.bottom):
            return False
        made.update(layer.top)
    return bool(net.layer)


def deploy_of(
    net: Any, shapes_of: Callable[[Any, Sequence[str]], Mapping[str, Shape]], origin: str
) -> Deploy:
    """The deploy net of a filtered, upgraded NetParameter; `origin` is its file.

    `shapes_of` is asked for the shapes of those tops of a data layer that are needed. Raises `SolverError`.
    """
    kept, wanted, notes = _without_losses(net)
    needed = _needed(kept, wanted)
    made = type(net)(name=net.name)
    deploy = Deploy(made, notes=notes)
    made_names, sources = set[str](), any(map(is_source, kept))
    for layer in kept:
        if not needed.intersection(layer.top):
            continue
        lacks = [name for name in layer.bottom if name not in made_names] if sources else []
        if lacks:
            line, hint = line_of_layer(origin, layer.name), did_you_mean(lacks[0], made_names)
            raise SolverError(
                f"{origin}{line}: layer {layer.name!r} reads {lacks[0]!r}, which no earlier layer makes"
                f"{hint or ': correct it'}"
            )
        made_names.update(layer.top)
        if not is_source(layer):
            made.layer.append(_bare(layer))
            continue
        tops = [str(top) for top in layer.top if top in needed]
        if layer.type == "Input":
            spread = _spread(layer)
            if len(spread) > len(layer.top):
                text = f"has {len(spread)} shapes and {len(layer.top)} tops: give one for each"
                raise SolverError(f"{origin}: layer {layer.name!r} (Input) {text}")
            sizes = {top: tuple(one.dim) for top, one in zip(layer.top, spread, strict=True)}
            shapes: Mapping[str, Shape] = {top: sizes[top] for top in tops}
        else:
            shapes = shapes_of(layer, tops)
        inputs = made.layer.add(name=layer.name, type="Input", top=tops)
        for top in tops:
            inputs.input_param.shape.add().dim.extend(shapes[top])
            deploy.inputs[top] = tuple(shapes[top])
    silent = _silenced(net) - {str(name) for layer in made.layer for name in layer.bottom}
    if tops := [str(top) for layer in made.layer for top in layer.top if top in silent]:
        made.layer.add(name="silence", type="Silence", bottom=tops)
    if not deploy.inputs:
        raise SolverError(
            f"{origin}: has no input: no layer that brings records is left without its losses; give a net with "
            "data layers or an Input layer"
        )
    return deploy


def with_batch(net: Any, batch: int) -> Any:
    """A copy of a deploy net whose inputs have this batch, each along its axis of `batch_axes`."""
    copy = type(net)()
    copy.CopyFrom(net)
    axes = batch_axes(net)
    for layer in copy.layer:
        if layer.type == "Input":
            for top, shape in zip(layer.top, _spread(layer), strict=True):
                if (axis := axes.get(top)) is not None:
                    shape.dim[axis] = batch
    return copy


def batch_axes(net: Any) -> dict[str, int]:
    """Of each input with a batch the axis along which it is."""
    shapes = {
        str(top): tuple(shape.dim)
        for layer in net.layer
        if layer.type == "Input"
        for top, shape in zip(layer.top, _spread(layer), strict=True)
    }
    marks = [
        shapes[layer.bottom[1]]
        for layer in net.layer
        if layer.type in ("LSTM", "RNN") and shapes.keys() & layer.bottom[1:2]
    ]
    axes = {}
    for name, shape in shapes.items():
        if marks and len(marks[0]) == 2:
            is_state = len(shape) == 3 and shape[:2] == (1, marks[0][1])
            if is_state or shape[:2] == marks[0]:  # or it has a record at each step
                axes[name] = 1
            elif shape[:1] == marks[0][1:]:
                axes[name] = 0
        elif shape and shape[0] == next(iter(shapes.values()))[0]:
            axes[name] = 0
    return axes


def _spread(layer: Any) -> list[Any]:
    """The shapes of an Input layer, one for each top."""
    shapes = layer.input_param.shape
    while len(shapes) < len(layer.top):
        shapes.add().CopyFrom(shapes[0])  # of none: no sizes
    return list(shapes)


def is_source(layer: Any) -> bool:
    """Whether this layer brings records, from data or from outside."""
    return is_data_layer(layer) or layer.type in FED_FROM_OUTSIDE


def _is_removed(layer: Any) -> bool:
    kinds = ("Accuracy", "DetectionEvaluate", "Silence", "HDF5Output", *_MEASURES)
    return layer.type in kinds or _is_loss(layer)


def _is_loss(layer: Any) -> bool:
    return str(layer.type).endswith("Loss") or layer.type == "WarpCTC"


def _without_losses(net: Any) -> tuple[list[Any], list[str], list[str]]:
    """The layers that stay, the blobs that are to be outputs, and notes."""
    losses = [layer for layer in net.layer if _is_loss(layer) and layer.bottom]
    main, side = _by_weight(losses)
    trained = _trained(net.layer)
    kept, gone = [], set[str]()
    for layer in net.layer:
        if layer.type in _MEASURES or gone.intersection(layer.bottom):
            gone.update(map(str, layer.top))
        elif not _is_removed(layer):
            kept.append(layer)
    apart = {str(layer.bottom[0]) for layer in side if layer.bottom} | _silenced(net)
    read = {str(name) for layer in kept for name in layer.bottom if name not in layer.top}
    wanted: dict[str, None] = {}
    for loss in main:
        added = None if gone.intersection(loss.bottom[:1]) else _within(loss, kept, net)
        if added is not None:
            kept.append(added)
            wanted.update(dict.fromkeys(map(str, added.top)))
            read.add(str(loss.bottom[0]))
    removed = [one for one in net.layer if _is_removed(one) and one.type != "Silence"]
    ends = [str(name) for layer in removed for name in layer.bottom]
    ends += [str(top) for layer in kept if not is_source(layer) for top in layer.top]
    for name in ends:
        computed = name in trained or not removed
        if name not in read and name not in apart and computed:
            wanted.setdefault(name)
    notes = []
    if side:
        names = ", ".join(repr(str(layer.name)) for layer in side)
        notes.append(f"left out with what only they need: {names}, losses of lesser weight")
    return kept, list(wanted), notes


def _silenced(net: Any) -> set[str]:
    """The blobs that are to be no outputs."""
    return {str(name) for layer in net.layer if layer.type == "Silence" for name in layer.bottom}


def _by_weight(losses: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The losses of the greatest weight, and the others, which train side classifiers."""
    weights = [float(loss.loss_weight[0]) if loss.loss_weight else 1.0 for loss in losses]
    greatest = max(weights, default=0.0)
    pairs = list(zip(losses, weights, strict=True))
    return (
        [loss for loss, weight in pairs if weight == greatest],
        [loss for loss, weight in pairs if 0 < weight < greatest],
    )


def _trained(layers: Iterable[Any]) -> set[str]:
    """The blobs that a computing layer makes of the records, other than by reshaping and cutting alone."""
    found: set[str] = set()
    for layer in layers:
        moves = layer.type in _MOVES
        if is_source(layer) or _is_removed(layer):
            continue
        if not moves or found.intersection(layer.bottom):
            found.update(map(str, layer.top))
    return found


def _within(loss: Any, kept: Sequence[Any], net: Any) -> Any:
    """The layer that stands for a loss: Softmax or Sigmoid; None where there is one already, or it computes none."""
    if loss.type not in _WITHIN:
        return None
    kind, param = _WITHIN[loss.type]
    scores = str(loss.bottom[0])
    if any(layer.type == kind and scores in layer.bottom for layer in kept):
        return None
    names = {str(layer.name) for layer in net.layer} | {
        str(top) for layer in net.layer for top in layer.top
    }
    top = str(loss.top[1]) if len(loss.top) > 1 else "prob" if kind == "Softmax" else "probability"
    if (len(loss.top) < 2 and top in names) or any(top in layer.top for layer in kept):
        top = f"{scores}_prob"
    layer = type(loss)(name=top, type=kind, bottom=[scores], top=[top])
    axis = int(getattr(loss, param).axis) if param else 1
    if axis != 1:
        layer.softmax_param.axis = axis
    return layer


def _needed(layers: Sequence[Any], wanted: Iterable[str]) -> set[str]:
    """The blobs that these outputs need."""
    found = set(wanted)
    for layer in reversed(layers):
        if found.intersection(layer.top):
            found.update(map(str, layer.bottom))
    return found


def _bare(layer: Any) -> Any:
    """The layer without what only training needs; names of shared parameters stay."""
    bare = type(layer)()
    bare.CopyFrom(layer)
    for name in ("loss_weight", "propagate_down", "include", "exclude", "phase", "blobs"):
        bare.ClearField(name)
    if layer.type == "BN" and (
        bare.bn_param.HasField("scale_filler") or bare.bn_param.HasField("shift_filler")
    ):
        bare.bn_param.bn_mode = (
            bare.bn_param.bn_mode
        )  # without the fillers nothing else says whose it is
    shared = [param for param in layer.param if param.name]
    del bare.param[:]
    for param in layer.param if shared else ():
        kept = bare.param.add()
        if param.name:
            kept.name = param.name
        if param.HasField("share_mode"):
            kept.share_mode = param.share_mode
    for own, message in bare.ListFields():
        if own.message_type is None or hasattr(message, "extend"):
            continue
        for inner, _ in message.ListFields():
            if inner.message_type is not None and inner.message_type.name == _FILLER:
                message.ClearField(inner.name)
    return bare
