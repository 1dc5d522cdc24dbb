"""With --ignore-unknown fields that no Caffe here has are left out, and each is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caffenets.caffe_schema import caffe_pb2
from caffenets.caffe_schema.caffe_pb2 import NetParameter
from caffenets.host_program import caffe_schema
from caffenets.prototxt.forks import unread
from caffenets.prototxt.text import read_text, to_text
from speedo.engines.solver import read_solver
from speedo.errors import SolverError

TEXT = """# a comment
name: "mixed"
layer { name: "a" type: "ReLU" strange_param { nested { deep: -3 list: [1, 2] } word: MAX } top: "b" }
layer { odd: "one" 'two' ; name: "c"
  relu_param { negative_slope: 0.5, unheard: 1e-3, engine: CAFFE }
  spread: [ 1,
    2 ] top: "d" angle < x: 1 > }
last_one: true
"""


def test_unknown_fields_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(TEXT)
    net, left_out = NetParameter(), list[str]()
    read_text(path, net, left_out)
    assert [(layer.name, layer.top[0]) for layer in net.layer] == [("a", "b"), ("c", "d")]
    assert net.layer[1].relu_param.negative_slope == 0.5
    assert net.layer[1].relu_param.HasField("engine")
    found = [
        (one.partition(": ")[0].rpartition(" ")[2], one.partition("has no field ")[2].split("'")[1])
        for one in left_out
    ]
    assert found == [
        ("3", "strange_param"), ("4", "odd"), ("5", "unheard"), ("6", "spread"), ("7", "angle"), ("8", "last_one"),
    ]  # fmt: skip


@pytest.mark.parametrize("schema", [caffe_pb2, None])
def test_fields_of_bvlcs_under_another_name_are_read_as_those(tmp_path: Path, schema: Any) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        """layer { type: "Pooling" pooling_param { ceil_mode: false stride: 2 } }
        layer { type: "Pooling" pooling_param { ceil_mode : 1 } } # ceil_mode: false
        layers { type: POOLING pooling_param { pad: 1 ceil_mode:False } }
        layer { type: "Convolution" convolution_param { hole: 2 pad: 2 } }"""
    )
    kind = (schema or caffe_schema()).NetParameter
    net, left_out = kind(), list[str]()
    read_text(path, net, left_out)
    assert left_out == []
    modes = net.layer[0].pooling_param.RoundMode
    floor, ceil = (modes.Value(name) for name in ("FLOOR", "CEIL"))
    pools = [net.layer[0].pooling_param, net.layer[1].pooling_param, net.layers[0].pooling_param]
    assert [pool.round_mode for pool in pools] == [floor, ceil, floor]
    assert [pools[0].stride, pools[2].pad] == [2, 1]
    assert list(net.layer[2].convolution_param.dilation) == [2]
    path.write_text('layer { type: "Pooling" pooling_param { ceil_mode: down } }')
    with pytest.raises(SolverError, match="what round_mode says in BVLC's: use that"):
        read_text(path, kind(), [])


@pytest.mark.parametrize(
    "field",
    [
        "loss_param { pre_fixed_normalizer: 8 }", "warp_ctc_param { x: 1 }", "transform_param { crop_width: 9 }",
        "batch_norm_param { scale_bias: true }", "convolution_param { hole_h: 2 hole_w: 2 }",
    ],
)  # fmt: skip
def test_a_field_that_is_known_to_change_the_net_is_never_left_out(
    tmp_path: Path, field: str
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(f'layer {{ name: "a"\n{field} }}')
    net, left_out = NetParameter(), list[str]()
    read_text(path, net, left_out)
    assert left_out == []
    assert to_text(net).split() == f'layer {{ name: "a" {field} }}'.split()
    assert next(unread(net))[1] in field


def test_a_net_in_a_solvers_place_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text('debug_info: true input: "data" input_dim: 1 layer { odd_param { x: 1 } }')
    with pytest.raises(
        SolverError, match=r"is the prototxt of a net: give the solver\.prototxt that"
    ):
        read_solver(path)
    path.write_text('debug_info: true net_param { name: "a" layer { name: "b" } } odd: 1')
    with pytest.raises(SolverError, match="SolverParameter has no field 'odd': take it out"):
        read_solver(path)


def test_without_it_the_first_is_an_error_and_another_mistake_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(TEXT)
    with pytest.raises(SolverError, match="line 3: LayerParameter has no field 'strange_param'"):
        read_text(path, NetParameter())
    path.write_text(TEXT.replace("0.5", "none"))
    with pytest.raises(SolverError, match="line 5"):
        read_text(path, NetParameter(), [])
