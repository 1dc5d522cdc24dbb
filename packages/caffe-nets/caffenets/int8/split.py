"""Splits a test net for int8: a core, which is exported and quantised, and the layers around it, which stay in Caffe.

The core has the convolutions and inner products, and what lies between them and has an equal in ONNX. Losses, Accuracy
and the decoding of boxes stay as they are, so a quantised net is scored as the net itself is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caffenets.deploy import Deploy, is_source
from caffenets.errors import SolverError
from caffenets.forms.steps import Shape
from caffenets.layers import LAYERS
from caffenets.onnx_session import described

# The layers whose weights are quantised.
WEIGHTED: Final = frozenset(
    {
        "Convolution",
        "ConvolutionDepthwise",
        "Deconvolution",
        "DepthwiseConvolution",
        "InnerProduct",
    }
)
# These and the layers that pass on integers, or act on each alone. Others, such as Softmax and LRN, compute in float.
INTEGER: Final = WEIGHTED | {
    "Concat",
    "Crop",
    "Dropout",
    "Eltwise",
    "Flatten",
    "Permute",
    "Pooling",
    "ReLU",
    "ReLU6",
    "Reshape",
    "ShuffleChannel",
    "Slice",
    "Split",
}
# They read only the shape of the core's blobs, and their boxes are constants: 8 bits would move the boxes.
_CONSTANT: Final = frozenset({"PriorBox"})
_NAME: Final = "int8"


@dataclass(frozen=True, slots=True)
class Split:
    """The layers of the core, the blobs of data layers that it reads, its blobs that others read, and the other layers.

    `sources` are the data layers, `rest` all others that are not in the core, in their order.
    """

    net: Any
    core: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[Any, ...]
    rest: tuple[Any, ...]

    def deploy(self, shapes: Mapping[str, Shape]) -> Deploy:
        """The core as a net of its own, whose inputs have these shapes. Its outputs are named as in `output_of`."""
        net = type(self.net)(name=self.net.name)
        inputs = net.layer.add(name=_NAME, type="Input", top=self.inputs)
        for name in self.inputs:
            inputs.input_param.shape.add().dim.extend(shapes[name])
        net.layer.extend(self.core)
        for name in self.outputs:
            # Other layers of the core may read this blob, too; then it would be no output.
            net.layer.add(name=output_of(name), type="Split", bottom=[name], top=[output_of(name)])
        return Deploy(net, {name: shapes[name] for name in self.inputs})

    def with_core(self, file: Path, module: str) -> Any:
        """The test net with this ONNX file in place of the core, as the Python layer OnnxNet of this module."""
        net = type(self.net)()
        net.CopyFrom(self.net)
        del net.layer[:]
        net.layer.extend(self.sources)
        layer = net.layer.add(name=_NAME, type="Python", bottom=self.inputs, top=self.outputs)
        layer.python_param.module = module
        layer.python_param.layer = "OnnxNet"
        outputs = [output_of(name) for name in self.outputs]
        layer.python_param.param_str = described(file, self.inputs, outputs)
        net.layer.extend(self.rest)
        return net


def output_of(blob: str) -> str:
    """The name that this blob of the core has as an output."""
    return f"{blob}@int8"


def split(net: Any, origin: str) -> Split:
    """Split a filtered, upgraded test net. Raises `SolverError` if nothing of it can be quantised."""
    before = _before_weights(net)
    made: dict[str, str] = {}  # what made each blob: a source, the core or the rest
    parts: dict[str, list[Any]] = {"source": [], "core": [], "rest": []}
    inputs: dict[str, None] = {}
    unread: dict[str, None] = {}  # blobs of the core that nobody has read yet
    read: dict[str, None] = {}  # blobs that the rest reads
    wanted: dict[str, None] = {}  # those of them that the core makes
    for at, layer in enumerate(net.layer):
        bottoms = [made.get(name) for name in layer.bottom]
        is_wanted = at in before or ("core" in bottoms and layer.type in INTEGER)
        # The core runs before the rest: it must not change in place what the rest reads as it was before.
        is_free = not read.keys() & set(layer.top)
        if is_source(layer):
            part = "source"
        elif is_wanted and is_free and has_equal(layer) and "rest" not in bottoms:
            part = "core"
            inputs.update((b, None) for b in layer.bottom if made[b] == "source")
            unread = {name: None for name in unread if name not in layer.bottom}
            unread.update(dict.fromkeys(map(str, layer.top)))
        else:
            part = "rest"
            read.update(dict.fromkeys(layer.bottom))
            wanted.update((b, None) for b in layer.bottom if made.get(b) == "core")
        parts[part].append(layer)
        made.update((str(top), part) for top in layer.top)
    core = tuple(parts["core"])
    if not any(layer.type in WEIGHTED for layer in core):
        raise SolverError(
            f"{origin}: --int8 finds no Convolution, Deconvolution or InnerProduct layer that reads the records "
            "through layers with an equal in ONNX: leave --int8 out"
        )
    outputs = dict.fromkeys([*wanted, *unread])
    sources, rest = tuple(parts["source"]), tuple(parts["rest"])
    return Split(net, core, tuple(inputs), tuple(outputs), sources, rest)


def has_equal(layer: Any) -> bool:
    """Whether ONNX has this layer, and the core may have it."""
    kind = LAYERS.get(layer.type)
    return kind is not None and kind.is_exported() and layer.type not in _CONSTANT


def _before_weights(net: Any) -> set[int]:
    """The places of the layers with weights, and of all on which they depend."""
    found: set[int] = set()
    wanted: set[str] = set()
    for at in reversed(range(len(net.layer))):
        layer = net.layer[at]
        if layer.type in WEIGHTED or wanted.intersection(layer.top):
            found.add(at)
            wanted.update(layer.bottom)
    return found
