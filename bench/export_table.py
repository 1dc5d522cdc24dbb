"""How far exported nets are from pycaffe: BVLC's own, and published ones, each from its train and from its deploy net.

    python -m bench.export_table [--nets lenet resnet50 ...] [--markdown]

With random weights each net goes through `speedo export --onnx --torch`, which compares both files with pycaffe at
batches of 1 and 7, and through `speedo import` of both, which must give the bits of the model. Prints the largest
differences, of the largest value of an output; status 1 if one is above 1e-5, if bits differ or if a command failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.support import table
from bench.support.machine import Clock
from caffenets.deploy import with_batch
from caffenets.weight_files.caffemodel import read_model
from tests.support.archived_nets import archived_nets, parsed
from tests.support.published_nets import (
    Published,
    fcn_8s,
    lrcn,
    mobilenet,
    resnet,
    save_weights,
    squeezenet,
)

CLOSE: Final = 1e-5
_MEASURED: Final = re.compile(
    r"(?P<file>\S+): (?P<count>[\d,]+) parameters, .* at most (?P<worst>\S+) on random"
)


@dataclass(frozen=True, slots=True)
class Texts:
    """A net's prototxts, or nothing for what is not published; `shape` is that of the train net's input."""

    train: str = ""
    deploy: str = ""
    shape: str = ""


def bvlc(train: str, deploy: str, shape: str = "") -> Callable[[], Texts]:
    """A net of the archive of Caffe's source."""
    return lambda: Texts(
        *(archived_nets()[name] if name else "" for name in (train, deploy)), shape
    )


def paper(net: Published, shape: str = "") -> Callable[[], Texts]:
    return lambda: Texts(net.train(), net.deploy(), shape)


_MNIST, _CIFAR = "data=1x1x28x28", "data=1x3x32x32"
NETS: Final[Mapping[str, Callable[[], Texts]]] = {
    "lenet": bvlc("examples/mnist/lenet_train_test.prototxt", "examples/mnist/lenet.prototxt", _MNIST),
    "autoencoder": bvlc("examples/mnist/mnist_autoencoder.prototxt", "", _MNIST),
    "siamese": bvlc(
        "examples/siamese/mnist_siamese_train_test.prototxt", "examples/siamese/mnist_siamese.prototxt",
        "pair_data=1x2x28x28",
    ),
    "cifar10_quick": bvlc(
        "examples/cifar10/cifar10_quick_train_test.prototxt", "examples/cifar10/cifar10_quick.prototxt", _CIFAR
    ),
    "cifar10_full": bvlc(
        "examples/cifar10/cifar10_full_train_test.prototxt", "examples/cifar10/cifar10_full.prototxt", _CIFAR
    ),
    "cifar10_full_bn": bvlc("examples/cifar10/cifar10_full_sigmoid_train_test_bn.prototxt", "", _CIFAR),
    "alexnet": bvlc(
        "models/bvlc_alexnet/train_val.prototxt", "models/bvlc_alexnet/deploy.prototxt", "data=1x3x227x227"
    ),
    "caffenet": bvlc(
        "models/bvlc_reference_caffenet/train_val.prototxt", "models/bvlc_reference_caffenet/deploy.prototxt",
        "data=1x3x227x227",
    ),
    "caffenet_full_conv": bvlc("", "examples/net_surgery/bvlc_caffenet_full_conv.prototxt"),
    "googlenet": bvlc(
        "models/bvlc_googlenet/train_val.prototxt", "models/bvlc_googlenet/deploy.prototxt", "data=1x3x224x224"
    ),
    "rcnn": bvlc("", "models/bvlc_reference_rcnn_ilsvrc13/deploy.prototxt"),
    "rcnn_pascal": bvlc(
        "examples/finetune_pascal_detection/pascal_finetune_trainval_test.prototxt", "", "data=1x3x227x227"
    ),
    "squeezenet": paper(squeezenet(), "data=1x3x227x227"),
    "resnet18": paper(resnet(18), "data=1x3x224x224"),
    "resnet50": paper(resnet(50), "data=1x3x224x224"),
    "mobilenet": paper(mobilenet(), "data=1x3x224x224"),
    "fcn_8s": paper(fcn_8s(224, 16), "data=1x3x224x224"),
    "lrcn": paper(lrcn(), "cont_sentence=20x2 input_sentence=20x2 image_features=2x1000"),
}  # fmt: skip


class FailedError(Exception):
    """A command that failed, or bits that differ."""


def speedo(folder: Path, *words: str) -> str:
    """What the command says on standard output. Raises `FailedError`."""
    done = subprocess.run(
        [sys.executable, "-m", "speedo", *words], cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        raise FailedError(f"speedo {words[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def measured(texts: Texts, folder: Path) -> tuple[str, dict[str, float]]:
    """The number of values in the model, and the largest difference of each file from each prototxt."""
    for name in ("train", "deploy"):
        (folder / f"{name}.prototxt").write_text(getattr(texts, name))
    given = [name for name in ("train", "deploy") if getattr(texts, name)]
    shapes = [word for one in texts.shape.split() for word in ("--shape", one)]
    options = {"train": shapes, "deploy": []}
    of_first = ["--net", f"{given[0]}.prototxt", *options[given[0]]]
    speedo(folder, "export", *of_first, "--deploy", "made.prototxt")
    net = parsed((folder / "made.prototxt").read_text())
    save_weights(with_batch(net, 7), folder / "model.caffemodel")
    count, worst = "", {}
    for name in given:
        of_net = ["--net", f"{name}.prototxt", *options[name]]
        said = speedo(
            folder, "export", "model.caffemodel", *of_net, "--onnx", "n.onnx", "--torch", "n.py"
        )
        for match in _MEASURED.finditer(said):
            form = "ONNX" if match["file"] == "n.onnx" else "PyTorch"
            worst[f"{form}, {name}"] = float(match["worst"])
            count = max(count, match["count"], key=len)
        for file in ("n.onnx", "n.pt"):
            speedo(folder, "import", file, *of_net, "back.caffemodel")
            assert_same(folder / "model.caffemodel", folder / "back.caffemodel", file)
    return count, worst


def assert_same(model: Path, back: Path, file: str) -> None:
    """Raises `FailedError` unless each blob of `back` has the bits of that of the model."""
    before = {layer.name: layer.blobs for layer in read_model(model).layers if layer.blobs}
    after = {layer.name: layer.blobs for layer in read_model(back).layers if layer.blobs}
    for name, blobs in after.items():
        held = [one.read().tobytes() for one in blobs if one is not None]
        if held != [one.read().tobytes() for one in before[name] if one is not None]:
            raise FailedError(f"layer {name!r} has other bits once it has been in {file}")
    if not after:
        raise FailedError(f"{file} gives no blobs back")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.export_table", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS), metavar="NET")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    asked = parser.parse_args(arguments)
    say = Clock()
    columns = [f"{form}, {name}" for name in ("train", "deploy") for form in ("ONNX", "PyTorch")]
    rows, bad = [["net", "parameters", *columns]], 0
    for name in asked.nets:
        with tempfile.TemporaryDirectory() as folder:
            try:
                count, worst = measured(NETS[name](), Path(folder))
            except FailedError as error:
                say(f"{name}: {error}")
                rows.append([name, "failed", *["" for _ in columns]])
                bad += 1
                continue
        bad += max(worst.values()) > CLOSE
        found = [f"{worst[column]:.1e}" if column in worst else "" for column in columns]
        rows.append([name, count, *found])
        say(f"{name}: {', '.join(found)}")
    print((table.markdown if asked.markdown else table.text)(rows))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
