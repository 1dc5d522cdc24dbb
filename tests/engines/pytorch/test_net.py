"""The net in PyTorch against pycaffe's: what flows between layers, what they share, what counts as a loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.host_program import caffe_schema
from speedo.engines.caffe_import import load_caffe
from speedo.errors import EngineError, SolverError

if TYPE_CHECKING:
    from speedo.engines.pytorch.net import Net

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

# Constant records: what is compared is the net. Labels are 1.
DATA = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 }
    data_filler { type: "constant" value: 0.5 } data_filler { type: "constant" value: 1 } } }
"""


def ip(name: str, bottom: str, outputs: int, more: str = "", top: str | None = None) -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top or name}" {more} '
        f'inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} '
        'bias_filler { type: "constant" value: 0.1 } } }\n'
    )


def loss(name: str, bottom: str, more: str = "", tops: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "SoftmaxWithLoss" bottom: "{bottom}" bottom: "label" '
        f'{tops or f"""top: "{name}" """} {more} }}\n'
    )


def relu(bottom: str, top: str) -> str:
    return f'layer {{ name: "relu-{top}" type: "ReLU" bottom: "{bottom}" top: "{top}" }}\n'


def power(name: str, bottom: str, scale: float, more: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "Power" bottom: "{bottom}" top: "{name}" {more} '
        f"power_param {{ scale: {scale} }} }}\n"
    )


NETS = {
    "in place": ip("a", "data", 5) + relu("a", "a") + ip("b", "a", 4) + loss("loss", "b"),
    "two readers": ip("a", "data", 5) + ip("b", "a", 4) + ip("c", "a", 3)
    + loss("one", "b") + loss("two", "c"),
    "a weight that a Split loses": ip("a", "data", 6)
    + 'layer { name: "s" type: "Slice" bottom: "a" top: "s1" top: "s2" loss_weight: 0.5 loss_weight: 2 '
    "slice_param { slice_point: 4 } }" + loss("one", "s1"),
    "weights of losses": ip("a", "data", 5) + loss("one", "a", "loss_weight: 0.3")
    + ip("b", "a", 4) + loss("two", "b", "loss_weight: 2"),
    "a loss of weight 0": ip("a", "data", 5) + loss("one", "a", "loss_weight: 0")
    + ip("b", "a", 4) + loss("two", "b"),
    "a loss without a top": ip("a", "data", 5) + loss("loss", "a", tops=" "),
    "a weight on a layer that is no loss": ip("a", "data", 5)
    + power("p", "a", 0.5, "loss_weight: 0.1"),
    "a loss of a loss": ip("a", "data", 5) + loss("one", "a")
    + power("half", "one", 0.5, "loss_weight: 1"),
    "a loss with a weight that is read": ip("a", "data", 5) + loss("one", "a", "loss_weight: 0.3")
    + power("half", "one", 0.5, "loss_weight: 1"),
    "a loss that is read and not learned from": ip("a", "data", 5) + loss("one", "a")
    + power("half", "one", 0.5),
    "no gradient through": ip("a", "data", 5) + ip("b", "a", 4, "propagate_down: false")
    + loss("loss", "b"),
    "no gradient through one reader": ip("a", "data", 5) + ip("b", "a", 4, "propagate_down: false")
    + ip("c", "a", 3) + loss("one", "b") + loss("two", "c"),
    "blobs that stay": ip("a", "data", 5, "param { lr_mult: 0 } param { lr_mult: 0 }")
    + ip("b", "a", 4, "param { lr_mult: 0 } param { }") + loss("loss", "b"),
    "shared": ip("a", "data", 8, 'param { name: "w" } param { name: "b" }')
    + ip("b", "a", 8, 'param { name: "w" } param { name: "b" }') + loss("loss", "b"),
    "shared bias": ip("a", "data", 5, 'param { } param { name: "b" }')
    + ip("b", "a", 5, 'param { } param { name: "b" }') + loss("loss", "b"),
    "shared as another shape": ip("a", "data", 4, 'param { name: "w" }')
    + ip("b", "data", 4, 'param { name: "w" share_mode: PERMISSIVE }')
    .replace("num_output: 4", "num_output: 8 axis: 2")
    + loss("one", "a") + power("p", "b", 0.1, "loss_weight: 1"),
    "nothing to learn": power("p", "data", 2, "loss_weight: 1"),
    "outputs": ip("z", "data", 2) + ip("y", "data", 3) + ip("x", "data", 1)
    + 'layer { name: "s" type: "Silence" bottom: "y" }\n',
}  # fmt: skip


def parsed(text: str) -> Any:
    return text_format.Parse(text, caffe_schema().NetParameter())


def torch_net(text: str, **options: Any) -> Net:
    from speedo.engines.pytorch.net import Net

    return Net(parsed(text), options.pop("phase", "TRAIN"), **options)


def caffe_net(text: str, folder: Path) -> Any:
    caffe = load_caffe()
    caffe.set_mode_cpu()
    file = folder / "net.prototxt"
    file.write_text(text)
    return caffe.Net(str(file), caffe.TRAIN)


def copy_weights(caffe: Any, net: Net) -> None:
    """From pycaffe's net; shared ones again and again."""
    import torch

    found = dict(zip(caffe._layer_names, caffe.layers, strict=True))
    for name, blobs in net.blobs_of_layers():
        for blob, given in zip(blobs, found[name].blobs, strict=True):
            blob.copy_(torch.from_numpy(given.data))


@pytest.mark.parametrize("name", NETS)
def test_losses_gradients_and_outputs_are_those_of_pycaffe(name: str, tmp_path: Path) -> None:
    from speedo.engines.parameters import Parameters

    text = DATA + NETS[name]
    caffe, net = caffe_net(text, tmp_path), torch_net(text)
    copy_weights(caffe, net)
    parameters = Parameters(caffe)
    assert net.layout == parameters.layout
    caffe.clear_param_diffs()
    expected_loss = caffe._forward(0, len(caffe.layers) - 1)
    caffe._backward(len(caffe.layers) - 1, 0)
    found_loss, outputs = net.forward()
    # A sum of outputs of both signs may be close to 0.
    assert found_loss.item() == pytest.approx(expected_loss, rel=1e-6, abs=1e-6)
    if found_loss.requires_grad:
        found_loss.backward()
    expected, found = (net.layout.zeros() for _ in range(2))
    for layer in parameters.layers:
        list(parameters.read_gradient(layer, expected, 1, without=()))
    for number in range(len(net.layout.blobs)):
        net.parameters.read_gradient(number, net.parameters.room_for(found), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert list(outputs) == list(net.outputs) == caffe.outputs
    for output, value in outputs.items():
        given = caffe.blobs[output].data
        assert tuple(value.shape) == net.outputs[output] == given.shape
        np.testing.assert_allclose(value.numpy(), given, rtol=1e-5, atol=1e-6)


def test_the_flat_vector_is_the_memory_of_the_parameters() -> None:
    net = torch_net(DATA + NETS["shared"])
    net.flat.fill_(0.25)
    assert {name for name, blobs in net.blobs_of_layers() if blobs} == {"a", "b"}
    for _, blobs in net.blobs_of_layers():
        assert all(bool((blob == 0.25).all()) for blob in blobs)


def test_a_frozen_beginning_costs_no_backward_pass() -> None:
    net = torch_net(DATA + NETS["blobs that stay"])
    loss, _ = net.forward()
    loss.backward()
    names = [blob.name for blob in net.layout.blobs]
    trained = [
        name
        for name, leaf in zip(names, net.parameters.leaves, strict=True)
        if leaf.grad is not None
    ]
    assert trained == ["b/1"]


def test_a_test_net_uses_the_parameters_of_layers_with_the_same_name() -> None:
    train = torch_net(DATA + NETS["two readers"])
    text = DATA + ip("a", "data", 5) + ip("c", "a", 3, top="other") + loss("loss", "other")
    test = torch_net(text, phase="TEST", share=train)
    assert test.layout.size == 0
    train.flat.fill_(0.5)
    blobs = dict(test.blobs_of_layers())
    assert all(bool((blob == 0.5).all()) for blob in (*blobs["a"], *blobs["c"]))


def test_a_layer_of_the_test_net_alone_has_parameters_of_its_own() -> None:
    train = torch_net(DATA + NETS["in place"])
    test = torch_net(DATA + NETS["two readers"], phase="TEST", share=train)
    assert [blob.name for blob in test.layout.blobs] == ["c/0", "c/1"]


def test_values_in_the_prototxt_go_before_the_filler() -> None:
    given = (
        "blobs { shape { dim: 1 dim: 8 } " + "data: 2 " * 8 + "} blobs { shape { dim: 1 } data: 3 }"
    )
    net = torch_net(DATA + ip("a", "data", 1, given))
    np.testing.assert_array_equal(net.flat.numpy(), [2] * 8 + [3])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_draws_the_same_first_values(seed: int) -> None:
    import torch

    drawn = []
    for each in (seed, seed, seed + 1):
        torch.manual_seed(each)
        drawn.append(torch_net(DATA + NETS["in place"]).flat.numpy().copy())
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('layer { name: "x" type: "Convulsion" bottom: "data" top: "x" }', "layer 'x'.*'Convulsion'.*--engine caffe"),
        (ip("a", "nowhere", 3), "layer 'a'.*reads 'nowhere', which no layer before it makes"),
        (ip("a", "data", 3) + ip("b", "data", 3, top="a"), "layer 'b'.*makes 'a', which another layer"),
        (ip("a", "data", 3, "param { } param { } param { }"), "layer 'a'.*has 3 param for 2 blobs"),
        (ip("a", "data", 3, "propagate_down: true propagate_down: true"), "layer 'a'.*2 propagate_down for 1"),
        (ip("a", "data", 3, "loss_weight: 1 loss_weight: 1"), "layer 'a'.*has 2 loss_weight for 1 tops"),
        (ip("a", "data", 3, 'bottom: "label"'), "layer 'a'.*2 bottoms, and needs 1"),
        (
            ip("a", "data", 3, 'param { name: "w" }') + ip("b", "data", 4, 'param { name: "w" }'),
            "layer 'b'.*shares the param 'w' of layer 'a', whose shape is 3 x 8, and needs 4 x 8",
        ),
        (ip("a", "data", 2, "blobs { data: 1 }"), "layer 'a'.*blob 0 has 1 values instead of 16"),
    ],
)  # fmt: skip
def test_what_caffe_refuses_is_refused_with_the_layer(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        torch_net(DATA + text)


def test_of_layers_of_one_name_the_first_is_given_the_files_weights_as_in_caffe(
    tmp_path: Path,
) -> None:
    from speedo.engines.pytorch.net import Net
    from speedo.engines.pytorch.scoring import net_blobs
    from speedo.engines.weights_check import caffe_blobs, copy_weights, load_to_score

    caffe = load_caffe()
    file, weights = tmp_path / "net.prototxt", tmp_path / "w.caffemodel"
    file.write_text(
        """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 2 } }
        layer { name: "ip" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2 } }"""
    )
    saved, loaded, again = (caffe.Net(str(file), caffe.TEST) for _ in range(3))
    for number, layer in enumerate(saved.layers[1:]):
        for blob in layer.blobs:
            blob.data[...] = number + 1
    saved.save(str(weights))
    loaded.copy_from(str(weights))
    ours = Net(text_format.Parse(file.read_text(), caffe_pb2.NetParameter()), "TEST")
    copy_weights(weights, *net_blobs(ours))
    copy_weights(weights, *caffe_blobs(again))
    theirs = [[blob.data.flat[0] for blob in layer.blobs] for layer in loaded.layers]
    assert theirs == [[], [2.0, 2.0], [0.0, 0.0]]
    assert [
        [float(blob.flatten()[0]) for blob in own] for _, own in ours.blobs_of_layers()
    ] == theirs
    assert [[blob.data.flat[0] for blob in layer.blobs] for layer in again.layers] == theirs
    for blobs in (net_blobs(ours), caffe_blobs(again)):
        with pytest.raises(SolverError, match="rename the layers of one name"):
            load_to_score(weights, *blobs)


def test_layers_of_one_name_with_other_shapes_are_refused() -> None:
    train = torch_net(DATA + ip("a", "data", 3))
    with pytest.raises(
        EngineError, match=r"layer 'a'.*needs blobs of 4 x 8, 4, and the layer of this name"
    ):
        torch_net(DATA + ip("a", "data", 4), phase="TEST", share=train)
