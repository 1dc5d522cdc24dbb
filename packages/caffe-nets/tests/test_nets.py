"""A net comes from its file in today's format, and two nets are compared layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import caffenets
from caffenets.deploy import batch_axes
from caffenets.errors import SolverError
from caffenets.nets import net_differences, read_net

TODAY = """name: "net"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
"""
SECOND = """name: "net"
input: "data" input_dim: 1 input_dim: 3 input_dim: 1 input_dim: 1
layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layers { name: "relu" type: RELU bottom: "ip" top: "ip" }
"""
FIRST = """name: "net"
layers { layer { name: "ip" type: "innerproduct" num_output: 2 } bottom: "data" top: "ip" }
layers { layer { name: "relu" type: "relu" } bottom: "ip" top: "ip" }
"""


def net(folder: Path, text: str, name: str = "net.prototxt") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("text", [TODAY, SECOND, FIRST], ids=["today", "second", "first"])
def test_each_format_of_a_net_becomes_todays(tmp_path: Path, text: str) -> None:
    found = caffenets.read_net(net(tmp_path, text))
    assert [layer.type for layer in found.layer][-2:] == ["InnerProduct", "ReLU"]
    assert found.layer[-2].inner_product_param.num_output == 2
    assert not found.layers


def test_differences_of_two_nets_are_named_by_layer(tmp_path: Path) -> None:
    first = read_net(net(tmp_path, TODAY))
    assert list(net_differences(first, first)) == []
    other = TODAY.replace("num_output: 2", "num_output: 3").replace('"relu"', '"relu1"')
    second = read_net(net(tmp_path, other.replace('name: "net"', 'name: "other"')))
    assert list(net_differences(first, second)) == [
        "layer ip:",
        "  -   num_output: 2",
        "  +   num_output: 3",
        "layer relu (ReLU): only in the first net",
        "layer relu1 (ReLU): only in the second net",
        "the net:",
        '  - name: "net"',
        '  + name: "other"',
    ]
    lines = TODAY.splitlines()
    turned = read_net(net(tmp_path, "\n".join([*lines[:2], lines[3], lines[2]])))
    assert list(net_differences(first, turned)) == [
        "the layers that both have are in another order"
    ]


def test_the_command_upgrades_and_compares_nets(tmp_path: Path, run: Any) -> None:
    old, new = net(tmp_path, SECOND, "old.prototxt"), tmp_path / "new.prototxt"
    assert run("upgrade", old, new) == (0, "", "")
    assert run("upgrade", old)[1] == new.read_text()
    assert run("diff", old, new) == (0, "", "")
    status, out, _ = run("diff", "--json", new, net(tmp_path, TODAY))
    assert status == 1
    assert all("difference" in json.loads(line) for line in out.splitlines())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'layer { name: "a" typ: "ReLU" }',
            "line 1: LayerParameter has no field 'typ'; did you mean 'type'?",
        ),
        ('net: "a.prototxt"', "this is a solver: give the net that it names"),
        ("layer {", "line 1"),
        ("layer { name: 'a' type: 'Yolo' yolo_p: 3 }", "--ignore-unknown leaves such fields out"),
        ("layers { } layer { }", "has both `layer` and `layers`"),
        ("layer { foo [1] }", "line 1: LayerParameter has no field 'foo'"),
        ("foo", "line 1: NetParameter has no field 'foo'"),
        ("layer { type: 'X' odd_param { a: 1", 'line 1: Expected "}"'),
    ],
    ids=["typo", "solver", "cut", "unknown", "mixed", "no value", "a word", "another's, cut"],
)
def test_what_is_wrong_with_a_net_is_told_with_the_remedy(
    tmp_path: Path, run: Any, text: str, told: str
) -> None:
    file = net(tmp_path, text)
    status, out, err = run("upgrade", file)
    assert (status, out) == (2, "")
    assert err.startswith(f"caffenets: {file}")
    assert told in err
    with pytest.raises(SolverError):
        read_net(file)


def test_unknown_fields_are_left_out_when_that_is_asked_for(tmp_path: Path, run: Any) -> None:
    file = net(tmp_path, "layer { name: 'a' type: 'ReLU' later_field: 3 }")
    status, out, err = run("upgrade", "--ignore-unknown", file)
    assert (status, "later_field" in out) == (0, False)
    assert err.startswith(
        f"caffenets: left out: {file}, line 1: LayerParameter has no field 'later_field'"
    )
    status, _, err = run("diff", file, tmp_path / "a.caffemodel")
    assert (status, "give two of a kind" in err) == (2, True)
    status, _, err = run("upgrade", "--ignore-unknown", file, tmp_path / "no" / "net.prototxt")
    assert (status, "net.prototxt cannot be written: No such file or directory" in err) == (2, True)


def test_an_image_beside_the_marks_of_one_sequence_is_no_state_of_it(tmp_path: Path) -> None:
    """As in CRNN, whose image of one channel begins with 1 x 1 as a state of one sequence does."""
    net = tmp_path / "crnn.prototxt"
    net.write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 6 } } }\n'
        'layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 6 dim: 1 } } }\n'
        'layer { name: "state" type: "Input" top: "state" input_param { shape { dim: 1 dim: 1 dim: 3 } } }\n'
        'layer { name: "steps" type: "Reshape" bottom: "data" top: "steps" '
        "reshape_param { shape { dim: 6 dim: 1 dim: -1 } } }\n"
        'layer { name: "lstm" type: "LSTM" bottom: "steps" bottom: "cont" top: "lstm" '
        "recurrent_param { num_output: 3 } }\n"
    )
    assert batch_axes(read_net(net)) == {"data": 0, "cont": 1, "state": 1}


FORKED = """name: "forked" default_forward_type: FLOAT16
layer {
  name: "pairs" type: "ImageSegData" top: "data" top: "label"
  transform_param { crop_size: 33 scale_factors: 0.5 scale_factors: 1 }
  image_data_param { source: "a  b" label_type: PIXEL batch_size: 3 }
}
layer {
  name: "c" type: "Convolution" bottom: "data" top: "c" engine: "MKLDNN"
  convolution_param { num_output: 3 kernel_size: 3 hole: 2 engine: MKL2017 }
}
layer {
  name: "n" type: "BN" bottom: "c" top: "n"
  bn_param { scale_filler { type: "constant" value: 1.0 } shift_filler { type: "constant" } }
}
layer { name: "odd" type: "Odd" bottom: "n" top: "l" odd_param { a: "x" 'y', b { c: [-1, 2] } d: -1 }
  loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 128 } }
layer { name: "m" type: "MarginInnerProduct" bottom: "n" bottom: "label" top: "m" margin_inner_product_param {
  num_output: 3 type: QUADRUPLE } }
layer { name: "s" type: "SoftmaxWithLoss" bottom: "m" bottom: "label" }
"""


def without_spaces(text: str) -> list[str]:
    return sorted(text.replace("'", '"').replace(":", ": ").replace("hole", "dilation").split())


def test_fields_of_other_caffes_are_written_as_they_were(tmp_path: Path, run: Any) -> None:
    old, new = net(tmp_path, FORKED), tmp_path / "new.prototxt"
    assert run("upgrade", old, new) == (0, "", "")
    assert without_spaces(new.read_text()) == without_spaces(FORKED)
    assert run("diff", old, new) == (0, "", "")
    other = net(tmp_path, FORKED.replace("odd_param { a", "odd_param { e"), "other.prototxt")
    assert "+ " in run("diff", old, other)[1]


def test_a_deploy_net_has_no_layers_that_train_alone(tmp_path: Path, run: Any) -> None:
    text = FORKED.replace('type: "Odd"', 'type: "OddLoss"')
    status, out, err = run("show", net(tmp_path, text), "--shape", "data=1x2x9x9")
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:-1]] == [
        ["pairs", "Input"], ["c", "Convolution"], ["n", "BN"],
    ]  # fmt: skip
    assert "1 x 3 x 5 x 5" in out
    deploy = run("deploy", net(tmp_path, text), "--shape", "data=1x2x9x9")[1]
    assert "bn_mode: LEARN" in deploy  # else it would be PSPNet's
    assert "MKLDNN" in deploy


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ('type: "Odd" odd_param { x: 1 }', "has the type 'Odd', which is not known"),
        ('type: "Correlation" correlation_param { pad: 1 }', "has the type 'Correlation': it is no layer of BVLC's"),
        ('type: "SpatialDropout"', "(SpatialDropout) zeroes whole channels in training: use Dropout"),
        ('type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 hole_h: 2 hole_w: 2 }',
         "(Convolution) has hole_h: it is no field of BVLC's Caffe, but of DeepLab's Caffe: take it out"),
        ('type: "BN" bn_param { decay: 0.05 }', "(BN) has decay: it is no field"),
    ],
)  # fmt: skip
def test_what_another_caffe_alone_computes_is_refused_when_it_is_computed(
    tmp_path: Path, run: Any, layer: str, told: str
) -> None:
    file = net(
        tmp_path,
        f'input: "d" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 3 '
        f'layer {{ name: "l" bottom: "d" top: "t" {layer} }}',
    )
    assert run("upgrade", file)[0] == 0
    status, out, err = run("show", file)
    assert (status, out) == (2, "")
    assert told in err
    assert "layer 'l' " in err


@pytest.mark.parametrize("text", ["layer { foo [1] }", "foo", "layer { type: 'X' odd_param { a: 1"])
def test_what_is_no_field_is_not_left_out(tmp_path: Path, text: str) -> None:
    with pytest.raises(SolverError, match="line 1"):
        read_net(net(tmp_path, text), [])


def test_an_old_net_of_another_caffe_is_upgraded(tmp_path: Path, run: Any) -> None:
    text = """layers { name: "d" type: IMAGE_SEG_DATA top: "d" image_data_param { label_type: PIXEL } }
    layers { name: "f" type: CONVOLUTION strict_dim: false convolution_param { hole: 4 } }
    layers { name: "b" type: BN bn_param { bn_mode: INFERENCE } }
    layers { name: "a" type: SEG_ACCURACY seg_accuracy_param { ignore_label: 255 } }"""
    read = read_net(net(tmp_path, text))
    assert [one.type for one in read.layer] == ["ImageSegData", "Convolution", "BN", "SegAccuracy"]
    assert read.layer[2].bn_param.bn_mode == read.layer[2].bn_param.INFERENCE
    assert list(read.layer[1].convolution_param.dilation) == [4]
    out = run("upgrade", net(tmp_path, text))[1]
    assert [
        one in out for one in ("label_type: PIXEL", "strict_dim: false", "ignore_label: 255")
    ] == [True] * 3
    with pytest.raises(SolverError, match="'SEG_ACURACY' is not one of"):
        read_net(net(tmp_path, text.replace("SEG_ACC", "SEG_AC")))


def test_a_field_that_another_caffe_has_several_times_is_kept(tmp_path: Path, run: Any) -> None:
    sizes = " ".join(f"resize_param {{ height: {size} }}" for size in (3, 4, 5))
    out = run("upgrade", net(tmp_path, f"layer {{ transform_param {{ {sizes} }} }}"))[1]
    assert [f"height: {size}" in out for size in (3, 4, 5)] == [True] * 3
    status, _, err = run("upgrade", net(tmp_path, 'layer { name: "a" name: "b" }'))
    assert (status, "should not have multiple" in err) == (2, True)
