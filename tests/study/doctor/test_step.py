"""What the doctor says of the memory of a step: a table, the same in JSON, and what to do where it is too much."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.engines.make import EngineChoice
from speedo.engines.step_memory import LayerMemory, StepMemory
from speedo.study.doctor import NodeRequest
from speedo.study.doctor.base import BuiltNet, ok
from speedo.study.doctor.checks.resources import memory
from speedo.study.doctor.engines import Torch, memory_of
from speedo.study.doctor.step import step_finding
from tests.support.nets import net_text, write_data, write_solver

GB = 1_000_000_000
LAYERS = tuple(LayerMemory(f"layer{n}", "ReLU", values=n * 1_000_000) for n in range(1, 14))
STEP = StepMemory((LayerMemory("data", "Data", workspace=500_000), *LAYERS), 2_000_000, 64)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_python: str) -> Path:
    write_data(tmp_path)
    write_solver(tmp_path, net_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPEEDO_TOKEN_FILE", str(tmp_path / "token"))
    return tmp_path


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "solver.prototxt", "--device", "cpu", *arguments])


def test_ten_layers_are_shown_and_the_others_are_one_line() -> None:
    found = step_finding(STEP)
    assert found.text.splitlines() == [
        "93.5 MB for a batch of 64 records, estimated from the shapes",
        "layer                parameters   values  workspace",
        "layer13 (ReLU)                -  13.0 MB          -",
        "layer12 (ReLU)                -  12.0 MB          -",
        "layer11 (ReLU)                -  11.0 MB          -",
        "layer10 (ReLU)                -  10.0 MB          -",
        "layer9 (ReLU)                 -   9.0 MB          -",
        "layer8 (ReLU)                 -   8.0 MB          -",
        "layer7 (ReLU)                 -   7.0 MB          -",
        "layer6 (ReLU)                 -   6.0 MB          -",
        "layer5 (ReLU)                 -   5.0 MB          -",
        "layer4 (ReLU)                 -   4.0 MB          -",
        "4 other layers                -   6.0 MB   500.0 kB",
        "gradients of values           -   2.0 MB          -",
        "all                           -  93.0 MB   500.0 kB",
    ]
    assert [row["layer"] for row in found.rows] == [
        "data",
        *(one.name for one in LAYERS),
        "gradients of values",
    ]
    assert found.rows[1] == {
        "layer": "layer1", "type": "ReLU", "parameters": 0, "values": 1_000_000, "workspace": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("caffe", "a smaller --batch, or --engine torch,micro_batch=auto, or end what else"),
        ("torch", "use --engine micro_batch=32, or fewer --workers here, or end what else"),
    ],
)
def test_a_step_that_exceeds_the_memory_is_told_with_parts_that_fit(
    engine: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.study.doctor.checks.resources.free_memory", lambda: 20 * GB)
    step = StepMemory((LayerMemory("big", "Convolution", values=20 * GB),), 0, 64)
    request = NodeRequest(workers=1, master="10.0.0.5:1", net=BuiltNet(4000, step, 0, engine))  # type: ignore[arg-type]
    (found,) = memory(request)
    assert found.level == "fail"
    assert says in found.remedy
    for parts, level in (("32", "ok"), ("auto", "ok"), ("64", "fail")):
        net = BuiltNet(4000, step, 0, "torch", parts)
        (found,) = memory(NodeRequest(workers=1, master="10.0.0.5:1", net=net))
        assert found.level == level, parts
    (found,) = memory(
        NodeRequest(workers=4, master="10.0.0.5:1", net=BuiltNet(4000, step, 0, "torch", "auto"))
    )
    assert found.level == "ok"  # with auto they share half of the memory


def test_the_steps_of_workers_on_a_gpu_are_compared_with_its_memory() -> None:
    step = StepMemory((LayerMemory("big", "Convolution", values=20 * GB),), 0, 64)
    net = BuiltNet(4000, step, 0, "torch", devices=(80 * GB, 24 * GB))
    device, host = memory(NodeRequest(workers=4, net=net))
    assert (device.name, device.level) == ("gpu-memory", "fail")
    assert device.text == "2 workers on each GPU: about 40.0 GB of 24.0 GB"
    assert device.remedy == "use --engine micro_batch=16, or fewer --workers here"
    assert "4 workers with 360.0 MB each" in host.text


@pytest.mark.parametrize(
    ("engine", "device", "found"),
    [("torch", "auto", (80, 24)), ("torch", "cuda:1", (24,)), ("torch", "cpu", ()), ("caffe", "auto", ())],
)  # fmt: skip
def test_only_devices_that_workers_use_count(
    engine: str, device: str, found: tuple[int, ...]
) -> None:
    torch = Torch(ok("torch", "2.13.0"), 2, (80, 24))
    assert memory_of(torch, EngineChoice(engine, device)) == found  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.torch
def test_a_net_that_is_larger_than_any_memory_is_described(home: Path) -> None:
    """Nothing of it is allocated: 8 GB of weights in each of twenty layers, none beyond Caffe's bound of a blob."""
    wide, inputs = 33_000_000, 64
    text = net_text(batch=50) + "".join(
        f'layer {{ name: "wide{at}" type: "InnerProduct" bottom: "data" top: "wide{at}" '
        f"inner_product_param {{ num_output: {wide} }} }}\n"
        for at in range(20)
    )
    write_solver(home, text)
    result = typed("--engine", "torch", "--json")
    assert result.exit_code == 1, result.output
    found = {one["name"]: one for one in json.loads(result.output)["checks"]}
    assert re.match(r"[\d,]+\.\d GB for a batch of 50 records", found["step"]["text"])
    rows = {one["layer"]: one for one in found["step"]["rows"]}
    assert rows["wide7"]["parameters"] == 3 * 4 * (wide * inputs + wide)
    assert found["memory"]["level"] == "fail"


@pytest.mark.caffe
def test_unknown_fields_are_an_error_unless_they_are_left_out(home: Path) -> None:
    write_solver(home, net_text() + 'engine_of_ours: "fast"\n')
    assert "engine_of_ours" in typed().output
    result = typed("--ignore-unknown", "--json")
    assert result.exit_code == 0, result.output
    texts = [one["text"] for one in json.loads(result.output)["checks"] if one["name"] == "solver"]
    assert "left out: " in texts[1]
    assert "engine_of_ours" in texts[1]


@pytest.mark.caffe
def test_parts_are_for_the_engine_that_has_them(home: Path) -> None:
    result = typed("--engine", "caffe", "--engine", "micro_batch=4")
    assert "FAIL  engine" in result.output
    assert "micro_batch is for the engine torch" in result.output
    assert typed("--engine", "micro_batch=none").exit_code == 2
