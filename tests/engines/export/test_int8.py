"""Quantising: the arithmetic by hand, what stays in float, and the split of a test net, which loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.int8.model import quantising
from caffenets.int8.split import INTEGER, Split, output_of, split
from caffenets.onnx_session import opened
from caffenets.prototxt.state import filter_net
from caffenets.weight_files.caffemodel import Model
from speedo.engines.schema import ONNX_LAYER
from speedo.errors import EngineError, SolverError
from tests.engines.export.in_process import Tried, on_pycaffe, on_torch, parsed
from tests.support.random_nets import random_net

pytestmark = [pytest.mark.caffe, pytest.mark.torch]

Array = Any
INPUT: Final = 'layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 4 dim: 2 dim: 6 dim: 6 } } }'
CONV: Final = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 pad: 1 stride: 2 } }
"""
INNER: Final = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 } }
"""


def records(seed: int = 5) -> Array:
    """Two batches of four records, of both signs and unlike ranges."""
    return (np.random.default_rng(seed).normal(0.3, 1, (2, 4, 2, 6, 6))).astype(np.float32)


def quantised(
    tried: Tried,
    folder: Path,
    batches: Array,
    ranges: str = "minmax",
    integer: Sequence[str] | None = None,
) -> dict[str, Any]:
    file = folder / "net.onnx"
    file.write_bytes(tried.made.as_onnx())
    names = [str(layer.param.name) for layer in tried.made.layers if layer.param.type in INTEGER]
    request = {
        "file": str(file), "folder": str(folder), "axes": {"data": 0}, "ranges": ranges,
        "integer": names if integer is None else list(integer),
    }  # fmt: skip
    return quantising(request, {"data": batches})


def run(file: Path, data: Array) -> Array:
    session = opened(file)
    return session.run(None, {"data": data})[0]


def weights_of(model: Model, layer: str) -> list[Array]:
    (found,) = (one for one in model.layers if one.name == layer)
    return [blob.read() for blob in found.blobs if blob is not None]


# --- by hand -----------------------------------------------------------------------------------------------------


def scale_of_range(values: Array) -> tuple[float, int]:
    """The step of 8 bits without sign over the range of these values, which holds 0, and what stands for 0."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    step = float(np.float32((high - low) / 255))
    return step, round(-low / ((high - low) / 255))


def whole(values: Array, step: float, zero: int) -> Array:
    return np.clip(np.rint(values.astype(np.float32) / np.float32(step)) + zero, 0, 255).astype(
        np.int64
    )


def columns(data: Array, kernel: int, pad: int, stride: int, zero: int) -> Array:
    """The windows of a convolution as rows; the places around the picture hold what stands for 0."""
    data = np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=zero)
    count = (data.shape[2] - kernel) // stride + 1
    windows = [
        data[:, :, y * stride : y * stride + kernel, x * stride : x * stride + kernel].reshape(
            len(data), -1
        )
        for y in range(count)
        for x in range(count)
    ]
    return np.stack(windows, 1)  # record, place, input


def integers_of(values: list[Array], step: float, kind: str) -> tuple[Array, Array, Array]:
    """Weights with sign, a row for each output, their steps, and the bias in steps of the products."""
    rows = values[0].reshape(len(values[0]), -1)
    largest = np.abs(rows).max(1) if kind == "per_channel" else np.abs(rows).max().repeat(len(rows))
    steps = (largest.astype(np.float64) * 2 / 254).astype(np.float32)
    integers = np.clip(np.rint(rows / steps[:, None]), -127, 127).astype(np.int64)
    return integers, steps, np.rint(values[1] / (steps.astype(np.float64) * step)).astype(np.int64)


@pytest.mark.parametrize("kind", ["per_tensor", "per_channel"])
def test_layers_compute_with_whole_numbers_as_by_hand(kind: str, tmp_path: Path) -> None:
    """Between the layers 8 bits with a zero point, weights 8 bits with sign, bias 32 bits, and exact sums."""
    net = INPUT + CONV + INNER.replace('bottom: "data"', 'bottom: "conv"')
    tried = on_pycaffe(parsed(net), tmp_path)
    batches = records()
    quantised(tried, tmp_path, batches)
    data = batches.reshape(-1, 2, 6, 6)
    alone = on_pycaffe(parsed(INPUT + CONV), tmp_path)
    alone.made.values.update({key: tried.made.values[key] for key in alone.made.values})
    (tmp_path / "conv.onnx").write_bytes(alone.made.as_onnx())
    between = run(tmp_path / "conv.onnx", data)

    step, zero = scale_of_range(data)
    integers, steps, offsets = integers_of(weights_of(tried.model, "conv"), step, kind)
    windows = columns(whole(data, step, zero), 3, 1, 2, zero) - zero
    sums = (windows @ integers.T + offsets).transpose(0, 2, 1).reshape(between.shape)
    next_step, next_zero = scale_of_range(between)
    scales = (steps * np.float32(step) / np.float32(next_step))[:, None, None]
    inputs = np.clip(np.rint(sums * scales) + next_zero, 0, 255).astype(np.int64)
    integers, steps, offsets = integers_of(weights_of(tried.model, "ip"), next_step, kind)
    sums = (inputs.reshape(len(inputs), -1) - next_zero) @ integers.T + offsets
    expected = sums * (steps.astype(np.float64) * next_step)

    found, exact = run(tmp_path / f"{kind}.onnx", data), run(tmp_path / "net.onnx", data)
    largest = np.abs(expected).max()
    apart = np.abs(found - expected) / largest
    assert np.median(apart) < 1e-6
    assert apart.max() < 0.01, "only what lies between two whole numbers may be rounded otherwise"
    assert np.median(np.abs(found - exact)) / largest > 1e-4, "nothing was quantised"


def test_sums_beyond_16_bits_do_not_overflow(tmp_path: Path) -> None:
    """Some processors add pairs of 8-bit products in 16 bits: 2 * 255 * 127 is more."""
    tried = on_pycaffe(parsed(INPUT + INNER), tmp_path)
    for key, values in tried.made.values.items():
        values[...] = 1 if key.endswith("weight") else 0
    data = np.full((1, 4, 2, 6, 6), 3, np.float32)
    data[0, 0] = 0
    quantised(tried, tmp_path, data)
    for kind in ("per_tensor", "per_channel"):
        found = run(tmp_path / f"{kind}.onnx", data[0])
        assert found == pytest.approx(np.repeat([[0.0], [216], [216], [216]], 5, 1), abs=0.5)


# --- what is folded, and what stays in float ---------------------------------------------------------------------


def test_batch_norm_scale_and_relu_are_folded_before(tmp_path: Path) -> None:
    net = (
        INPUT + CONV + 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" } '
        'layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } } '
        'layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" } '
        'layer { name: "pool" type: "Pooling" bottom: "bn" top: "pool" pooling_param { kernel_size: 3 } } '
        'layer { name: "lrn" type: "LRN" bottom: "pool" top: "lrn" }'
        + INNER.replace('bottom: "data"', 'bottom: "lrn"')
    )
    tried = on_pycaffe(parsed(net), tmp_path)
    answer = quantised(tried, tmp_path, records())
    assert answer["in_float"] == ["lrn"]
    assert [*answer["layers"]] == ["conv", "ip"]
    kinds = [node.op_type for node in onnx.load(tmp_path / "per_channel.onnx").graph.node]
    assert not {"BatchNormalization", "Mul", "Add", "Relu"} & {*kinds}
    data = records().reshape(-1, 2, 6, 6)
    exact, found = run(tmp_path / "net.onnx", data), run(tmp_path / "per_channel.onnx", data)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_an_outlier_in_one_channel_costs_the_others_with_a_scale_for_each_tensor(
    tmp_path: Path,
) -> None:
    tried = on_pycaffe(parsed(INPUT + CONV), tmp_path)
    for key, values in tried.made.values.items():
        if key.endswith("weight"):
            values[1] *= 300
    noise = quantised(tried, tmp_path, records())["layers"]["conv"]
    assert noise["per_channel"] > 30
    assert noise["per_tensor"] < 20


def test_the_percentile_leaves_out_what_one_value_in_many_has(tmp_path: Path) -> None:
    tried = on_pycaffe(parsed(INPUT + CONV), tmp_path)
    batches = np.random.default_rng(1).uniform(-1, 1, (40, 50, 2, 6, 6)).astype(np.float32)
    batches[0, 0, 0, 0, 0] = 100
    steps = {}
    for ranges in ("minmax", "percentile"):
        quantised(tried, tmp_path, batches, ranges)
        graph = onnx.load(tmp_path / "per_tensor.onnx").graph
        (stored,) = (one for one in graph.initializer if one.name == "data_scale")
        steps[ranges] = float(onnx.numpy_helper.to_array(stored))
    assert steps["minmax"] == pytest.approx(101 / 255, rel=0.01)
    assert steps["percentile"] == pytest.approx(2 / 255, rel=0.2)


def test_each_layer_with_weights_is_quantised_also_those_with_groups(tmp_path: Path) -> None:
    net = INPUT + (
        'layer { name: "dw" type: "Convolution" bottom: "data" top: "dw" '
        "convolution_param { num_output: 4 group: 2 kernel_size: 3 } } "
        'layer { name: "up" type: "Deconvolution" bottom: "dw" top: "up" '
        "convolution_param { num_output: 4 group: 2 kernel_size: 4 stride: 2 } } "
        'layer { name: "down" type: "Deconvolution" bottom: "up" top: "down" '
        "convolution_param { num_output: 2 kernel_size: 2 bias_term: false } } "
        'layer { name: "sum" type: "Eltwise" bottom: "down" bottom: "down" top: "sum" }'
    )
    answer = quantised(on_pycaffe(parsed(net), tmp_path), tmp_path, records())
    assert [*answer["layers"]] == ["dw", "up", "down"]
    assert answer["in_float"] == []
    assert all(20 < decibels < 70 for one in answer["layers"].values() for decibels in one.values())


# --- the split ---------------------------------------------------------------------------------------------------

DATA: Final = (
    'layer { name: "d" type: "DummyData" top: "data" top: "label" dummy_data_param { '
    'shape { dim: 4 dim: 2 dim: 6 dim: 6 } shape { dim: 4 } data_filler { type: "uniform" min: -1 max: 1 } '
    'data_filler { type: "constant" } } } '
)


def split_text(text: str) -> Split:
    return split(text_format.Parse(text, caffe_pb2.NetParameter()), "net.prototxt")


def names(layers: Sequence[Any]) -> list[str]:
    return [str(layer.name) for layer in layers]


def test_losses_labels_and_what_they_read_stay_in_the_net() -> None:
    net = split_text(
        DATA
        + CONV
        + 'layer { name: "half" type: "Slice" bottom: "label" top: "a" top: "b" slice_param { axis: 0 } } '
        'layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" } '
        'layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } } '
        'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" } '
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" } '
        'layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }'
    )
    assert names(net.core) == ["conv", "relu", "ip"]
    assert names(net.rest) == ["half", "prob", "loss", "accuracy"]
    assert (net.inputs, net.outputs) == (("data",), ("ip",))
    made = net.with_core(Path("core.onnx"), ONNX_LAYER)
    assert names(made.layer) == ["d", "int8", "half", "prob", "loss", "accuracy"]
    assert (list(made.layer[1].bottom), list(made.layer[1].top)) == (["data"], ["ip"])


def test_priors_and_blobs_that_are_read_in_between_stay_as_they_are() -> None:
    net = split_text(
        DATA
        + CONV
        + 'layer { name: "prior" type: "PriorBox" bottom: "conv" bottom: "data" top: "prior" '
        "prior_box_param { min_size: 2 } } "
        'layer { name: "both" type: "Concat" bottom: "prior" bottom: "prior" top: "both" } '
        'layer { name: "early" type: "EuclideanLoss" bottom: "conv" bottom: "conv" top: "early" } '
        'layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" } '
        'layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }'
    )
    assert names(net.core) == ["conv"], "a ReLU in place would change what the loss before it reads"
    assert names(net.rest) == ["prior", "both", "early", "relu", "ip"]
    assert net.outputs == ("conv",)
    deploy = net.deploy({"data": (4, 2, 6, 6)})
    assert list(deploy.net.layer[-1].top) == [output_of("conv")]


def test_a_net_without_weights_behind_its_records_is_refused() -> None:
    with pytest.raises(SolverError, match="finds no Convolution, Deconvolution or InnerProduct"):
        split_text(DATA + 'layer { name: "relu" type: "ReLU" bottom: "data" top: "r" }')


SEEDS: Final = range(60)


def test_random_nets_compute_the_same_with_their_core_apart(tmp_path: Path) -> None:
    """In float: the core as an ONNX file in the net, against the net as it is."""
    import torch

    from speedo.engines.pytorch.net import Net

    compared, refused, found = 0, 0, {}
    for seed in SEEDS:
        drawn = random_net(seed, mistakes=False)
        folder = tmp_path / str(seed)
        drawn.write(folder)
        text = drawn.net.replace('source: "records', f'source: "{folder}/records')
        net: Any = text_format.Parse(text, caffe_pb2.NetParameter())
        net = filter_net(net, caffe_pb2.TEST, None, "net")
        try:
            parts = split(net, "net")
            torch.manual_seed(3)
            plain = Net(net, "TEST")
            shapes = {name: tuple(plain.shapes[name]) for name in parts.inputs}
            tried = on_torch(parts.deploy(shapes).net, (drawn.batch,))
            file = folder / "core.onnx"
            file.write_bytes(tried.made.as_onnx())
            mixed = Net(parts.with_core(file, ONNX_LAYER), "TEST")
        except (SolverError, EngineError):
            refused += 1  # nothing to quantise, or no equal in ONNX
            continue
        with torch.no_grad():
            core = {layer.name: layer.blobs for layer in tried.model.layers}
            for name, blobs in plain.blobs_of_layers():
                for blob, values in zip(blobs, core.get(name, ()), strict=False):
                    blob.copy_(torch.from_numpy(values.read()))
            ours = dict(plain.blobs_of_layers())
            for name, blobs in mixed.blobs_of_layers():
                for blob, values in zip(blobs, ours.get(name, ()), strict=True):
                    blob.copy_(values)
            one, other = plain.forward()[1], mixed.forward()[1]
        plain.close()
        mixed.close()
        for name, values in one.items():
            far = float((values - other[name]).abs().max() / values.abs().max().clamp(min=1e-6))
            if not far < 1e-4:
                found[seed] = f"{name}: {far:.1e}\n{drawn.net}"
        compared += 1
    assert found == {}
    assert compared > len(SEEDS) / 3, f"{refused} of {len(SEEDS)} were refused"
