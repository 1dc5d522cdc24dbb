"""What layers take is what papers and Caffe say of it, and no net is computed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caffenets.costs import LayerCost, costs_of
from caffenets.errors import EngineError, SolverError
from caffenets.nets import read_deploy

BUNDLED = Path(__file__).resolve().parents[3] / "prototxt"


# CaffeNet and GoogLeNet: as Caffe counts their parameters; the multiply-adds of the papers' tables (0.72 G; 1.58 G).
@pytest.mark.parametrize(
    ("name", "shape", "layers", "parameters", "multiply_adds"),
    [
        ("lenet", (1, 1, 28, 28), 9, 431_080, 2_293_000),
        ("cifar10_quick", (1, 3, 32, 32), 13, 145_578, 12_354_176),
        ("alexnet", (1, 3, 227, 227), 24, 60_965_224, 724_406_816),
        ("googlenet", (1, 3, 224, 224), 143, 6_998_552, 1_582_671_872),
    ],
)
def test_nets_take_what_is_published(
    name: str, shape: tuple[int, ...], layers: int, parameters: int, multiply_adds: int
) -> None:
    deploy = read_deploy(BUNDLED / name / "train_test.prototxt", {"data": shape})
    found = costs_of(deploy.net)
    assert len(found) == layers
    assert sum(one.parameters for one in found) == parameters
    assert sum(one.multiply_adds for one in found) == multiply_adds


@pytest.mark.processes
def test_a_net_is_shown_without_pytorch_onnx_and_h5py() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'onnx', 'onnxruntime', 'h5py', 'yaml')))\n"
        "from caffenets.command import main\n"
        f"main(['show', {str(BUNDLED / 'lenet' / 'train_test.prototxt')!r}, '--shape', 'data=64x1x28x28'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1].startswith("9 layers, 431,080 parameters"), done.stderr


def net(folder: Path, layers: str) -> Path:
    file = folder / "net.prototxt"
    data = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 4 dim: 5 dim: 6 } } }'
    file.write_text(f"{data}\n{layers}")
    return file


def costs(folder: Path, layers: str) -> list[LayerCost]:
    return costs_of(read_deploy(net(folder, layers)).net)[1:]


def conv(name: str, kind: str = "Convolution", more: str = "", shared: str = "") -> str:
    named = f'param {{ name: "{shared}" }}' if shared else ""
    return (
        f'layer {{ name: "{name}" type: "{kind}" bottom: "data" top: "{name}" {named} '
        f"convolution_param {{ num_output: 8 kernel_size: 3 bias_term: false {more} }} }}\n"
    )


@pytest.mark.parametrize(
    ("layer", "top", "parameters", "multiply_adds"),
    [
        (conv("a"), (2, 8, 3, 4), 8 * 4 * 9, 2 * 12 * 8 * 4 * 9),
        (conv("a", more="group: 2"), (2, 8, 3, 4), 8 * 2 * 9, 2 * 12 * 8 * 2 * 9),
        (conv("a", "Deconvolution"), (2, 8, 7, 8), 8 * 4 * 9, 2 * 30 * 8 * 4 * 9),
    ],
    ids=["convolution", "in groups", "deconvolution"],
)
def test_a_weight_works_at_each_place(
    tmp_path: Path, layer: str, top: tuple[int, ...], parameters: int, multiply_adds: int
) -> None:
    (one,) = costs(tmp_path, layer)
    assert (one.tops, one.parameters, one.multiply_adds) == ((top,), parameters, multiply_adds)


def test_shared_parameters_count_once_and_layers_in_place_make_nothing(tmp_path: Path) -> None:
    relu = 'layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }\n'
    first, second, third = costs(tmp_path, conv("a", shared="w") + relu + conv("b", shared="w"))
    assert (first.parameters, third.parameters) == (288, 0)
    assert first.multiply_adds == third.multiply_adds
    assert (first.made_bytes, second.made_bytes) == (4 * 2 * 8 * 12, 0)


def test_recurrent_layers_work_at_each_step(tmp_path: Path) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text(
        'layer { name: "in" type: "Input" top: "x" top: "cont" '
        "input_param { shape { dim: 5 dim: 2 dim: 3 } shape { dim: 5 dim: 2 } } }\n"
        'layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 4 } }'
    )
    one = costs_of(read_deploy(file).net)[1]
    assert one.multiply_adds == 5 * 2 * (16 * 3 + 16 * 4)


def test_what_is_wrong_names_the_layer_or_the_option(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="layer 'a' has the type 'Nothing', which is not known"):
        costs(tmp_path, 'layer { name: "a" type: "Nothing" bottom: "data" top: "a" }')
    with pytest.raises(SolverError, match=r"give --shape data=1x3x227x227 with its sizes"):
        read_deploy(BUNDLED / "lenet" / "train_test.prototxt")
    with pytest.raises(SolverError, match="--shape names 'x', but the net's inputs are 'data'"):
        read_deploy(net(tmp_path, conv("a")), {"x": (1,)})


def test_the_command_shows_a_table_and_writes_the_deploy_net(tmp_path: Path, run: Any) -> None:
    lenet, out = BUNDLED / "lenet" / "train_test.prototxt", tmp_path / "deploy.prototxt"
    assert run("deploy", lenet, out, "--shape", "data=1x1x28x28") == (0, "", "")
    status, said, err = run("show", out)
    lines = said.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].split() == ["layer", "type", "makes", "parameters", "multiply-adds"]
    assert lines[2].split() == [
        *["conv1", "Convolution", "1", "x", "20", "x", "24", "x", "24", "520", "288,000"]
    ]
    assert lines[-1] == (
        "9 layers, 431,080 parameters, 2,293,000 multiply-adds; float32: 1.7 MB of parameters, "
        "0.1 MB of what layers make"
    )
    status, said, _ = run("show", "--json", out)
    rows = [json.loads(line) for line in said.splitlines()]
    assert rows[1]["multiply_adds"] == 288_000
    assert run("show", lenet)[0] == 2
    assert run("show", lenet, "--shape", "data=big")[0] == 2
