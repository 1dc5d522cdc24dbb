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
    ],
    ids=["typo", "solver", "cut", "unknown", "mixed"],
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
