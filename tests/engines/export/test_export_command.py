"""`speedo export` and `speedo import` as typed: what is written, that it comes back, and twenty broken inputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from caffenets.export.differences import difference
from caffenets.weight_files.caffemodel import read_model
from speedo.cli.main import main
from speedo.data.wire import mean_to_bytes
from speedo.engines.caffe_import import load_caffe
from tests.engines.export.in_process import fill, in_onnx_runtime
from tests.support.nets import BATCH_NORM, LENET, net_text, write_solver

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


def speedo(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def save_model(folder: Path, net: str = "net.prototxt") -> Any:
    """Random weights of this net in `model.caffemodel`; the net in pycaffe, in the state for tests."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    made = caffe.Net(str(folder / net), caffe.TEST)
    rng = np.random.default_rng(1)
    kinds = {"bn": "BatchNorm"}
    for name, blobs in made.params.items():
        fill(blobs, kinds.get(name, ""), rng)
    made.save(str(folder / "model.caffemodel"))
    return made


@pytest.fixture
def desk(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with databases, `solver.prototxt`, `net.prototxt` and `model.caffemodel`; commands work there."""
    monkeypatch.chdir(home)
    write_solver(home, net_text(LENET))
    save_model(home)
    return home


def blobs_of(path: Path) -> dict[str, list[bytes]]:
    return {
        layer.name: [blob.read().tobytes() for blob in layer.blobs if blob is not None]
        for layer in read_model(path).layers
        if layer.blobs
    }


@pytest.mark.parametrize("engine", ["caffe", "torch"])
def test_a_model_goes_out_in_each_form_and_comes_back_to_the_bit(
    engine: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    write_solver(home, net_text(BATCH_NORM))
    theirs = save_model(home)
    outputs = ("--onnx", "n.onnx", "--torch", "n.py", "--deploy", "deploy.prototxt")
    done = speedo(
        "export", "model.caffemodel", "--net", "solver.prototxt", "--engine", engine, *outputs
    )
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == 3
    assert "data (batch, 1, 8, 8) -> prob (batch, 4)" in lines[0]
    for line in lines[:2]:
        assert "parameters" in line
        assert "on random records" in line
        assert "on test records" in line
    assert lines[2].startswith("deploy.prototxt: data")
    for file in ("n.onnx", "n.pt"):
        back = speedo("import", file, "--net", "deploy.prototxt", f"{file}.caffemodel")
        assert back.exit_code == 0, back.output
        assert blobs_of(home / f"{file}.caffemodel") == blobs_of(home / "model.caffemodel")
    assert (home / "n.onnx.caffemodel").read_bytes() == (home / "n.pt.caffemodel").read_bytes()

    program = (
        "import sys, torch, runpy\n"
        "net = runpy.run_path('n.py')['load']()\n"
        "print(tuple(net(torch.zeros(3, 1, 8, 8)).shape), sorted(net.state_dict())[:3])\n"
        "print([name for name in sys.modules if name.startswith(('speedo', 'caffe'))])\n"
    )
    shape, modules = subprocess.check_output(
        [sys.executable, "-c", program], text=True, timeout=100
    ).splitlines()
    assert shape == "(3, 4) ['bn.mean_sum', 'bn.variance_sum', 'bn.weight']"
    assert modules == "[]", "the module needs SpeeDO"

    caffe = load_caffe()
    deployed = caffe.Net("deploy.prototxt", "n.pt.caffemodel", caffe.TEST)
    theirs.forward()
    records = theirs.blobs["data"].data
    deployed.blobs["data"].reshape(*records.shape)
    deployed.blobs["data"].data[...] = records
    found = {"prob": deployed.forward()["prob"].copy()}
    scores = theirs.blobs["ip"].data.astype(np.float64)
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert difference(found, {"prob": expected.astype(np.float32)}, "deploy", "Caffe") < 1e-6
    onnx = in_onnx_runtime((home / "n.onnx").read_bytes(), {"data": records.copy()})
    assert difference(onnx, found, "ONNX", "Caffe") < 1e-5


def test_with_transform_the_files_take_records_as_they_are(desk: Path) -> None:
    text = (desk / "net.prototxt").read_text()
    (desk / "net.prototxt").write_text(
        text.replace("transform_param { scale: 0.00390625 }",
                     'transform_param { scale: 0.00390625 crop_size: 6 mean_file: "mean.binaryproto" }')
        .replace("num_output: 20", "num_output: 10")
    )  # fmt: skip
    mean = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
    (desk / "mean.binaryproto").write_bytes(mean_to_bytes(mean))
    theirs = save_model(desk)
    given = ("export", "model.caffemodel", "--net", "net.prototxt", "--onnx", "n.onnx")
    done = speedo(*given, "--torch", "n.py", "--transform")
    assert done.exit_code == 0, done.output
    assert done.output.count("on test records") == 2
    theirs.forward()
    records = np.round(theirs.blobs["data"].data / 0.00390625 + mean[:, 1:7, 1:7])
    found = in_onnx_runtime((desk / "n.onnx").read_bytes(), {"data": records.astype(np.float32)})
    scores = np.exp(theirs.blobs["ip"].data.astype(np.float64))
    expected = {"prob": (scores / scores.sum(1, keepdims=True)).astype(np.float32)}
    assert difference(found, expected, "ONNX", "Caffe") < 1e-5


def test_a_run_stands_for_its_model_and_its_net(desk: Path) -> None:
    run = desk / "runs" / "one"
    run.mkdir(parents=True)
    (desk / "model.caffemodel").rename(run / "model.caffemodel")
    (run / "metrics.jsonl").touch()
    (run / "config.yaml").write_text(f"solver: {desk / 'solver.prototxt'}\nengine: torch\n")
    done = speedo("export", run, "--onnx", "n.onnx")
    assert done.exit_code == 0, done.output
    assert "differs from PyTorch by at most" in done.output
    moved = desk / "moved.caffemodel"
    (run / "model.caffemodel").rename(moved)
    given = ("--run", run, "--engine", "caffe", "--deploy", "d.prototxt")
    assert speedo("export", moved, *given).exit_code == 0
    assert (desk / "d.prototxt").is_file()


def test_a_deploy_net_needs_no_model_and_no_records(desk: Path) -> None:
    (desk / "test").unlink()
    (desk / "train").unlink()
    given = ("export", "--net", "net.prototxt", "--deploy", "d.prototxt")
    assert "give --data-root, or --shape data=" in speedo(*given).output
    done = speedo(*given, "--shape", "data=5x1x8x8")
    assert done.exit_code == 0, done.output
    assert done.output == "d.prototxt: data (batch, 1, 8, 8) -> prob (batch, 4)\n"


def test_what_grows_with_the_boxes_that_are_found_is_no_batch(desk: Path) -> None:
    boxes = "".join(
        f'input: "{name}" input_shape {{ dim: {shape[0]} dim: {shape[1]} dim: {shape[2]} }}\n'
        for name, shape in {"loc": (2, 240, 1), "conf": (2, 120, 1), "prior": (1, 2, 240)}.items()
    )
    layer = """layer { name: "out" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "out"
      detection_output_param { num_classes: 2 nms_param { nms_threshold: 0.45 top_k: 20 } keep_top_k: 10 } }"""
    (desk / "boxes.prototxt").write_text(boxes + layer)
    done = speedo(
        "export", "--net", "boxes.prototxt", "--engine", "torch", "--deploy", "d.prototxt"
    )
    assert done.exit_code == 0, done.output
    assert "-> out (1, 1, found, 7)" in done.output


def test_a_field_that_no_caffe_has_is_left_out_if_asked(desk: Path) -> None:
    net = (desk / "net.prototxt").read_text()
    (desk / "net.prototxt").write_text(net + 'engine_of_ours: "fast"\n')
    given = ("export", "--net", "net.prototxt", "--deploy", "d.prototxt")
    assert "engine_of_ours" in speedo(*given).output
    assert not (desk / "d.prototxt").exists()
    done = speedo(*given, "--ignore-unknown")
    assert done.exit_code == 0, done.output
    assert "engine_of_ours" in done.output
    assert "engine_of_ours" not in (desk / "d.prototxt").read_text()


OLD = 'name: "old" input: "data" input_dim: 3 input_dim: 1 input_dim: 8 input_dim: 8\n'
SECOND = """
layers { name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 1
  convolution_param { num_output: 8 kernel_size: 3 } }
layers { name: "prob" type: SOFTMAX bottom: "conv1" top: "prob" }
"""
FIRST = """
layers { layer { name: "conv1" type: "conv" num_output: 8 kernelsize: 3 blobs_lr: 1 } bottom: "data" top: "conv1" }
layers { layer { name: "prob" type: "softmax" } bottom: "conv1" top: "prob" }
"""


def test_nets_and_models_of_each_former_format_and_in_hdf5_are_the_same_net(desk: Path) -> None:
    (desk / "first.prototxt").write_text(OLD + FIRST)
    (desk / "second.prototxt").write_text(OLD + SECOND)
    held = blobs_of(desk / "model.caffemodel")["conv1"]
    first: Any = load_caffe().proto.caffe_pb2.NetParameter()
    layer = first.layers.add().layer
    layer.name, layer.type, layer.num_output, layer.kernelsize = "conv1", "conv", 8, 3
    for values, sizes in zip(held, ((8, 1, 3, 3), (1, 1, 1, 8)), strict=True):
        blob = layer.blobs.add()
        blob.num, blob.channels, blob.height, blob.width = sizes
        blob.data.extend(np.frombuffer(values, np.float32))
    (desk / "first.caffemodel").write_bytes(first.SerializeToString())

    done = speedo("export", "first.caffemodel", "--net", "first.prototxt", "--onnx", "first.onnx")
    assert done.exit_code == 0, done.output
    assert (
        "first.onnx: 80 parameters, data (batch, 1, 8, 8) -> prob (batch, 8, 6, 6)" in done.output
    )
    done = speedo("import", "first.onnx", "--net", "second.prototxt", "back.caffemodel.h5")
    assert done.exit_code == 0, done.output
    assert blobs_of(desk / "back.caffemodel.h5")["conv1"] == held
    done = speedo("export", "back.caffemodel.h5", "--net", "second.prototxt", "--onnx", "n.onnx")
    assert done.exit_code == 0, done.output
    assert (desk / "n.onnx").read_bytes() == (desk / "first.onnx").read_bytes()

    # An identifier of Python is the same for both names.
    (desk / "slash.prototxt").write_text(OLD + SECOND.replace('name: "conv1"', 'name: "conv1/"'))
    done = speedo("import", "first.onnx", "--net", "slash.prototxt", "new.caffemodel.h5")
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "does not find layer 'conv1/' in HDF5, because of the slash in its name" in done.output
    assert not (desk / "new.caffemodel.h5").exists()


def test_a_net_whose_batch_is_fixed_is_exported_with_it_and_says_why(desk: Path) -> None:
    text = (desk / "net.prototxt").read_text()
    fixed = (
        'layer { name: "rows" type: "Reshape" bottom: "top" top: "rows" '
        "reshape_param { shape { dim: 20 dim: 20 } } }"
    )
    (desk / "net.prototxt").write_text(
        text.replace('layer { name: "ip" type: "InnerProduct" bottom: "top"',
                     f'{fixed} layer {{ name: "ip" type: "InnerProduct" bottom: "rows"')
    )  # fmt: skip
    done = speedo("export", "model.caffemodel", "--net", "net.prototxt", "--onnx", "n.onnx")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("the batch is 20 and not free: ")
    assert "data (20, 1, 8, 8) -> prob (20, 4)" in done.output


def cut(desk: Path) -> None:
    model = desk / "model.caffemodel"
    model.write_bytes(model.read_bytes()[:-100])


def not_one(desk: Path) -> None:
    (desk / "model.caffemodel").write_bytes(b"no model" * 50)


def empty(desk: Path) -> None:
    (desk / "model.caffemodel").write_bytes(b"")


def of_another_net(desk: Path) -> None:
    text = (desk / "net.prototxt").read_text()
    (desk / "net.prototxt").write_text(text.replace("num_output: 20", "num_output: 21"))


def renamed(desk: Path) -> None:
    text = (desk / "net.prototxt").read_text()
    (desk / "net.prototxt").write_text(text.replace('name: "ip1"', 'name: "ip9"'))


def with_nan(desk: Path) -> None:
    caffe = load_caffe()
    made = caffe.Net("net.prototxt", "model.caffemodel", caffe.TEST)
    made.params["ip"][0].data[0, 0] = np.nan
    made.save("model.caffemodel")


def changed(before: str, after: str) -> Any:
    def change(desk: Path) -> None:
        text = (desk / "net.prototxt").read_text()
        assert before in text
        (desk / "net.prototxt").write_text(text.replace(before, after))

    return change


def without_layers(desk: Path) -> None:
    (desk / "net.prototxt").write_text('name: "nothing"\n')


def without_input(desk: Path) -> None:
    text = (desk / "net.prototxt").read_text()
    begin = text.index('layer { name: "conv1"')
    (desk / "net.prototxt").write_text(text[begin:])


def nothing(desk: Path) -> None: ...


COLUMNS = 'layer { name: "cols" type: "Im2col" bottom: "conv1" top: "cols" convolution_param { kernel_size: 2 } }'
EXPORT = "export model.caffemodel --net net.prototxt --onnx made.out"
BROKEN: dict[str, tuple[Any, str, str]] = {
    "truncated": (cut, EXPORT, "model.caffemodel is not a .caffemodel, or a truncated one ("),
    "no-model": (not_one, EXPORT, "model.caffemodel is not a .caffemodel, or a truncated one"),
    "empty-model": (empty, EXPORT, "model.caffemodel is empty: give another file"),
    "another-net": (of_another_net, EXPORT, "blob 0 of layer 'ip1' is 21 x 72 in this net, but 20 x 72"),
    "another-name": (renamed, EXPORT, "has no values for blob 0 of layer 'ip9': give those of this net"),
    "nan": (with_nan, EXPORT, "values of blob 0 of layer 'ip' are NaN or infinite"),
    "unknown-layer": (changed('"ReLU"', '"Relu6"'), EXPORT,
                      "net.prototxt, line 17: layer 'relu1' has the unknown type 'Relu6'"),
    "unknown-field": (changed("stride: 2", "strid: 2"), EXPORT, "did you mean 'stride'?"),
    "unknown-bottom": (changed('bottom: "pool1"', 'bottom: "pool2"'), EXPORT,
                       "layer 'ip1' reads 'pool2', which no earlier layer makes; did you mean 'pool1'?"),
    "no-layers": (without_layers, EXPORT, "net.prototxt"),
    "no-input": (without_input, EXPORT, "has no input"),
    "no-equal": (changed('layer { name: "accuracy"', f'{COLUMNS}\nlayer {{ name: "accuracy"'), EXPORT,
                 ": layer 'cols' (Im2col) has no equal in ONNX"),
    "too-large-kernel": (changed("kernel_size: 3", "kernel_size: 30"), EXPORT, "net.prototxt"),
    "no-net": (nothing, "export model.caffemodel --net nowhere.prototxt --onnx made.out",
               "nowhere.prototxt: there is no such file: give the prototxt"),
    "no-net-given": (nothing, "export model.caffemodel --onnx made.out", "give --net, or the run"),
    "no-file": (nothing, "export nowhere.caffemodel --net net.prototxt --onnx made.out",
                "nowhere.caffemodel: there is no such file: name a .caffemodel or a run"),
    "nothing-wanted": (nothing, "export model.caffemodel --net net.prototxt", "give --onnx, --torch or --deploy"),
    "module-name": (nothing, "export model.caffemodel --net net.prototxt --torch made.out", "ends in .py"),
    "no-folder": (nothing, "export model.caffemodel --net net.prototxt --onnx no/made.out",
                  "there is no folder no: make it first"),
    "bad-shape": (nothing, f"{EXPORT} --shape data=1xtwo", "'data=1xtwo' is no shape"),
    "shape-of-another": (nothing, f"{EXPORT} --shape dat=1x1x8x8", "'dat', but the net's inputs are 'data'"),
    "no-onnx-file": (nothing, "import model.caffemodel --net net.prototxt made.out",
                     "is no state dict that can be read without running code"),
    "not-exported": (nothing, "import nowhere.onnx --net net.prototxt made.out", "nowhere.onnx cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_input_is_one_sentence_and_leaves_no_file(name: str, desk: Path) -> None:
    spoil, command, said = BROKEN[name]
    spoil(desk)
    before = sorted(path.name for path in desk.iterdir())
    done = speedo(*command.split())
    assert done.exit_code in (1, 2), done.output
    assert said in done.output, done.output
    assert len(done.output.splitlines()) == 1, done.output
    assert "Traceback" not in done.output
    assert sorted(path.name for path in desk.iterdir()) == before


def test_an_onnx_file_of_another_net_is_refused(desk: Path) -> None:
    assert speedo(*EXPORT.split()[:-1], "made.onnx").exit_code == 0
    renamed(desk)
    done = speedo("import", "made.onnx", "--net", "net.prototxt", "back.caffemodel")
    assert done.exit_code == 2
    assert "has no 'ip9.weight', which layer 'ip9' needs" in done.output
    assert not (desk / "back.caffemodel").exists()
