"""`speedo test --int8`: a net is scored in 8 bits with both kinds of weights, and mistakes are one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.engines.caffe_import import load_caffe
from speedo.run_dir.directory import MODEL
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = [pytest.mark.caffe, pytest.mark.usefixtures("forked_python")]

LENET = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "norm1" type: "LRN" bottom: "conv1" top: "norm1" }
layer { name: "pool1" type: "Pooling" bottom: "norm1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1"
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "ip1" top: "top" }
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `solver.prototxt` and `run`, in which a small net was trained until it knows its classes."""
    folder = tmp_path_factory.mktemp("int8")
    write_data(folder, train=256, test=200)
    text = net_text(LENET, train=f"{folder}/train", test=f"{folder}/test", batch=16)
    solver = write_solver(folder, text, max_iter=60, test_iter=10, test_interval=60)
    train_here(solver, MemoryStore(), folder / "run", workers=1, mode="sync")
    return folder


def speedo_test(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["test", *map(str, words)])


def scored(home: Path, *words: str | Path) -> dict[str, Any]:
    done = speedo_test(home / "solver.prototxt", "--weights", home / "run", "--json", *words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_int8_scores_beside_the_model_and_says_what_it_costs(home: Path) -> None:
    found = scored(home, "--int8", "--int8-batches", "3")
    exact, int8 = found["metrics"], found["int8"]
    assert exact["accuracy"] > 0.9
    for kind in ("per_tensor", "per_channel"):
        metrics = int8[kind]["metrics"]
        assert metrics["accuracy"] == pytest.approx(exact["accuracy"], abs=0.03)
        assert metrics["loss"] == pytest.approx(exact["loss"], abs=0.1)
        assert metrics["loss"] != exact["loss"]
    assert [(one["name"], one["type"]) for one in int8["layers"]] == [
        ("conv1", "Convolution"), ("ip1", "InnerProduct"), ("ip", "InnerProduct"),
    ]  # fmt: skip
    assert all(15 < value < 70 for one in int8["layers"] for value in one["decibels"].values())
    assert [one["name"] for one in int8["in_float"]] == ["norm1", "accuracy", "loss"]
    assert int8["calibration_records"] == 3 * 20
    plain = scored(home)
    assert plain["metrics"] == exact
    assert "int8" not in plain


@pytest.mark.torch
def test_each_engine_and_any_number_of_workers_give_the_same_figures_in_int8(home: Path) -> None:
    one = scored(home, "--int8", "--engine", "caffe", "--workers", "1")["int8"]
    other = scored(home, "--int8", "--engine", "torch", "--workers", "3")["int8"]
    for kind in ("per_tensor", "per_channel"):
        assert other[kind]["metrics"] == pytest.approx(one[kind]["metrics"], rel=1e-3)


def test_an_outlier_in_the_weights_of_one_channel_is_shown_with_its_layer(
    home: Path, tmp_path: Path
) -> None:
    """Its channel is 0 behind the ReLU, so only the weights have it; with one scale most others become 0."""
    caffe = load_caffe()
    net = caffe.proto.caffe_pb2.NetParameter.FromString((home / "run" / MODEL).read_bytes())
    (conv,) = (layer for layer in net.layer if layer.name == "conv1")
    weight = np.array(conv.blobs[0].data, np.float32).reshape(8, 9)
    weight[2] = -3000
    conv.blobs[0].data[:] = weight.ravel()
    spoilt = tmp_path / "spoilt.caffemodel"
    spoilt.write_bytes(net.SerializeToString())
    done = speedo_test(home / "solver.prototxt", "--weights", spoilt, "--int8", "--workers", "1")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert " ".join(lines[1].split()) == "float int8 per tensor change int8 per channel change"
    name, exact, per_tensor, _, per_channel, _ = lines[2].split()
    assert name == "accuracy"
    assert float(exact) > 0.6
    assert float(per_channel) == pytest.approx(float(exact), abs=0.05)
    assert float(per_tensor) < float(exact) - 0.2
    (worst,) = (lines[at + 2] for at, line in enumerate(lines) if line.startswith("lost most"))
    assert worst.split()[:2] == ["conv1", "Convolution"]
    assert "in float: norm1 (LRN), accuracy (Accuracy), loss (SoftmaxWithLoss)" in lines
    assert lines[-1] == "ranges: from 200 training records"


def test_mistakes_are_one_sentence(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, run = home / "solver.prototxt", home / "run"
    text = (home / "net.prototxt").read_text()
    cases: dict[str, tuple[str, str]] = {
        "no-training": (text[: text.index("layer {")] + text[text.index("layer {", text.index("layer {") + 1) :],
                        "has no data layer for training, whose records give int8 its ranges"),
        "no-weights": (text[: text.index('layer { name: "conv1"')]
                       + 'layer { name: "loss" type: "EuclideanLoss" bottom: "data" bottom: "data" top: "loss" }',
                       "finds no Convolution, Deconvolution or InnerProduct"),
        "another-crop": (text.replace("scale: 0.00390625", "scale: 0.00390625 crop_size: 6", 1),
                         "int8 takes its ranges from training records, so give both the same crop_size"),
        "another-net": (text.replace("num_output: 20", "num_output: 21"),
                        "blob 0 of layer 'ip1' is 21 x 72 in this net"),
    }  # fmt: skip
    for name, (net, words) in cases.items():
        path = tmp_path / f"{name}.prototxt"
        path.write_text(net)
        given = (path, "--weights", run / MODEL, "--iterations", "2", "--int8")
        done = speedo_test(*given)
        assert done.exit_code in (1, 2), (name, done.output)
        assert words in done.stderr, (name, done.stderr)
        assert "Traceback" not in done.output
    for words_given, said in {
        ("--int8-batches", "3"): "give --int8, too",
        ("--int8-ranges", "minmax"): "give --int8, too",
        ("--int8", "--snapshots"): "--int8 quantises one model",
    }.items():
        done = speedo_test(solver, "--weights", run, *words_given)
        assert done.exit_code == 2, done.output
        assert said in done.stderr
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = speedo_test(solver, "--weights", run, "--int8")
    assert done.exit_code == 2, done.output
    assert "--int8 needs the Python package onnxruntime: pip install 'speedo[onnx]'" in done.stderr
