"""With --ignore-unknown fields that no Caffe here has are left out, and each is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.engines.caffe_schema.caffe_pb2 import NetParameter
from speedo.engines.solver.proto import read_text
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


def test_without_it_the_first_is_an_error_and_another_mistake_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(TEXT)
    with pytest.raises(SolverError, match="line 3: LayerParameter has no field 'strange_param'"):
        read_text(path, NetParameter())
    path.write_text(TEXT.replace("0.5", "none"))
    with pytest.raises(SolverError, match="line 5"):
        read_text(path, NetParameter(), [])
