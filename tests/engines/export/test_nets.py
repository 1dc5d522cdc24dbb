"""Whole nets: what a deploy net keeps of a train net, and Caffe's own nets, exported and compared with pycaffe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.export.deploy import Deploy, batch_axes, deploy_of, is_whole, with_batch
from speedo.engines.export.differences import difference
from speedo.engines.solver.state import filter_net
from tests.engines.export.in_process import in_onnx_runtime, in_pytorch, on_pycaffe, parsed
from tests.engines.pytorch.test_caffes_nets import SIZES, VECTOR, archived_nets, nets
from tests.engines.pytorch.test_caffes_nets import parsed as upgraded
from tests.support.siamese import NET as SIAMESE

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

CLOSE = 1e-5
LARGE = ("models/", "examples/imagenet", "examples/net_surgery", "examples/finetune")


def deploy(text: str, phase: str = "TEST", sizes: Sequence[int] = (1, 8, 8)) -> Deploy:
    """The deploy net of this text; its records have these sizes."""
    net = upgraded(text)
    pb2 = load_caffe().proto.caffe_pb2
    state = pb2.NetState(stage=["test-on-test"])
    filtered = filter_net(net, getattr(pb2, phase), state, "net")
    if not is_whole(filtered):
        filtered = filter_net(net, pb2.TRAIN, state, "net")

    def shapes(layer: Any, tops: Sequence[str]) -> dict[str, tuple[int, ...]]:
        crop = layer.transform_param.crop_size
        return dict.fromkeys(tops, (2, *((3, crop, crop) if crop else sizes)))

    return deploy_of(filtered, shapes, "net")


def kept(made: Deploy) -> list[tuple[str, str, list[str], list[str]]]:
    return [
        (layer.name, layer.type, list(layer.bottom), list(layer.top))
        for layer in made.net.layer
        if layer.type != "Input"
    ]


DATA = 'layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 4 } }\n'
SCORES = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" param { lr_mult: 1 }
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""
SOFTMAX_LOSS = (
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }\n'
)
ACCURACY = 'layer { name: "acc" type: "Accuracy" bottom: "ip" bottom: "label" top: "acc" }\n'
IP = ("ip", "InnerProduct", ["data"], ["ip"])


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        (DATA + SCORES + SOFTMAX_LOSS + ACCURACY, [IP, ("prob", "Softmax", ["ip"], ["prob"])]),
        (DATA + SCORES + ACCURACY, [IP]),
        (
            DATA + SCORES + SOFTMAX_LOSS.replace('top: "loss"', 'top: "loss" top: "p"'),
            [IP, ("p", "Softmax", ["ip"], ["p"])],
        ),
        (
            DATA + SCORES + SOFTMAX_LOSS.replace("SoftmaxWithLoss", "SigmoidCrossEntropyLoss"),
            [IP, ("probability", "Sigmoid", ["ip"], ["probability"])],
        ),
        (DATA + SCORES + SOFTMAX_LOSS.replace("SoftmaxWithLoss", "EuclideanLoss"), [IP]),
        (
            DATA + SCORES + 'layer { name: "best" type: "ArgMax" bottom: "ip" top: "best" }' + SOFTMAX_LOSS,
            [
                IP,
                ("best", "ArgMax", ["ip"], ["best"]),
                ("prob", "Softmax", ["ip"], ["prob"]),
            ],
        ),
        (
            DATA + SCORES + 'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }'
            + SOFTMAX_LOSS,
            [IP, ("prob", "Softmax", ["ip"], ["prob"])],
        ),
        (
            DATA + SCORES + SOFTMAX_LOSS + 'layer { name: "quiet" type: "Silence" bottom: "label" }',
            [IP, ("prob", "Softmax", ["ip"], ["prob"])],
        ),
    ],
)  # fmt: skip
def test_a_deploy_net_has_the_layers_that_compute_outputs(text: str, layers: list[Any]) -> None:
    made = deploy(text)
    assert kept(made) == layers
    assert made.inputs == {"data": (2, 1, 8, 8)}


def test_a_side_classifier_is_left_out_and_said() -> None:
    side = SCORES.replace('"ip"', '"side"')
    loss = SOFTMAX_LOSS.replace('"ip"', '"side"').replace('"loss"', '"side_loss"')
    loss = loss.replace(" }\n", " loss_weight: 0.3 }\n")
    made = deploy(DATA + side + loss + SCORES + SOFTMAX_LOSS)
    assert kept(made) == [IP, ("prob", "Softmax", ["ip"], ["prob"])]
    assert made.notes == ["left out with what only they need: 'side_loss', losses of lesser weight"]


def test_fillers_and_rates_are_left_out_and_names_of_shared_parameters_stay() -> None:
    made = deploy(SIAMESE, sizes=(2, 8, 8))
    shared = [[param.name for param in layer.param] for layer in made.net.layer if layer.param]
    assert shared == [["conv_w", "conv_b"], ["feat_w", "feat_b"]] * 2
    assert "filler" not in str(made.net)
    assert "lr_mult" not in str(made.net)
    assert [layer.top[0] for layer in made.net.layer][-1] == "feat2"


def test_twins_share_their_parameters_in_each_form(tmp_path: Path) -> None:
    import torch

    made = deploy(SIAMESE, sizes=(2, 8, 8))
    tried = on_pycaffe(made.net, tmp_path)
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert sorted(outputs) == ["feat1", "feat2"]
        assert difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "Caffe") < CLOSE
        assert difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe") < CLOSE
    namespace: dict[str, Any] = {"__file__": "net.py"}
    exec(tried.made.as_torch("twins"), namespace)
    net = namespace["Net"]()
    assert net.conv1.weight is net.conv2.weight
    assert isinstance(net.feat2.bias, torch.nn.Parameter)


def test_in_place_layers_give_their_last_value_the_blobs_name(tmp_path: Path) -> None:
    import onnx

    text = (
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 5 } } }'
        'layer { name: "a" type: "Sigmoid" bottom: "x" top: "y" }'
        'layer { name: "b" type: "Power" bottom: "y" top: "y" power_param { scale: 2 shift: -1 } }'
        'layer { name: "c" type: "ReLU" bottom: "y" top: "y" }'
        'layer { name: "d" type: "Dropout" bottom: "y" top: "y" }'
    )
    tried = on_pycaffe(parsed(text), tmp_path)
    content = tried.made.as_onnx()
    model = onnx.load_model_from_string(content)
    assert [output.name for output in model.graph.output] == ["y"]
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "Caffe") < CLOSE
        assert difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe") < CLOSE


def conv(name: str, bottom: str, outputs: int, options: str) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {outputs} {options} }} }}\n"
    )


def normalized(name: str) -> str:
    return "".join(
        f'layer {{ name: "{name}/{kind}" type: "{kind}" bottom: "{name}" top: "{name}" {more} }}\n'
        for kind, more in (
            ("BatchNorm", ""),
            ("Scale", "scale_param { bias_term: true }"),
            ("ReLU", ""),
        )
    )


IMAGES = 'layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 2 } }\n'
END = SCORES.replace('"data"', '"last"') + SOFTMAX_LOSS
BLOCKS = {
    "residual": IMAGES + conv("a", "data", 6, "kernel_size: 3 pad: 1 bias_term: false") + normalized("a")
    + conv("b", "a", 6, "kernel_size: 3 pad: 1 bias_term: false") + normalized("b")
    + 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }\n'
    + 'layer { name: "last" type: "Pooling" bottom: "sum" top: "last" '
    "pooling_param { pool: AVE global_pooling: true } }\n" + END,
    "fire": IMAGES + conv("squeeze", "data", 3, "kernel_size: 1") + conv("e1", "squeeze", 4, "kernel_size: 1")
    + conv("e3", "squeeze", 4, "kernel_size: 3 pad: 1")
    + 'layer { name: "joined" type: "Concat" bottom: "e1" bottom: "e3" top: "joined" }\n'
    + 'layer { name: "last" type: "Pooling" bottom: "joined" top: "last" pooling_param { kernel_size: 3 stride: 2 } }\n'
    + END,
    "depthwise": IMAGES + conv("wide", "data", 8, "kernel_size: 1") + normalized("wide")
    + conv("depth", "wide", 8, "kernel_size: 3 stride: 2 pad: 1 group: 8 bias_term: false") + normalized("depth")
    + conv("last", "depth", 4, "kernel_size: 1") + END,
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_the_blocks_of_later_nets_are_exported_from_a_train_net(name: str, tmp_path: Path) -> None:
    tried = on_pycaffe(deploy(BLOCKS[name], "TRAIN", (3, 9, 9)).net, tmp_path)
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        assert list(outputs) == ["prob"]
        assert difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "Caffe") < CLOSE
        assert difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe") < CLOSE


def large(name: str) -> bool:
    return name.startswith(LARGE)


def reads_files(name: str) -> bool:
    """Whether the records of this archived net do not come from code."""
    layers = upgraded(archived_nets()[name]).layer
    return all(layer.type not in ("Python", "WindowData", "MemoryData") for layer in layers)


def shrunk(name: str) -> Deploy:
    """The deploy net of an archived one, with wide inner products narrow."""
    family = name.split("/")[1]
    made = deploy(archived_nets()[name], sizes=SIZES.get(family, VECTOR))
    for layer in made.net.layer:
        if layer.type == "InnerProduct" and layer.inner_product_param.num_output > 1000:
            layer.inner_product_param.num_output = 64
    return made


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.matrix] if large(name) else [])
        if isinstance(name, str)
        else name
        for name in nets()
        if not isinstance(name, str) or reads_files(name)
    ],
)
def test_a_net_of_caffe_is_exported_within_rounding(name: str, tmp_path: Path) -> None:
    made = shrunk(name)
    assert batch_axes(made.net)
    tried = on_pycaffe(with_batch(made.net, 2), tmp_path)
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        in_onnx = difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "Caffe")
        in_torch = difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe")
        print(f"{name}: ONNX {in_onnx:.1e}, PyTorch {in_torch:.1e}")
        assert max(in_onnx, in_torch) < CLOSE


@pytest.mark.parametrize(
    "model", ["bvlc_alexnet", "bvlc_reference_caffenet", "bvlc_googlenet", "finetune_flickr_style"]
)
def test_the_deploy_net_is_the_one_that_was_published(model: str) -> None:
    found = archived_nets()
    if not found:
        pytest.skip("no archive of Caffe's source")
    theirs = deploy(found[f"models/{model}/deploy.prototxt"])
    ours = deploy(found[f"models/{model}/train_val.prototxt"])
    assert kept(ours) == kept(theirs)
    assert list(ours.inputs) == list(theirs.inputs)
    assert ours.inputs["data"][1:] == theirs.inputs["data"][1:]
