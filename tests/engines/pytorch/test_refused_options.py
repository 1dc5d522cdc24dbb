"""What a layer refuses before the start, where Caffe ends the process: the layer, what is wrong, what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf import text_format

from speedo.engines.caffe_import import load_caffe, prepare_environment
from speedo.errors import EngineError

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

CASES = [
    ('type: "Concat" concat_param { axis: 3 }', [(2, 3)], "has axis 3, but its bottom has 2 axes"),
    ('type: "Concat" concat_param { axis: 1 concat_dim: 1 }', [(2, 3)], "remove concat_dim"),
    ('type: "Concat"', [(2, 3), (3, 3)], "2x3 and 3x3 along axis 1"),
    ('type: "Concat"', [(2, 3), (2, 3, 1)], "2x3 and 2x3x1 along axis 1"),
    ('type: "Slice" top: "b"', [(2, 3)], "into 2 equal parts"),
    ('type: "Slice" top: "b" slice_param { slice_point: 3 }', [(2, 3)], "each inside the axis"),
    ('type: "Slice" slice_param { slice_point: 1 }', [(2, 3)], "one point fewer than tops"),
    ('type: "Crop" crop_param { axis: 1 offset: 2 }', [(2, 4), (2, 3)], "has only 4"),
    ('type: "Crop" crop_param { axis: 1 offset: 0 offset: 0 }', [(2, 4), (2, 3)], "none, one or 1"),
    ('type: "Flatten" flatten_param { axis: 2 end_axis: 0 }', [(2, 3, 4)], "exchange them"),
    ('type: "Reshape" reshape_param { shape { dim: -1 dim: -1 } }', [(2, 3)], "-1 more than once"),
    ('type: "Reshape" reshape_param { shape { dim: 4 dim: -1 } }', [(2, 3)], "6 values over 4"),
    ('type: "Reshape" reshape_param { shape { dim: 4 } }', [(2, 3)], "makes 4 values of 6"),
    ('type: "Reshape" reshape_param { shape { dim: 6 dim: 1 dim: 0 } }', [(2, 3)], "copies axis 2"),
    (
        'type: "Reshape" reshape_param { axis: 3 shape { dim: 6 } }',
        [(2, 3)],
        "its bottom has 2 axes",
    ),
    ('type: "Tile"', [(2, 3)], "has tiles 0: set 1 or more"),
    ('type: "Eltwise"', [(2, 3), (2, 4)], "unequal shapes"),
    ('type: "Eltwise" eltwise_param { coeff: 1 }', [(2, 3), (2, 3)], "give each bottom one"),
    (
        'type: "Eltwise" eltwise_param { operation: PROD coeff: 1 coeff: 1 }',
        [(2, 3), (2, 3)],
        "PROD does not take",
    ),
    ('type: "ArgMax" argmax_param { top_k: 4 }', [(2, 3)], "has top_k 4 of 3 values: use 1 to 3"),
    ('type: "MVN"', [(1, 2, 3, 4, 5)], "1 to 4 axes"),
    ('type: "Embed" embed_param { num_output: 3 }', [(2,)], "has input_dim 0: set 1 or more"),
    ('type: "BatchReindex"', [(2, 3), (2, 1)], "needs indices of one axis"),
    ('type: "Filter"', [(2, 3), (2, 3)], "one value an item"),
    ('type: "Filter"', [(2, 3), (3,)], "another number of items"),
    ('type: "Filter" top: "b"', [(2, 3), (2,)], "give each bottom one top"),
    ('type: "EuclideanLoss"', [(2, 3), (2, 4)], "of 3 and of 4 values"),
    ('type: "EuclideanLoss"', [(2, 3), (3, 3)], "the first axis of both must be the batch"),
    ('type: "ContrastiveLoss"', [(2, 3), (2, 4), (2,)], "both must be one vector"),
    ('type: "ContrastiveLoss"', [(2, 3), (2, 3), (2, 2)], "give each pair one"),
    ('type: "InfogainLoss"', [(2, 3), (2,)], "set source, or give it as third bottom"),
    ('type: "InfogainLoss"', [(2, 3), (2,), (1, 1, 2, 2)], "of 4 values for 3 classes"),
    ('type: "InfogainLoss"', [(2, 3, 4), (2,), (1, 1, 3, 3)], "give each prediction one"),
    (
        'type: "InfogainLoss" loss_param { normalize: true }',
        [(2, 3), (2,), (1, 1, 3, 3)],
        "set normalization",
    ),
    (
        'type: "InfogainLoss" infogain_loss_param { source: "/no/such/file" }',
        [(2, 3), (2,)],
        "cannot read its infogain matrix from /no/such/file",
    ),
    ('type: "MultinomialLogisticLoss"', [(2, 3), (2, 3)], "give each item one"),
    ('type: "SigmoidCrossEntropyLoss"', [(2, 3), (2,)], "give each value one"),
    ('type: "Input"', [], "give one, or one a top"),
    ('type: "LSTM"', [(2, 3, 4), (2, 3)], "has num_output 0"),
    ('type: "RNN" recurrent_param { num_output: 5 }', [(2, 3), (2, 3)], "T steps of N sequences"),
    (
        'type: "LSTM" recurrent_param { num_output: 5 expose_hidden: true }',
        [(2, 3, 4), (2, 3)],
        "needs 4 bottoms, or one more for a static input, and 3 tops",
    ),
    (
        'type: "RNN" top: "b" recurrent_param { num_output: 5 expose_hidden: true }',
        [(2, 3, 4), (2, 3), (1, 3, 4)],
        "needs states of shape (1, 3, 5)",
    ),
    ('type: "LSTMUnit" top: "b"', [(1, 3, 4), (1, 3, 4), (1, 3)], "needs (1, N, D), (1, N, 4 D)"),
]


def layer_of(text: str) -> Any:
    from caffenets.layer import LayerContext
    from caffenets.layers import LAYERS

    prepare_environment(1)
    parameters = load_caffe().proto.caffe_pb2.NetParameter()
    param = text_format.Parse(f'layer {{ name: "named" top: "a" {text} }}', parameters).layer[0]
    return LAYERS[param.type](param, LayerContext())


@pytest.mark.parametrize(("text", "shapes", "message"), CASES)
def test_a_layer_says_what_is_wrong(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(EngineError, match=r"^layer 'named' \(") as refused:
        layer_of(text).setup(shapes)
    assert re.search(re.escape(message), str(refused.value))


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        ('type: "BatchReindex"', [[[1.0], [2.0]], [2.0]], "has the index 2, outside of 0 to 1"),
        (
            'type: "Embed" embed_param { num_output: 1 input_dim: 2 bias_term: false }',
            [[2.0]],
            "set input_dim to the number of words",
        ),
    ],
)
def test_an_index_out_of_range_ends_the_step(text: str, bottoms: list[Any], message: str) -> None:
    import torch

    layer = layer_of(text)
    tensors = [torch.tensor(bottom) for bottom in bottoms]
    layer.setup([tuple(tensor.shape) for tensor in tensors])
    with pytest.raises(EngineError, match=message):
        layer.forward(tensors, [torch.zeros(spec.shape) for spec in layer.blobs])


def test_slice_of_a_batch_that_a_filter_made_odd_says_so() -> None:
    import torch

    layer = layer_of('type: "Slice" top: "b" slice_param { axis: 0 }')
    layer.setup([(4, 2)])
    with pytest.raises(EngineError, match="cuts an axis of 3 into 2 equal parts"):
        layer.forward([torch.zeros(3, 2)], [])


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ('type: "EuclideanLoss"', [(3, 2), (3, 2)]),
        ('type: "MVN"', [(2, 1, 3, 3)]),
        ('type: "Reduction"', [(3, 4)]),
        ('type: "SigmoidCrossEntropyLoss"', [(3, 2), (3, 2)]),
    ],
)
def test_bfloat16_bottoms_are_computed_in_float32(text: str, shapes: list[tuple[int, ...]]) -> None:
    import torch

    torch.manual_seed(0)
    layer = layer_of(text)
    layer.setup(shapes)
    bottoms = [torch.rand(shape).bfloat16() for shape in shapes]
    (top,) = layer.forward(bottoms, [])
    assert top.dtype == torch.float32
    assert torch.equal(top, layer.forward([bottom.float() for bottom in bottoms], [])[0])
