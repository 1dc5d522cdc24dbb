"""Nets that Caffe refuses, or whose first backward pass ends it: PyTorch refuses each before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.engines.pytorch.test_net import DATA, ip, loss, relu
from tests.engines.pytorch.test_random_nets import torch_steps
from tests.support.caffe_steps import caffe_steps

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


def layer(kind: str, bottoms: str, top: str, more: str = "") -> str:
    ends = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    return f'layer {{ name: "{top}-{kind}" type: "{kind}" {ends} top: "{top}" {more} }}\n'


def shared(first: str, second: str) -> str:
    """Two layers with one weight, of which these ParamSpecs say more."""
    return (
        ip("a", "data", 4)
        + ip("b", "a", 4, f'param {{ name: "w" {first} }}')
        + ip("c", "b", 4, f'param {{ name: "w" {second} }}')
        + loss("loss", "c")
    )


CHOSEN: Final = layer(
    "DummyData", "", "chosen", "dummy_data_param { shape { dim: 3 } data_filler { value: 1 } }"
)
FILTER: Final = 'layer { name: "filter" type: "Filter" bottom: "a" bottom: "label" bottom: "chosen" top: "f" top: "l" }'
AFTER_FILTER: Final = (
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "l" top: "loss"'
)
# The net, and what PyTorch says of it; nothing where both train.
NETS: Final = {
    "another lr_mult": (shared("lr_mult: 2", "lr_mult: 1"), "with lr_mult 1, and another layer with 2"),
    "another decay_mult": (shared("decay_mult: 0", "decay_mult: 1"), "give both one value"),
    "one lr_mult, said once": (shared("", "lr_mult: 2 decay_mult: 0"), ""),
    "read before it works in place": (
        ip("a", "data", 4) + ip("b", "a", 4) + relu("a", "a") + loss("loss", "b") + loss("two", "a"),
        "works in place on 'a', which is also read by another layer",
    ),
    "a loss in place": (
        ip("a", "data", 4, "loss_weight: 1") + relu("a", "a") + loss("loss", "a"),
        "or is a loss",
    ),
    "read after it worked in place": (
        ip("a", "data", 4) + relu("a", "a") + ip("b", "a", 4) + loss("loss", "b") + loss("two", "a"),
        "",
    ),
    "AbsVal in place": (ip("a", "data", 4) + layer("AbsVal", "a", "a") + loss("loss", "a"), "rename its top"),
    "Flatten in place": (ip("a", "data", 4) + layer("Flatten", "a", "a") + loss("loss", "a"), "rename its top"),
    "Accuracy as a loss": (
        ip("a", "data", 4) + layer("Accuracy", "a label", "right", "loss_weight: 1") + loss("loss", "a"),
        "gives no gradient to its scores",
    ),
    "Accuracy of records as a loss": (
        layer("Reshape", "data", "flat", "reshape_param { shape { dim: 3 dim: 8 } }")
        + layer("Accuracy", "flat label", "right", "loss_weight: 1") + ip("a", "data", 4) + loss("loss", "a"),
        "",
    ),
    "Threshold below a loss": (
        ip("a", "data", 4) + layer("Threshold", "a", "t") + ip("b", "t", 4) + loss("loss", "b"),
        "gives no gradient to its bottom",
    ),
    "Threshold above fixed weights": (
        ip("a", "data", 4, "param { lr_mult: 0 } param { lr_mult: 0 }") + layer("Threshold", "a", "t")
        + ip("b", "t", 4) + loss("loss", "b"),
        "",
    ),
    "labels through a trained Filter": (
        ip("a", "data", 4) + CHOSEN + FILTER + AFTER_FILTER + " }", "gives no gradient to its labels",
    ),
    "labels without propagate_down": (
        ip("a", "data", 4) + CHOSEN + FILTER + AFTER_FILTER + " propagate_down: true propagate_down: false }", "",
    ),
    **{
        f"a trained label of {kind}": (
            ip("a", "data", 1) + ip("b", "data", 1) + layer(kind, "a b", "loss"), "set propagate_down: false",
        )
        for kind in ("HingeLoss", "MultinomialLogisticLoss", "SigmoidCrossEntropyLoss", "SoftmaxWithLoss")
    },
    "a negative lr_mult": (ip("a", "data", 4, "param { lr_mult: -1 }") + loss("loss", "a"), ""),
    "two tops of a loss without weights": (
        ip("a", "data", 4) + loss("one", "a", "", 'top: "one" top: "softmax"'), "give one for each",
    ),
    "two weights of a loss that is read": (
        ip("a", "data", 4) + loss("one", "a", "loss_weight: 1 loss_weight: 0", 'top: "one" top: "softmax"')
        + layer("Power", "one", "twice"),
        "let no layer read those",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def of_caffe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("refused")
    texts = [solver(net) for net, _ in NETS.values()]
    return dict(zip(NETS, caffe_steps(texts, Path(folder)), strict=True))


def solver(net: str) -> str:
    return f'base_lr: 0.01 lr_policy: "fixed" random_seed: 1 train_net_param {{ {DATA} {net} }}'


@pytest.mark.parametrize("name", NETS)
def test_a_net_is_refused_where_caffe_refuses_it(name: str, of_caffe: dict[str, object]) -> None:
    net, sentence = NETS[name]
    found = torch_steps(solver(net), None)
    if not sentence:
        assert not isinstance(of_caffe[name], str), of_caffe[name]
        assert not isinstance(found, str), found
        return
    assert isinstance(of_caffe[name], str), "Caffe trains it"
    assert isinstance(found, str), "PyTorch trains it"
    assert sentence in found
