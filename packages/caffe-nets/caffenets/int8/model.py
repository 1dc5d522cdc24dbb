"""Quantises an ONNX file to 8 bits by ONNX Runtime's tools: folds, calibrates, quantises, and measures each layer.

Post-training static quantisation, as compilers for int8 processors do it (Jacob et al., arXiv:1712.05877, and
Krishnamoorthi, arXiv:1806.08342): weights are symmetric in 8 bits, with one scale for each tensor or each output
channel; what flows between layers is in 8 bits with a zero point; biases have 32 bits. BatchNorm and Scale behind a
convolution are folded into it before, and a ReLU is part of the layer before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.extras import needed
from caffenets.onnx_session import opened

Arrays = Mapping[str, npt.NDArray[Any]]
WEIGHTS: Final = ("per_tensor", "per_channel")
# The few values beyond, such as one record in many has, would make the steps of all others wider (Wu et al.,
# arXiv:2004.09602).
_PERCENTILE: Final = 99.99
# Of the first piece: where one value is a thousand times the others, these still have some
_BINS: Final = 1 << 14
_AT_ONCE: Final = 8  # records: all that flows through the net is kept for these
# They move values
_EXACT: Final = (
    "Flatten",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "Split",
    "Transpose",
)
_PAIR: Final = ("QuantizeLinear", "DequantizeLinear")
_WEIGHTED: Final = ("Conv", "ConvTranspose", "Gemm")
_OPERATORS: Final = (
    *_WEIGHTED, "Add", "AveragePool", "Clip", "Concat", "Flatten", "LeakyRelu", "MaxPool", "Mul", "Pad", "Relu",
    "Reshape", "Slice", "Split", "Transpose",
)  # fmt: skip


def quantising(request: Mapping[str, Any], batches: Arrays) -> dict[str, Any]:
    """Write `per_tensor.onnx` and `per_channel.onnx` into `folder` of the request, made from its `file`.

    `batches` are records by inputs, with the batches along the first axis; `axes` are the inputs' axes of records, none
    where the net's batch is fixed. `integer` names the layers that may be quantised; `ranges` is `percentile` or
    `minmax`. Answers `layers`, the decibels of each layer by the kind of weights, and `in_float`, layers that are not
    quantised.
    """
    tools = needed("onnxruntime.quantization", "onnx", "--int8")
    onnx = needed("onnx", "onnx", "--int8")
    folder, folded = Path(request["folder"]), Path(request["folder"]) / "folded.onnx"
    tools.quant_pre_process(request["file"], str(folded), skip_symbolic_shape=True)
    nodes = onnx.load(folded).graph.node
    left_out = [node.name for node in nodes if _layer(node.name) not in request["integer"]]
    found = _calibrated(tools, folded, _pieces(batches, request["axes"]), request["ranges"])
    piece = next(_pieces(batches, request["axes"]))
    noise: dict[str, dict[str, float | None]] = {}
    # One scale for all: along the axis that ONNX Runtime divides there are the channels of one group only.
    grouped = {
        node.input[1]: [{"quant_type": tools.QuantType.QInt8}]
        for node in nodes
        if node.op_type == "ConvTranspose"
        and any(a.name == "group" and a.i > 1 for a in node.attribute)
    }
    for kind in WEIGHTS:
        quantizer = tools.QDQQuantizer(
            onnx.load(folded),
            per_channel=kind == "per_channel",
            reduce_range=False,
            weight_qType=tools.QuantType.QInt8,
            activation_qType=tools.QuantType.QUInt8,
            tensors_range=found,
            nodes_to_quantize=[],
            nodes_to_exclude=left_out,
            op_types_to_quantize=list(_OPERATORS),
            extra_options={"TensorQuantOverrides": grouped},
        )
        quantizer.quantize_model()
        _leave_outputs(quantizer.model.model.graph)
        file = folder / f"{kind}.onnx"
        quantizer.model.save_model_to_file(str(file))
        for layer, decibels in _signal_to_noise(onnx, folded, file, piece).items():
            noise.setdefault(layer, {})[kind] = decibels
    return {"layers": noise, "in_float": _in_float(onnx.load(file).graph, left_out)}


class _Once:
    """One piece, as ONNX Runtime's calibrators ask for records."""

    def __init__(self, piece: Arrays) -> None:
        self._pieces = [dict(piece)]

    def get_next(self) -> Arrays | None:
        return self._pieces.pop() if self._pieces else None


def _pieces(batches: Arrays, axes: Mapping[str, int]) -> Iterator[Arrays]:
    """The records a few at a time where the batch is free, else a batch at a time."""
    for at in range(len(next(iter(batches.values())))):
        batch = {name: values[at] for name, values in batches.items()}
        count = batch[next(iter(axes))].shape[axes[next(iter(axes))]] if axes else 1
        for first in range(0, count, _AT_ONCE):
            records = np.arange(first, min(first + _AT_ONCE, count))
            yield {
                name: np.take(values, records, axes[name]) if name in axes else values
                for name, values in batch.items()
            }


def _calibrated(tools: Any, folded: Path, pieces: Iterable[Arrays], ranges: str) -> Any:
    """The range of what flows between the layers."""
    method = tools.CalibrationMethod
    percentile = {"percentile": _PERCENTILE, "symmetric": False, "num_bins": _BINS}
    calibrator = tools.create_calibrator(
        folded,
        list(_OPERATORS),
        augmented_model_path=str(folded.with_name("calibrated.onnx")),
        calibrate_method=method.MinMax if ranges == "minmax" else method.Percentile,
        extra_options={} if ranges == "minmax" else percentile,
    )
    for piece in pieces:
        calibrator.collect_data(_Once(piece))
    folded.with_name("calibrated.onnx").unlink()
    return calibrator.compute_data()


def _leave_outputs(graph: Any) -> None:
    """Give the outputs as the last sums are, not rounded to 8 bits again: equal scores of two classes would be many."""
    outputs = {one.name for one in graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in node.input}
    for last in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        (name,) = last.output
        if name not in outputs or name in read:
            continue
        first = makers[last.input[0]]
        before = first.input[0]
        graph.node.remove(last)
        graph.node.remove(first)
        makers[before].output[:] = [name if one == before else one for one in makers[before].output]


def _layer(node: str) -> str:
    """The layer of a node that `caffenets.forms.onnx_graph` has named."""
    return node.rpartition(":")[0]


def _in_float(graph: Any, left_out: Collection[str]) -> list[str]:
    """The layers with a node that computes in float, in their order."""
    integers = {
        name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output
    }
    found = {
        _layer(node.name): None
        for node in graph.node
        if node.op_type not in (*_PAIR, *_EXACT)
        and (
            node.name in left_out
            or node.op_type not in _OPERATORS
            or not integers.intersection(node.input)
        )
    }
    return [name for name in found if name]


def _signal_to_noise(
    onnx: Any, folded: Path, quantised: Path, piece: Arrays
) -> dict[str, float | None]:
    """What quantising the input, weights and bias of one layer alone adds to its outputs, in decibels.

    The mean over the channels, so that one with large values does not hide the others; None where nothing is added.
    """
    model, pairs = _side_by_side(onnx, onnx.load(folded), onnx.load(quantised).graph)
    file = quantised.with_suffix(".compared.onnx")
    onnx.save(model, file)
    session = opened(file, "--int8")
    file.unlink()
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for layer, exact, rounded in pairs:
        one, other = (np.float64(values) for values in session.run([exact, rounded], dict(piece)))
        axes = tuple(axis for axis in range(one.ndim) if axis != 1)
        signal, noise = np.square(one).sum(axes), np.square(one - other).sum(axes)
        heard = (signal > 0) & (noise > 0)
        found.setdefault(layer, []).append(10 * np.log10(signal[heard] / noise[heard]))
    channels = {layer: np.concatenate(parts) for layer, parts in found.items()}
    return {layer: float(one.mean()) if one.size else None for layer, one in channels.items()}


def _side_by_side(onnx: Any, model: Any, quantised: Any) -> tuple[Any, list[tuple[str, str, str]]]:
    """The float net, and beside each node with weights its quantised twin, which reads what that reads.

    The pairs are the layer and the outputs of both.
    """
    graph = model.graph
    values = {one.name for one in graph.input} | {
        name for node in graph.node for name in node.output
    }
    floats = {node.name: node for node in graph.node if node.op_type in _WEIGHTED}
    makers = {name: node for node in quantised.node for name in node.output}
    stored = {one.name: one for one in quantised.initializer}
    added: set[str] = set()

    def twin(name: str, float_name: str = "") -> str:
        """This value of the quantised net, made from those of the float net, of which one has `float_name`."""
        maker = makers.get(name)
        if name not in stored and (maker is None or maker.op_type not in _PAIR):
            return name if name in values else float_name
        copy = f"int8:{name}"
        if copy in added:
            return copy
        added.add(copy)
        if maker is None:
            graph.initializer.add().CopyFrom(stored[name])
            graph.initializer[-1].name = copy
        else:
            # An output of the net keeps its name behind the pair, and has another before it.
            inputs = [twin(one, float_name or name) for one in maker.input]
            node = graph.node.add()
            node.CopyFrom(maker)
            node.name, node.input[:], node.output[:] = f"int8:{maker.name}", inputs, [copy]
        return copy

    pairs = []
    for node in quantised.node:
        if node.name not in floats:
            continue
        exact, rounded = floats[node.name].output[0], f"int8:{node.name}"
        inputs = [twin(name) for name in node.input]
        other = graph.node.add()
        other.CopyFrom(node)
        other.name, other.input[:], other.output[:] = rounded, inputs, [rounded]
        pairs.append((_layer(node.name), exact, rounded))
    there = {one.name for one in graph.output}
    for name in [name for _, *both in pairs for name in both if name not in there]:
        graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return model, pairs
