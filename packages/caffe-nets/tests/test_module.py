"""A net of Caffe as a module of PyTorch: its weights by name, any batch, and words for what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffenets
from caffenets.errors import ConfigError, EngineError, NetError
from caffenets.weight_files.caffemodel import write_model

pytestmark = pytest.mark.torch
BUNDLED = Path(__file__).resolve().parents[3] / "prototxt"
NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "a.b" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
  inner_product_param { num_output: 2 bias_term: false } }
layer { name: "c" type: "InnerProduct" bottom: "a" top: "c" param { name: "w" }
  inner_product_param { num_output: 2 bias_term: false } }
"""


def net(folder: Path, text: str = NET) -> Path:
    file = folder / "net.prototxt"
    file.write_text(text)
    return file


def weights(folder: Path, prototxt: Path, blobs: dict[str, list[Any]]) -> Path:
    file = folder / "net.caffemodel"
    layers = [(layer, blobs.get(layer.name, [])) for layer in caffenets.read_net(prototxt).layer]
    with file.open("wb") as out:
        write_model(out, "net", layers)
    return file


def test_shared_weights_are_one_parameter_and_outputs_have_their_names(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = np.array([[1, 2], [3, 4]], np.float32)
    module = caffenets.load(net(tmp_path), weights(tmp_path, net(tmp_path), {"a.b": [w], "c": [w]}))
    assert not module.training
    assert [name for name, _ in module.named_parameters()] == ["a_b/0"]
    given = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    outputs = module(given)
    assert list(outputs) == ["c"]
    assert outputs["c"].tolist() == (given.numpy() @ w.T @ w.T).tolist(), (
        "a batch of three, of a net with one"
    )
    outputs["c"].sum().backward()
    assert module.get_parameter("a_b/0").grad is not None


@pytest.mark.parametrize("batch", [1, 7])
def test_a_bundled_net_computes_and_follows_the_batch(batch: int) -> None:
    torch = pytest.importorskip("torch")
    module = caffenets.load(
        BUNDLED / "lenet" / "train_test.prototxt", shapes={"data": (1, 1, 28, 28)}
    )
    assert sum(one.numel() for one in module.parameters()) == 431_080
    with torch.no_grad():
        prob = module(torch.rand(batch, 1, 28, 28))["prob"]
    assert prob.shape == (batch, 10)
    torch.testing.assert_close(prob.sum(1), torch.ones(batch))


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = caffenets.load(net(tmp_path))
    with pytest.raises(ConfigError, match="2 tensors are given, and the net has the inputs x"):
        module(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(
        EngineError, match=r"layer 'a\.b' \(InnerProduct\) needs other weights for inputs"
    ):
        module(torch.zeros(1, 3))
    wrong = weights(tmp_path, net(tmp_path), {"a.b": [np.zeros((3, 3), np.float32)]})
    with pytest.raises(EngineError, match=r"blob 0 of layer 'a\.b' is 2 x 2 in this net"):
        module.load_weights(wrong)
    with pytest.raises(NetError, match="cannot be read"):
        caffenets.load(tmp_path / "nothing.prototxt")
