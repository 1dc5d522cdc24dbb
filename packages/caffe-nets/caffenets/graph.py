"""The layers of a net in their order, and the values between them, by Caffe's rules: shapes, without computing.

A layer that works in place makes a new value under the old name (Caffe: net.cpp, Init).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from caffenets.errors import EngineError
from caffenets.known_types import refusals, type_here
from caffenets.layer import Layer, LayerContext, Shape
from caffenets.layers import LAYERS
from caffenets.prototxt.forks import about_layer, unread_problem
from caffenets.weight_files.stored import MOST_AXES, shape_text
from caffenets.wiring import (
    Wired,
    check_gradients,
    check_in_place,
    find_last_uses,
    find_losses,
    readers_of,
    split_outputs,
)

MOST_VALUES: Final = 2**31 - 1  # of a blob
_AUTOMATIC: Final = "(automatic)"  # Caffe's name for a top that no layer can read


class NetGraph:
    """Made from a NetParameter in today's format, of which only the layers of its own state are left.

    Each layer is made in the `context` with its own phase. Raises `EngineError`, which names the layer.
    """

    def __init__(self, net: Any, phase: str, context: LayerContext) -> None:
        self._shapes: list[Shape] = []
        self._wired: list[Wired] = []
        # Names that may be read, and those whose value nobody has read yet.
        self._names: dict[str, int] = {}
        unread: set[str] = set()
        if problem := unread_problem(net, nested=False):
            raise EngineError(f"the net {problem}")
        for param in net.layer:
            self._add(param, replace(context, phase=_phase_of(param, phase)), unread)
        readers = readers_of(self._wired, len(self._shapes))
        check_in_place(self._wired, readers)
        find_losses(self._wired, readers)
        if phase == "TRAIN":
            check_gradients(self._wired, readers)
        outputs = {name: self._names[name] for name in unread}
        outputs |= split_outputs(self._wired, readers)
        self._outputs = dict(sorted(outputs.items()))
        find_last_uses(self._wired, readers, kept=self._outputs.values())

    def make_layer(self, param: Any, context: LayerContext) -> Layer:
        """The layer of this LayerParameter."""
        kind = LAYERS.get(type_here(param))
        if kind is None and param.type in refusals():
            raise EngineError(f"layer {param.name!r} ({param.type}) {refusals()[param.type]}")
        if kind is None:
            about = about_layer(param.type, LAYERS)
            about = f": {about}" if about else ", which is not known: correct it"
            raise EngineError(f"layer {param.name!r} has the type {param.type!r}{about}")
        return kind(param, context)

    @property
    def layers(self) -> list[Layer]:
        return [wired.layer for wired in self._wired]

    @property
    def wired(self) -> Sequence[Wired]:
        return self._wired

    @property
    def all_shapes(self) -> Sequence[Shape]:
        """The shape of each value, by its number."""
        return self._shapes

    @property
    def output_numbers(self) -> Mapping[str, int]:
        """The numbers of the `outputs`."""
        return self._outputs

    @property
    def outputs(self) -> Mapping[str, Shape]:
        """The values that no layer reads, in the order of their names, as Caffe's outputs."""
        return {name: self._shapes[number] for name, number in self._outputs.items()}

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each value between the layers, by its name; of several under one name the last."""
        return {name: self._shapes[number] for name, number in self._names.items()}

    @property
    def batch(self) -> int:
        """Leading extent of the first layer's first top; 0 if it has none."""
        tops = self._wired[0].tops if self._wired else ()
        shape = self._shapes[tops[0]] if tops else ()
        return shape[0] if shape else 0

    def _add(self, param: Any, place: LayerContext, unread: set[str]) -> None:
        """Wire and set up one layer."""
        if param.type.endswith("Loss") and not param.top:
            # Caffe gives a loss the top that it lacks.
            unnamed = type(param)()
            unnamed.CopyFrom(param)
            unnamed.top.append(_AUTOMATIC)
            param = unnamed
        layer = self.make_layer(param, place)
        if problem := unread_problem(param):
            raise layer.refuse(problem)
        bottoms = []
        for name in param.bottom:
            if name not in self._names:
                raise layer.refuse(
                    f"reads {name!r}, which no layer before it makes: correct bottom"
                )
            bottoms.append(self._names[name])
        _check_number(layer, "bottom", len(param.bottom), layer.bottoms)
        _check_number(layer, "top", len(param.top), layer.tops)
        if param.propagate_down and len(param.propagate_down) != len(bottoms):
            raise layer.refuse(
                f"has {len(param.propagate_down)} propagate_down for {len(bottoms)} bottoms: give one for each"
            )
        detached = frozenset(at for at, given in enumerate(param.propagate_down) if not given)
        shapes = layer.setup([self._shapes[number] for number in bottoms])
        for shape in (*shapes, *(one.shape for one in layer.blobs)):  # Caffe: blob.cpp, Reshape
            if len(shape) > MOST_AXES or min(shape, default=0) < 0 or prod(shape) > MOST_VALUES:
                raise layer.refuse(
                    f"has a blob of {shape_text(tuple(shape))[:200]}, but Caffe's hold at most {MOST_VALUES:,} "
                    f"values along {MOST_AXES} axes: correct its sizes"
                )
        first = len(self._shapes)
        self._shapes += [tuple(shape) for shape in shapes]
        tops = tuple(range(first, len(self._shapes)))
        # Appended before the checks: `close` must find a data layer's threads.
        self._wired.append(Wired(layer, tuple(bottoms), tops, detached))
        unread.difference_update(param.bottom)
        for at, (name, number) in enumerate(zip(param.top, tops, strict=True)):
            if name == _AUTOMATIC:
                continue
            in_place = at < len(param.bottom) and name == param.bottom[at]
            if name in self._names and not in_place:
                raise layer.refuse(f"makes {name!r}, which another layer makes too: rename its top")
            self._names[name] = number
            unread.add(name)
        if len(param.param) > len(layer.blobs):
            raise layer.refuse(
                f"has {len(param.param)} param for {len(layer.blobs)} blobs: remove those too many"
            )


def _phase_of(param: Any, phase: str) -> str:
    """A layer may have a phase of its own."""
    if not param.HasField("phase"):
        return phase
    values = param.DESCRIPTOR.fields_by_name["phase"].enum_type.values_by_number
    return str(values[param.phase].name)


def _check_number(layer: Layer, what: str, found: int, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    if found >= least and (most is None or found <= most):
        return
    several = f"{least}" if least == most else f"{least} to {most}"
    wanted = f"{least} or more" if most is None else several
    raise layer.refuse(f"has {found} {what}s, and needs {wanted}: correct its {what}s")
