"""Each layer's export computes what pycaffe computes, with both batches, and its weights come back to the bit."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.export.differences import difference
from speedo.errors import EngineError, SolverError
from tests.engines.export.in_process import (
    in_onnx_runtime,
    in_pytorch,
    on_pycaffe,
    on_torch,
    parsed,
)

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

CLOSE = 1e-5
IMAGE, ROWS = (2, 4, 9, 10), (2, 12)


def input_of(name: str, shape: tuple[int, ...]) -> str:
    dims = " ".join(f"dim: {size}" for size in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'


def one(text: str, *shapes: tuple[int, ...], tops: int = 1) -> str:
    """A net of one layer named as a Python word and with a slash, which a module cannot have."""
    inputs = "".join(input_of(f"in{at}", shape) for at, shape in enumerate(shapes))
    ends = [f'bottom: "in{at}"' for at in range(len(shapes))]
    ends += [f'top: "out/{at}"' for at in range(tops)]
    return f'{inputs}layer {{ name: "class/3x3" {" ".join(ends)} {text} }}'


FAMILIES = {
    "relu": one('type: "ReLU"', IMAGE),
    "leaky": one('type: "ReLU" relu_param { negative_slope: 0.1 }', IMAGE),
    "prelu": one('type: "PReLU"', IMAGE),
    "prelu-shared": one('type: "PReLU" prelu_param { channel_shared: true }', IMAGE),
    "elu": one('type: "ELU" elu_param { alpha: 0.7 }', IMAGE),
    "sigmoid": one('type: "Sigmoid"', ROWS),
    "tanh": one('type: "TanH"', ROWS),
    "abs": one('type: "AbsVal"', ROWS),
    "bnll": one('type: "BNLL"', ROWS),
    "exp": one('type: "Exp" exp_param { base: 2 scale: 0.5 shift: 0.3 }', ROWS),
    "log": one('type: "Log" log_param { base: 10 scale: 0.5 shift: 3 }', ROWS),
    "power": one('type: "Power" power_param { power: 3 scale: 0.5 shift: 0.3 }', ROWS),
    "power-constant": one('type: "Power" power_param { power: 0 }', ROWS),
    "swish": one('type: "Swish" swish_param { beta: 1.5 }', ROWS),
    "clip": one('type: "Clip" clip_param { min: -0.2 max: 0.6 }', ROWS),
    "threshold": one('type: "Threshold" threshold_param { threshold: 0.3 }', ROWS),
    "dropout": one('type: "Dropout"', ROWS),
    "convolution": one(
        'type: "Convolution" convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 }', IMAGE
    ),
    "convolution-grouped": one(
        'type: "Convolution" convolution_param { num_output: 6 group: 2 kernel_size: 3 dilation: 2 bias_term: false }',
        IMAGE,
    ),
    "convolution-3d": one(
        'type: "Convolution" convolution_param { num_output: 3 kernel_size: 2 pad: 1 }', (2, 2, 4, 5, 6)
    ),
    "convolution-beyond": one(
        'type: "Convolution" convolution_param { num_output: 3 kernel_size: 10 stride: 4 }', IMAGE
    ),
    "convolution-of-two": one(
        'type: "Convolution" convolution_param { num_output: 3 kernel_size: 3 }', IMAGE, IMAGE, tops=2
    ),
    "deconvolution": one(
        'type: "Deconvolution" convolution_param { num_output: 4 group: 2 kernel_size: 4 stride: 2 pad: 1 }', IMAGE
    ),
    "deconvolution-depthwise": one(
        'type: "Deconvolution" convolution_param { num_output: 4 group: 4 kernel_size: 3 bias_term: false }', IMAGE
    ),
    "inner-product": one('type: "InnerProduct" inner_product_param { num_output: 5 }', IMAGE),
    "inner-product-rows": one('type: "InnerProduct" inner_product_param { num_output: 5 bias_term: false }', ROWS),
    "inner-product-transposed": one(
        'type: "InnerProduct" inner_product_param { num_output: 5 transpose: true }', IMAGE
    ),
    "inner-product-axis": one('type: "InnerProduct" inner_product_param { num_output: 5 axis: 2 }', IMAGE),
    "embed": one('type: "Embed" embed_param { num_output: 5 input_dim: 9 }', (2, 6)),
    "lrn": one('type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }', IMAGE),
    "lrn-within": one('type: "LRN" lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }', IMAGE),
    "batch-norm": one('type: "BatchNorm" batch_norm_param { eps: 0.01 }', IMAGE),
    "batch-norm-rows": one('type: "BatchNorm"', ROWS),
    "mvn": one('type: "MVN"', IMAGE),
    "mvn-across": one('type: "MVN" mvn_param { across_channels: true normalize_variance: false }', IMAGE),
    "scale": one('type: "Scale" scale_param { bias_term: true }', IMAGE),
    "scale-one": one('type: "Scale" scale_param { axis: 0 num_axes: 0 }', IMAGE),
    "scale-by-bottom": one('type: "Scale" scale_param { axis: 0 }', IMAGE, (2, 4)),
    "bias": one('type: "Bias" bias_param { axis: 1 num_axes: 2 }', IMAGE),
    "bias-by-bottom": one('type: "Bias" bias_param { axis: 0 }', IMAGE, (2, 4)),
    "max": one('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }', IMAGE),
    "max-padded": one('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 }', IMAGE),
    "max-much-padded": one('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 2 }', IMAGE),
    "max-places": one('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 }', IMAGE, tops=2),
    "average": one('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }', IMAGE),
    "average-padded": one('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 3 pad: 1 }', IMAGE),
    "average-clipped": one('type: "Pooling" pooling_param { pool: AVE kernel_size: 4 stride: 3 pad: 1 }', IMAGE),
    "average-much-padded": one('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 2 }', IMAGE),
    "global": one('type: "Pooling" pooling_param { pool: AVE global_pooling: true }', IMAGE),
    "pyramid": one('type: "SPP" spp_param { pyramid_height: 3 }', (2, 3, 8, 9)),
    "pyramid-average": one('type: "SPP" spp_param { pyramid_height: 3 pool: AVE }', (2, 3, 8, 9)),
    "softmax": one('type: "Softmax"', IMAGE),
    "softmax-last": one('type: "Softmax" softmax_param { axis: -1 }', IMAGE),
    "sum": one('type: "Eltwise" eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 }', IMAGE, IMAGE, IMAGE),
    "product": one('type: "Eltwise" eltwise_param { operation: PROD }', IMAGE, IMAGE, IMAGE),
    "maximum": one('type: "Eltwise" eltwise_param { operation: MAX }', IMAGE, IMAGE, IMAGE),
    "arg-max": one('type: "ArgMax"', ROWS),
    "arg-max-values": one('type: "ArgMax" argmax_param { top_k: 3 out_max_val: true }', ROWS),
    "arg-max-axis": one('type: "ArgMax" argmax_param { axis: 1 }', IMAGE),
    "reduction-sum": one('type: "Reduction" reduction_param { axis: 1 coeff: 2 }', IMAGE),
    "reduction-asum": one('type: "Reduction" reduction_param { operation: ASUM axis: 2 }', IMAGE),
    "reduction-sumsq": one('type: "Reduction" reduction_param { operation: SUMSQ axis: 1 }', IMAGE),
    "reduction-mean": one('type: "Reduction" reduction_param { operation: MEAN axis: 1 }', IMAGE),
    "concat": one('type: "Concat"', IMAGE, (2, 2, 9, 10)),
    "concat-legacy": one('type: "Concat" concat_param { concat_dim: 2 }', IMAGE, IMAGE),
    "slice": one('type: "Slice" slice_param { slice_point: 1 slice_point: 2 }', IMAGE, tops=3),
    "slice-equal": one('type: "Slice" slice_param { slice_dim: 3 }', IMAGE, tops=2),
    "crop": one('type: "Crop" crop_param { axis: 2 offset: 1 offset: 2 }', IMAGE, (2, 1, 5, 6)),
    "flatten": one('type: "Flatten"', IMAGE),
    "flatten-middle": one('type: "Flatten" flatten_param { axis: 1 end_axis: 2 }', IMAGE),
    "reshape": one('type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 6 } }', IMAGE),
    "tile": one('type: "Tile" tile_param { axis: 1 tiles: 3 }', IMAGE),
    "split": one('type: "Split"', IMAGE, tops=2),
    "batch-reindex": one('type: "BatchReindex"', IMAGE, (2,)),
    "lstm": one('type: "LSTM" recurrent_param { num_output: 5 }', (4, 2, 3), (4, 2)),
    "lstm-static": one('type: "LSTM" recurrent_param { num_output: 5 }', (4, 2, 3, 2), (4, 2), (2, 6)),
    "lstm-exposed": one(
        'type: "LSTM" recurrent_param { num_output: 5 expose_hidden: true }',
        (4, 2, 3), (4, 2), (1, 2, 5), (1, 2, 5), tops=3,
    ),
    "rnn": one('type: "RNN" recurrent_param { num_output: 5 }', (4, 2, 3), (4, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_computes_as_on_pycaffe(name: str, tmp_path: Path) -> None:
    tried = on_pycaffe(parsed(FAMILIES[name]), tmp_path)
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "Caffe") < CLOSE
        assert difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe") < CLOSE
    came_back(tried, content)


FILLED = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" }'
FORKS = {
    "relu6": one('type: "ReLU6"', IMAGE),
    "relu6-leaky": one('type: "ReLU6" relu6_param { negative_slope: 0.2 }', IMAGE),
    "depthwise": one(f'type: "DepthwiseConvolution" convolution_param {{ kernel_size: 3 {FILLED} }}', IMAGE),
    "depthwise-other": one(
        f'type: "ConvolutionDepthwise" convolution_param {{ num_output: 8 kernel_size: 3 stride: 2 {FILLED} }}', IMAGE
    ),
    "permute": one('type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }', IMAGE),
    "transpose": one('type: "Transpose" transpose_param { dim: 0 dim: 2 dim: 3 dim: 1 }', IMAGE),
    "reverse": one('type: "Reverse" reverse_param { axis: 2 }', IMAGE),
    "reorg": one('type: "Reorg" reorg_param { stride: 2 }', (2, 4, 6, 10)),
    "reorg-back": one('type: "Reorg" reorg_param { stride: 2 reverse: true }', (2, 8, 3, 5)),
    "bn-segnet": one('type: "BN" bn_param { bn_mode: INFERENCE scale_filler { type: "gaussian" std: 1 } }', IMAGE),
    "bn-segnet-rows": one('type: "BN" bn_param { bn_mode: INFERENCE }', ROWS),
    "bn-pspnet": one('type: "BN" bn_param { slope_filler { type: "gaussian" std: 1 } eps: 0.1 }', IMAGE),
    "dropout-unscaled": one('type: "Dropout" dropout_param { scale_train: false dropout_ratio: 0.3 }', ROWS),
    "shuffle": one('type: "ShuffleChannel" shuffle_channel_param { group: 2 }', IMAGE),
    "axpy": one('type: "Axpy"', (2, 4, 1, 1), IMAGE, IMAGE),
    "normalize": one(
        'type: "Normalize" norm_param { across_spatial: false channel_shared: false '
        'scale_filler { type: "gaussian" } }', IMAGE
    ),
    "normalize-all": one('type: "Normalize" norm_param { scale_filler { type: "constant" value: 20 } }', IMAGE),
    "interp": one('type: "Interp" interp_param { height: 17 width: 5 }', IMAGE),
    "interp-cut": one('type: "Interp" interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -2 }', IMAGE),
    "upsample": one('type: "Upsample" upsample_param { scale: 3 }', IMAGE),
    "upsample-places": one('type: "Upsample" upsample_param { scale: 2 }', IMAGE, IMAGE),
    "roi-pooling": one(
        'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 }', IMAGE, (2, 5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_a_layer_of_another_caffe_computes_as_on_the_pytorch_engine(name: str) -> None:
    tried = on_torch(text_format.Parse(FORKS[name], caffe_pb2.NetParameter()))
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "PyTorch") < CLOSE
        assert difference(in_pytorch(tried.made, inputs), outputs, "module", "PyTorch") < CLOSE
    came_back(tried, content)


def test_the_boxes_of_a_detector_are_constants() -> None:
    text = one(
        'type: "PriorBox" prior_box_param { min_size: 2 aspect_ratio: 2 }', IMAGE, (2, 3, 20, 20)
    )
    tried = on_torch(text_format.Parse(text, caffe_pb2.NetParameter()))
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "PyTorch") < CLOSE
    with pytest.raises(SolverError, match="has its boxes in no state dict"):
        tried.made.as_torch("boxes")


PRIORS = 60


def detection(options: str, classes: int, locations: int = 1) -> Any:
    """A net of DetectionOutput alone."""
    text = one(
        f'type: "DetectionOutput" detection_output_param {{ num_classes: {classes} {options} }}',
        (2, PRIORS * 4 * locations), (2, PRIORS * classes), (1, 2, PRIORS * 4),
    )  # fmt: skip
    return on_torch(text_format.Parse(text, caffe_pb2.NetParameter()))


@pytest.mark.parametrize(
    ("options", "classes", "locations"),
    [
        ("nms_param { nms_threshold: 0.45 top_k: 20 } keep_top_k: 10 confidence_threshold: 0.2", 3, 1),
        ("nms_param { nms_threshold: 0.3 } share_location: false background_label_id: 1", 4, 4),
        (("nms_param { nms_threshold: 0.6 top_k: 400 } keep_top_k: 500 variance_encoded_in_target: true "
         "background_label_id: -1 confidence_threshold: 1.49"), 2, 1),
    ],
)  # fmt: skip
def test_the_boxes_that_are_left_are_the_engines(
    options: str, classes: int, locations: int
) -> None:
    tried = detection(f"code_type: CENTER_SIZE {options}", classes, locations)
    content = tried.made.as_onnx()
    counts = []
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        found = in_onnx_runtime(content, inputs)
        assert difference(found, outputs, "ONNX", "PyTorch") < CLOSE
        counts += [list(outputs["out/0"][0, 0, :, 0]).count(image) for image in range(7)]
    assert max(counts) > 1
    if "1.49" in options:
        assert -1.0 in tried.outputs[1]["out/0"][..., 1], "no image is without a box"
    with pytest.raises(SolverError, match="leave the layer out of the net"):
        tried.made.as_torch("boxes")


def test_boxes_of_another_code_have_no_equal() -> None:
    tried = detection("code_type: CORNER", 2)
    with pytest.raises(SolverError, match="with code_type: CENTER_SIZE and eta: 1 only"):
        tried.made.as_onnx()


def test_rows_of_boxes_may_change_places_and_one_in_a_hundred_may_be_missing() -> None:
    rows = np.random.default_rng(1).random((1, 1, 200, 7), np.float32)
    rows[..., :2] = 3
    turned = rows[:, :, ::-1] + np.float32(1e-6)

    def apart(ours: Any) -> float:
        return difference({"x": ours}, {"x": rows}, "ONNX", "PyTorch", {"x"})

    assert 5e-7 < apart(turned) < 2e-6
    assert apart(turned[:, :, 2:]) < 2e-6
    for wrong in (turned[:, :, 3:], turned + np.float32(1e-3), turned[:, :, [0] * 200]):
        with pytest.raises(EngineError):
            apart(wrong)


def came_back(tried: Any, content: bytes) -> None:
    """The blobs that the ONNX file holds are the model's, bit for bit."""
    import onnx

    model = onnx.load_model_from_string(content)
    stored = {init.name: onnx.numpy_helper.to_array(init) for init in model.graph.initializer}
    notes = {prop.key: prop.value for prop in model.metadata_props}
    held = {layer.name: layer.blobs for layer in tried.model.layers}
    for layer in tried.made.layers:
        blobs = layer.from_onnx(stored, notes) if layer.step.blobs else []
        for ours, theirs in zip(blobs, held.get(layer.param.name, ()), strict=True):
            assert ours.tobytes() == theirs.read().tobytes()


def test_the_batch_is_free_and_shapes_are_caffes(tmp_path: Path) -> None:
    import onnx

    tried = on_pycaffe(parsed(FAMILIES["average-clipped"]), tmp_path)
    model = onnx.load_model_from_string(tried.made.as_onnx())
    (output,) = model.graph.output
    dims = output.type.tensor_type.shape.dim
    assert [dims[0].dim_param, *(one.dim_value for one in dims[1:])] == ["batch", 4, 4, 4]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert inferred.graph.output[0] == output


def test_across_channels_is_one_operator(tmp_path: Path) -> None:
    import onnx

    tried = on_pycaffe(parsed(FAMILIES["lrn"]), tmp_path)
    model = onnx.load_model_from_string(tried.made.as_onnx())
    assert [node.op_type for node in model.graph.node] == ["LRN"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (one('type: "Im2col" convolution_param { kernel_size: 2 }', IMAGE), "has no equal in ONNX"),
        (
            one('type: "BatchNorm" batch_norm_param { use_global_stats: false }', IMAGE),
            "by the statistics of each batch: set use_global_stats: true",
        ),
    ],
)
def test_a_layer_without_an_equal_in_onnx_is_named(text: str, said: str, tmp_path: Path) -> None:
    tried = on_pycaffe(parsed(text), tmp_path)
    with pytest.raises(SolverError, match=f"layer 'class/3x3' .*{said}"):
        tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe") < CLOSE


def test_statistics_that_were_changed_outside_are_taken_as_they_are(tmp_path: Path) -> None:
    tried = on_pycaffe(parsed(FAMILIES["batch-norm"]), tmp_path)
    import onnx

    model = onnx.load_model_from_string(tried.made.as_onnx())
    stored = {init.name: onnx.numpy_helper.to_array(init) for init in model.graph.initializer}
    notes = {prop.key: prop.value for prop in model.metadata_props}
    (layer,) = tried.made.layers
    changed = {name: values + 1 for name, values in stored.items()}
    mean, variance, weight = layer.from_onnx(changed, notes)
    assert np.array_equal(mean, changed["class_3x3.mean"])
    assert np.array_equal(variance, changed["class_3x3.variance"])
    assert weight.tolist() == [1.0]


def test_names_in_a_net_are_no_code_of_a_module(tmp_path: Path) -> None:
    bad = r"\"\"\"\n    import os # \\ {x} __import__('os')"
    layers = "".join(
        f'layer {{ name: "{bad}{at}" type: "InnerProduct" bottom: "x" top: "{bad}{at}" '
        "inner_product_param { num_output: 3 } }"
        for at in range(2)
    )
    net = parsed(f'name: "{bad}" {input_of("x", (2, 4))} {layers}')
    tried = on_pycaffe(net, tmp_path)
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe") < CLOSE
    text = tried.made.as_torch(net.name)
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
    assert [one.name for node in imports for one in node.names] == ["torch", "torch.nn.functional"]
    assert "__import__" in str(ast.get_docstring(ast.parse(text)))


def test_each_layer_that_computes_has_an_exporter() -> None:
    from caffenets.layers import LAYERS

    without = {
        "Accuracy",
        "DetectionEvaluate",
        "Silence",
        "Input",
        "AnchorTarget",
        "ProposalTarget",
        "OnnxNet",  # of `speedo test --int8`
        # these have no equal
        "Im2col",
        "PSROIPooling",
        "Proposal",
    }
    computing = {name for name in LAYERS if not name.endswith("Loss")} - without
    assert {name for name in computing if not LAYERS[name].is_exported()} == set()


def test_no_part_of_a_module_is_named_as_an_attribute_of_pytorchs() -> None:
    from torch import nn

    from caffenets.forms.steps import identifiers

    names = [name for name in dir(nn.Module) if not name.startswith("_")]
    made = identifiers(["conv/1", "conv_1", "1x1", "class", *names])
    assert list(made.values())[:4] == ["conv_1", "conv_1_2", "layer_1x1", "layer_class"]
    assert not set(names) & set(made.values())
