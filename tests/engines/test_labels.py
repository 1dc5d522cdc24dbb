"""Which records become labels is read from the net; labels from elsewhere are looked at before Caffe uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.host_program import caffe_schema
from speedo.engines.label_rules import Classes, LabelUse, checked_for_nan, label_uses
from speedo.engines.make import EngineChoice, make_engine
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.errors import EngineError

SCORES = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" }'
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" '
SHAPES = {"data": (8, 3), "ip": (8, 10), "two": (8, 2), "label": (8,), "both": (8, 3, 4, 4)}
LOSS_OF_10 = Classes("loss", "ip", 10, None, may_ignore=True)
HDF5 = 'layer { name: "h" type: "HDF5Data" top: "data" top: "%s" }'


def net(*layers: str) -> Any:
    return text_format.Parse("\n".join(layers), caffe_schema().NetParameter())


def uses(*layers: str, source: str = "h") -> tuple[LabelUse, ...]:
    return label_uses(net(*layers), source, SHAPES)


def test_a_top_that_a_loss_takes_as_labels_is_found() -> None:
    assert uses(HDF5 % "label", SCORES, LOSS + "}") == (LabelUse(1, LOSS_OF_10),)


def test_each_reader_has_its_own_ignored_label() -> None:
    """A label that the loss ignores is none that the Accuracy beside it ignores."""
    accuracy = 'layer { name: "a" type: "Accuracy" bottom: "ip" bottom: "label" top: "a" '
    found = uses(
        HDF5 % "label",
        SCORES,
        LOSS + "loss_param { ignore_label: 255 } }",
        accuracy + "}",
        accuracy + "accuracy_param { ignore_label: -1 } }",
    )
    assert [use.classes.ignored for use in found] == [255, None, -1]
    assert [use.classes.first_wrong(np.array([3.0, 255])) for use in found] == [None, 1, 1]


@pytest.mark.parametrize("kind", ["MultinomialLogisticLoss", "HingeLoss"])
def test_losses_without_ignore_label_ignore_none(kind: str) -> None:
    loss = LOSS.replace("SoftmaxWithLoss", kind) + "loss_param { ignore_label: 255 } }"
    (use,) = uses(HDF5 % "label", SCORES, loss)
    assert use.classes == Classes("loss", "ip", 10)


def test_the_rows_of_an_embed_layer_are_a_bound_too() -> None:
    embed = (
        'layer { name: "e" type: "Embed" bottom: "word" top: "v" embed_param { input_dim: 50 } }'
    )
    (use,) = uses(HDF5 % "word", embed)
    assert use.classes == Classes("e", "", 50)
    assert use.classes.problem(50.0) == (
        "but layer 'e' takes 0 to 49: correct the labels, which count from 0, or make input_dim 51 or more"
    )


def test_labels_of_several_tasks_have_each_their_classes() -> None:
    """A blob of three labels that Slice deals out: the first of two classes, the others of ten."""
    slices = (
        'layer { name: "s" type: "Slice" bottom: "both" top: "x" top: "label" '
        "slice_param { axis: 1 slice_point: 1 } }"
    )
    first = 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "two" bottom: "x" top: "l" }'
    found = uses(HDF5 % "both", SCORES, slices, first, LOSS + "}")
    assert [(use.start, use.stop, use.classes.number) for use in found] == [(0, 1, 2), (1, 3, 10)]
    rows = np.array([[1, 9, 9], [1, 9, 9], [1, 10, 9]])
    wrong = [use.classes.first_wrong(use.labels(rows)) for use in found]
    assert wrong == [None, 4]  # of the 3 x 2 labels of the second


def test_labels_that_count_from_1_and_are_shifted_are_whole() -> None:
    power = 'layer { name: "p" type: "Power" bottom: "y" top: "label" power_param { shift: -1 } }'
    flat = 'layer { name: "f" type: "Flatten" bottom: "label" top: "label" }'
    (use,) = uses(HDF5 % "y", SCORES, power, flat, LOSS + "}")
    assert use.classes.first_wrong(use.labels(np.array([1.0, 10.0]))) is None
    assert use.classes.first_wrong(use.labels(np.array([1.0, 0.0]))) == 1


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ("", [(1.0, 0.0)]),
        ("transform_param { mean_value: 1 scale: 2 }", [(2.0, -2.0)]),
        ('transform_param { mean_file: "m" }', []),
        ("transform_param { crop_size: 4 }", []),
    ],
)
def test_an_image_of_labels_is_transformed_as_others(
    transform: str, expected: list[tuple[float, float]]
) -> None:
    data = f'layer {{ name: "h" type: "Data" top: "label" {transform} }}'
    found = uses(data, 'layer { name: "d" type: "Data" top: "data" }', SCORES, LOSS + "}")
    assert [(use.scale, use.shift) for use in found] == expected


def test_records_that_a_filter_may_leave_out_are_not_judged() -> None:
    chosen = 'layer { name: "f" type: "Filter" bottom: "y" bottom: "data" top: "label" }'
    layers = (HDF5 % "y", SCORES, chosen, LOSS + "}")
    assert uses(*layers) == ()
    assert checked_for_nan(net(*layers), net(*layers).layer[0]) == ()
    plain = net(HDF5 % "label", SCORES, LOSS + "}")
    assert checked_for_nan(plain, plain.layer[0]) == (0, 1)


DUMMY = """
layer {{ name: "d" type: "DummyData" top: "data" top: "label" dummy_data_param {{
  shape {{ dim: 4 dim: 3 }} shape {{ dim: 4 }} data_filler {{ type: "constant" value: 1 }}
  data_filler {{ type: "constant" value: {label} }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: 10 }} }}
layer {{ name: "loss" type: "{kind}" bottom: "ip" bottom: "label" top: "loss" {more} }}
"""


@pytest.mark.caffe
@pytest.mark.parametrize("engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize(
    ("kind", "label", "more", "words"),
    [
        ("SoftmaxWithLoss", 10, "", "label 10"),
        ("SoftmaxWithLoss", 100000, "loss_param { ignore_label: 255 }", "label 100000"),
        ("SoftmaxWithLoss", 255, "loss_param { ignore_label: 255 }", None),
        ("SoftmaxWithLoss", 9, "", None),
        ("MultinomialLogisticLoss", -1, "loss_param { ignore_label: -1 }", "label -1"),
        ("HingeLoss", 10, "", "label 10"),
    ],
)
def test_labels_that_no_file_has_are_looked_at_in_the_step(
    engine: Any, kind: str, label: int, more: str, words: str | None
) -> None:
    layers = DUMMY.format(kind=kind, label=label, more=more)
    text = f'train_net_param {{ {layers} }} base_lr: 0.1 lr_policy: "fixed" solver_mode: CPU'
    text += f" test_net_param {{ {layers} }} test_iter: 1 test_interval: 1"
    made = make_engine(EngineChoice(engine, "cpu"), text, lr_policy=LrPolicy("fixed", 0.1))
    for act in (lambda: made.step(1), made.evaluate):
        if words is None:
            act()
        else:
            with pytest.raises(EngineError, match=f"'loss'.* ({words}\\b|out of bounds)"):
                act()
    made.close()


@pytest.mark.caffe
def test_records_that_are_not_finite_are_blamed_for_the_loss() -> None:
    layers = DUMMY.format(kind="SoftmaxWithLoss", label=2, more="")
    layers = layers.replace("value: 1", "value: nan")
    text = f'train_net_param {{ {layers} }} base_lr: 0.1 lr_policy: "fixed" solver_mode: CPU'
    made = make_engine(EngineChoice("caffe"), text, lr_policy=LrPolicy("fixed", 0.1))
    with pytest.raises(EngineError, match="layer 'd' has read NaN or infinity in 'data': correct"):
        made.step(1)
    made.close()
