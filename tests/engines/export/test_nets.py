"""Whole nets: what a deploy net keeps of a train net; Caffe's and published ones, exported, compared with pycaffe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.deploy import Deploy, batch_axes, deploy_of, is_whole, with_batch
from caffenets.export.differences import difference
from caffenets.prototxt.state import filter_net
from speedo.engines.caffe_import import load_caffe
from tests.engines.export.in_process import (
    Tried,
    in_onnx_runtime,
    in_pytorch,
    on_pycaffe,
    on_torch,
    parsed,
)
from tests.support.archived_nets import SIZES, VECTOR, archived_nets, nets
from tests.support.archived_nets import parsed as upgraded
from tests.support.detection import SIDE, ssd_net
from tests.support.published_nets.builder import Net
from tests.support.published_nets.classifiers import mobilenet, resnet, squeezenet
from tests.support.published_nets.dense import fcn_8s
from tests.support.published_nets.others import lrcn
from tests.support.published_nets.weights import save_weights
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
    assert sorted(tried.outputs[0]) == ["feat1", "feat2"]
    assert_exact("twins", tried)
    namespace: dict[str, Any] = {"__file__": "net.py"}
    exec(tried.made.as_torch("twins"), namespace)
    net = namespace["Net"]()
    assert net.conv1.weight is net.conv2.weight
    assert isinstance(net.feat2.bias, torch.nn.Parameter)


@pytest.mark.parametrize("names", [("cut",) * 4, ("",) * 4, ("cut", "cut_2", "cut", "cut")])
def test_layers_of_one_name_or_of_none_are_exported(names: tuple[str, ...], tmp_path: Path) -> None:
    """As in HED's deploy net, whose five Crop layers are all called `crop`."""
    net = parsed(
        """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 2 dim: 7 dim: 7 } } }
        layer { type: "LRN" bottom: "data" top: "a" lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 } }
        layer { type: "Power" bottom: "a" top: "b" power_param { scale: 2 shift: 1 } }
        layer { type: "BNLL" bottom: "b" top: "b" }
        layer { type: "Softmax" bottom: "b" top: "c" }
        """
    )
    for layer, name in zip(net.layer[1:], names, strict=True):
        if name:
            layer.name = name
    assert_exact(str(names), on_pycaffe(net, tmp_path))


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
    model = onnx.load_model_from_string(tried.made.as_onnx())
    assert [output.name for output in model.graph.output] == ["y"]
    assert_exact("in place", tried)


def published() -> Iterator[Any]:
    """The nets of `tests.support.published_nets`, small; and those of the papers' sizes for `make faults`."""
    small = [
        squeezenet(64),
        resnet(18, 64),
        mobilenet(64),
        fcn_8s(32, 4),
        lrcn(4, 50, 12, 9),
    ]
    for net in small:
        yield pytest.param(net, id=net.name)
    for net in (squeezenet(), resnet(50), mobilenet(), fcn_8s(224, 16), lrcn()):
        yield pytest.param(net, id=f"{net.name}, whole", marks=pytest.mark.matrix)


@pytest.mark.parametrize("net", list(published()))
def test_a_published_net_is_exported_from_its_train_and_from_its_deploy_net(
    net: Net, tmp_path: Path
) -> None:
    pb2 = load_caffe().proto.caffe_pb2
    theirs = deploy(net.deploy())
    for phase in (pb2.TRAIN, pb2.TEST):
        filtered = filter_net(upgraded(net.train()), phase, None, "net")
        made = deploy_of(
            filtered, lambda layer, tops: {top: theirs.inputs[top] for top in tops}, "net"
        )
        assert made.net == theirs.net
    weights = tmp_path / "net.caffemodel"
    save_weights(with_batch(theirs.net, 7), weights)
    tried = on_pycaffe(theirs.net, tmp_path, weights=weights)
    assert_exact(net.name, tried)


def assert_exact(name: str, tried: Tried) -> None:
    """Both forms compute what pycaffe computes, but for rounding."""
    content = tried.made.as_onnx()
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        in_onnx = difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "Caffe")
        in_torch = difference(in_pytorch(tried.made, inputs), outputs, "PyTorch", "Caffe")
        print(f"{name}: ONNX {in_onnx:.1e}, PyTorch {in_torch:.1e}")
        assert max(in_onnx, in_torch) < CLOSE


def test_a_detector_is_exported_with_its_search_for_boxes() -> None:
    net: Any = text_format.Parse(ssd_net(2, 2), caffe_pb2.NetParameter())
    filtered = filter_net(net, caffe_pb2.TEST, None, "net")
    made = deploy_of(filtered, lambda layer, tops: dict.fromkeys(tops, (2, 3, SIDE, SIDE)), "net")
    assert kept(made)[-1][1] == "DetectionOutput"
    for layer in made.net.layer:  # a deploy net has no fillers
        if layer.HasField("convolution_param"):
            layer.convolution_param.weight_filler.type = "msra"
    tried = on_torch(made.net)
    content = tried.made.as_onnx()
    assert tried.made.found == {"detection_out"}
    for inputs, outputs in zip(tried.inputs, tried.outputs, strict=True):
        found = in_onnx_runtime(content, inputs)
        assert difference(found, outputs, "ONNX", "PyTorch", tried.made.found) < CLOSE
        assert len(np.unique(outputs["detection_out"][..., 2])) > 20, "scores are alike"


def large(name: str) -> bool:
    return name.startswith(LARGE)


def reads_files(name: str) -> bool:
    """Whether the records of this archived net do not come from code."""
    return not re.search(r"type:\s*[\"']?(Python|MemoryData|MEMORY_DATA)\b", archived_nets()[name])


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
    assert_exact(name, on_pycaffe(with_batch(made.net, 2), tmp_path))


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
