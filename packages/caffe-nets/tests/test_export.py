"""A net with its weights goes out as ONNX and as plain PyTorch, and comes back as other programs read it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffenets.export.differences import TooFarError
from caffenets.nets import read_deploy
from caffenets.prototxt.text import to_text
from caffenets.weight_files.caffemodel import write_model
from caffenets.weights import read_weights

pytestmark = pytest.mark.torch
BUNDLED = Path(__file__).resolve().parents[3] / "prototxt"


def trained(folder: Path, name: str, shape: tuple[int, ...]) -> tuple[Path, Path]:
    """A bundled net's deploy net and random weights for it."""
    from caffenets.pytorch.module import CaffeModule

    deploy = read_deploy(BUNDLED / name / "train_test.prototxt", {"data": shape})
    net, weights = folder / f"{name}.prototxt", folder / f"{name}.caffemodel"
    net.write_text(to_text(deploy.net))
    rng, layers = np.random.default_rng(1), []
    for wired in CaffeModule(deploy).graph.wired:
        blobs = [rng.standard_normal(tuple(one.shape), np.float32) for one in wired.layer.blobs]
        layers.append((wired.layer.param, [one / np.sqrt(max(1, one[0].size)) for one in blobs]))
    with weights.open("wb") as out:
        write_model(out, name, layers)
    return net, weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet", (1, 1, 28, 28)),
        pytest.param("googlenet", (1, 3, 224, 224), marks=pytest.mark.matrix),
    ],
)
def test_a_net_goes_out_in_each_form_with_any_batch(
    tmp_path: Path, run: Any, name: str, shape: tuple[int, ...]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    net, weights = trained(tmp_path, name, shape)
    files = [tmp_path / f"out.{end}" for end in ("onnx", "py", "prototxt")]
    words = zip(("--onnx", "--torch", "--deploy"), files, strict=True)
    status, out, err = run("export", net, weights, *(word for pair in words for word in pair))
    assert (status, err) == (0, "")
    apart = [float(one) for one in re.findall(r"by at most (\S+) on random records", out)]
    assert len(apart) == 2
    assert max(apart) <= 1e-5
    session = runtime.InferenceSession(str(files[0]), providers=["CPUExecutionProvider"])
    (prob,) = session.run(None, {"data": np.ones((3, *shape[1:]), np.float32)})
    assert prob.shape[0] == 3
    own = read_weights(weights)
    assert sum(one.size for one in read_weights(files[1].with_suffix(".pt")).values()) == sum(
        one.size for one in own.values()
    )


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path, run: Any) -> None:
    net, weights = trained(tmp_path, "lenet", (1, 1, 28, 28))
    out = tmp_path / "net.onnx"
    status, _, err = run("export", net, "--onnx", out)
    assert (status, "a model is needed for --onnx and --torch" in err) == (2, True)
    assert run("export", net, weights)[0] == 2
    weights.write_bytes(weights.read_bytes()[:5000])
    status, _, err = run("export", net, weights, "--onnx", out)
    assert (status, err.count("\n")) == (2, 1)
    assert not out.exists()


@pytest.mark.slow
def test_the_files_do_what_the_data_layer_does_to_its_records(tmp_path: Path, run: Any) -> None:
    pytest.importorskip("onnxruntime")
    _, weights = trained(tmp_path, "lenet", (1, 1, 28, 28))
    net, out = tmp_path / "train_test.prototxt", tmp_path / "out.onnx"
    net.write_text((BUNDLED / "lenet" / "train_test.prototxt").read_text())
    words = ("export", net, weights, "--onnx", out, "--shape", "data=1x1x28x28")
    assert run(*words)[0] == 0
    plain = read_onnx(out)
    assert run(*words, "--transform")[0] == 0
    records = np.random.default_rng(2).integers(0, 256, (3, 1, 28, 28)).astype(np.float32)
    one, other = plain(records / 256), read_onnx(out)(records)
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()


def read_onnx(file: Path) -> Any:
    """What the file computes of an array."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda records: session.run(None, {session.get_inputs()[0].name: records})[0]


@pytest.mark.slow
def test_a_file_may_be_as_far_apart_as_rounding_moves_the_net_itself(tmp_path: Path) -> None:
    """As where maxima that are all but equal are unpooled; else it is refused."""
    pytest.importorskip("onnxruntime")
    from caffenets.export.exporting import Wanted, exported
    from caffenets.pytorch.trials import TrialsHere

    class Shaky(TrialsHere):
        def __init__(self, own: float) -> None:
            self.own, self.rounds = own, 0

        def engine(self, nets: Any, weights: Any) -> Any:
            made = super().engine(nets, weights)
            self.rounds += 1
            if self.rounds > 1:  # the net on its inputs, rounded otherwise
                made[0] = replace(made[0], outputs=moved(made[0].outputs, self.own))
            return made

        def onnx(self, file: Path, inputs: Any) -> Any:
            return [moved(one, 0.02) for one in super().onnx(file, inputs)]

    def moved(outputs: Any, far: float) -> Any:
        return {name: one + far * np.abs(one).max() for name, one in outputs.items()}

    net, weights = trained(tmp_path, "lenet", (1, 1, 28, 28))
    out = tmp_path / "out.onnx"

    def export(own: float) -> list[str]:
        scratch = tmp_path / f"scratch-{own}"
        scratch.mkdir()
        return [*exported(read_deploy(net), weights, Wanted(out), Shaky(own), "net", scratch)]

    with pytest.raises(TooFarError, match="more than 4e-03"):
        export(0.001)
    assert not out.exists()
    (line,) = export(0.01)
    assert "by at most 2.0e-02 on random records; the net itself changes by 1.0e-02" in line
    assert out.exists()
