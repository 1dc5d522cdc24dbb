"""A run whose loss ends no better than guessing says so; one that has learned says nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from google.protobuf import text_format

from caffenets.host_program import caffe_schema
from speedo.engines.chance import loss_of_guessing
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import LENET, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe


@pytest.mark.parametrize(
    ("base_lr", "filler", "words"),
    [
        (0.05, "xavier", ()),
        (1e-9, "xavier", ("guessing has 1.39", "do the labels belong to their records")),
        (1e-9, "gaussian", ("guessing has 1.39", "are the records scaled (transform_param")),
    ],
)
def test_a_loss_that_ends_at_chance_or_above_is_told(
    tmp_path: Path, base_lr: float, filler: str, words: tuple[str, ...]
) -> None:
    write_data(tmp_path, train=240, test=40)
    net = net_text(LENET, batch=12).replace('"xavier"', f'"{filler}" std: 4')
    solver = write_solver(tmp_path, net, max_iter=60, base_lr=base_lr)
    result, _, _ = train_here(solver, MemoryStore(), tmp_path / "run", workers=2)
    assert result.complete, result.reason
    assert bool(result.warning) == bool(words), result.warning
    for word in words:
        assert word in result.warning


@pytest.mark.parametrize(
    ("layers", "loss"),
    [
        ("type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'l'", math.log(10)),
        ("type: 'SoftmaxWithLoss' bottom: 'p' bottom: 'l'", math.log(21)),
        ("type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'l' loss_weight: 0.3", 0.3 * math.log(10)),
        ("type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'l' loss_param { normalization: BATCH_SIZE }", math.log(10)),
        ("type: 'SoftmaxWithLoss' bottom: 'p' bottom: 'l' loss_param { normalization: BATCH_SIZE }", None),
        ("type: 'SoftmaxWithLoss' bottom: 'p' bottom: 'l' loss_param { normalize: false }", None),
        ("type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'l' loss_param { normalization: NONE }", None),
        ("type: 'EuclideanLoss' bottom: 'a' bottom: 'l'", None),
        ("type: 'Power' bottom: 'a' loss_weight: 1", None),
        ("type: 'Accuracy' bottom: 'a' bottom: 'l'", None),
        ("type: 'HingeLoss' loss_weight: 0 } layer { type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'l'", math.log(10)),
    ],
)  # fmt: skip
def test_the_loss_of_guessing(layers: str, loss: float | None) -> None:
    net = text_format.Parse(f"layer {{ {layers} }}", caffe_schema().NetParameter())
    shapes = {"a": (4, 10), "p": (4, 21, 5, 5)}
    found = loss_of_guessing(net, shapes)
    assert found == (None if loss is None else pytest.approx(loss, rel=1e-6))
