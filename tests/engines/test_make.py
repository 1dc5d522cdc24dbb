"""Processes import the one engine that they use, and what is known of Caffe's layers without it is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from caffenets.prototxt.text import line_of_layer
from speedo.engines.layer_types import layer_types
from speedo.engines.make import EngineChoice
from speedo.engines.solver import SolverOverrides, check_solver, read_solver
from speedo.errors import SolverError
from tests.support.nets import BATCH_NORM, net_text, write_data, write_solver

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
from speedo.engines.make import EngineChoice, make_engine, prepare_process
from speedo.engines.solver import SolverOverrides, check_solver, read_solver, solver_for_worker
choice = EngineChoice(sys.argv[1], "cpu")
prepare_process(choice)
spec = read_solver(Path(sys.argv[2]), overrides=SolverOverrides(engine=choice.engine))
check_solver(spec, workers=2, split=True)
engine = make_engine(choice, solver_for_worker(spec, rank=0, count=1, batch_size=8), lr_policy=spec.lr_policy)
assert engine.step(1) > 0
print(*sorted({"caffe", "torch"} & sys.modules.keys()), *sorted(engine.shapes()))
"""
PYTHON_LAYER = """
layer { name: "mine" type: "Python" bottom: "data" top: "top"
  python_param { module: "nowhere" layer: "Mine" } }
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("auto", [("cuda:0", 3), ("cuda:1", 2), ("cuda:0", 3), ("cuda:1", 2), ("cuda:0", 3)]),
        ("cuda:1", [("cuda:1", 5)] * 5),
        ("cpu", [("cpu", 5)] * 5),
    ],
)
def test_a_worker_knows_how_many_of_its_host_share_its_device(
    device: str, found: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.engines.pytorch.devices.device_count", lambda: 2)
    choices = [EngineChoice("torch", device).of_worker(number, 5) for number in range(5)]
    assert [(one.device, one.sharing) for one in choices] == found


@pytest.mark.caffe
@pytest.mark.torch
@pytest.mark.parametrize("engine", ["caffe", "torch"])
def test_a_process_imports_its_engine_alone(engine: str, tmp_path: Path) -> None:
    write_data(tmp_path)
    solver = write_solver(tmp_path, net_text(BATCH_NORM))
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, engine, solver],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.stdout.split() == [
        engine, "bn", "conv", "data", "ip", "label", "loss", "top",
    ], child.stderr  # fmt: skip


@pytest.mark.torch
def test_the_layers_that_are_known_without_pytorch_are_those_that_it_has_or_refuses() -> None:
    from caffenets.known_types import refusals
    from caffenets.layers import LAYERS
    from speedo.engines.pytorch.data import SOURCES

    refused = refusals()
    assert sorted({*LAYERS, *SOURCES, *refused}) == sorted(layer_types("torch"))
    assert not {*LAYERS, *SOURCES} & set(refused)


def test_a_layer_without_pytorch_is_refused_with_its_line(tmp_path: Path) -> None:
    """And a misspelled one is found without pycaffe."""
    write_data(tmp_path)
    body = PYTHON_LAYER.replace('top: "top"', 'top: "odd"') + (
        'layer { name: "odd" type: "Sigmoyd" bottom: "odd" top: "top" }\n'
    )
    path = write_solver(tmp_path, net_text(body))
    net = path.with_name("net.prototxt")
    lines = net.read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if '"mine"' in text)
    spec = read_solver(path, overrides=SolverOverrides(engine="torch"))
    with pytest.raises(SolverError) as caught:
        check_solver(spec, workers=2, split=True)
    refused, unknown = caught.value.problems
    assert refused.startswith(f"{net}, line {line}: layer 'mine' (Python) ")
    assert refused.endswith("use --engine caffe")
    assert (
        unknown
        == f"{net}, line 12: layer 'odd' has the unknown type 'Sigmoyd'; did you mean 'Sigmoid'?"
    )


def test_a_solver_for_gpus_is_accepted_with_pytorch(tmp_path: Path) -> None:
    write_data(tmp_path)
    path = write_solver(tmp_path, net_text(), solver_mode="GPU")
    spec = read_solver(path, overrides=SolverOverrides(engine="torch"))
    check_solver(spec, workers=2, split=True)


def test_a_layer_that_a_file_does_not_name_has_no_line(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text("layer {\n  name: 'one' }")
    assert line_of_layer(str(net), "one") == ", line 2"
    assert line_of_layer(str(net), "two") == ""
    assert line_of_layer(f"{net} (on the master)", "one") == ""
