"""How far nets of ONNX are from ONNX Runtime once `caffenets import` has made plain layers of Caffe of them.

    python -m bench.way_back [--nets resnet18 mobilenet_v2 vgg11 ...] [--markdown]

torchvision's nets, with random weights and random statistics of BatchNorm, are exported by PyTorch (opset 17, and with
the package onnxscript opset 18, too) and imported. One random record goes through ONNX Runtime, `caffenets.load` and
pycaffe. Prints the largest differences, of the largest output; status 1 if one is above 1e-5 or an import failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import caffenets
from bench.support import table
from bench.support.machine import Clock
from caffenets.errors import NetError
from caffenets.export.differences import difference
from caffenets.extras import lacking
from caffenets.from_onnx.importing import import_net
from caffenets.onnx_session import opened
from speedo.engines.caffe_import import load_caffe, prepare_environment

CLOSE: Final = 1e-5
SIZE: Final = 224
NETS: Final = ("resnet18", "mobilenet_v2", "vgg11")
NEEDED: Final = "needs torchvision for the PyTorch that is installed: pip install torchvision"


def export(name: str, file: Path, opset: int) -> None:
    """A net of torchvision as ONNX with a free batch."""
    import torch
    import torchvision

    torch.manual_seed(1)
    model = getattr(torchvision.models, name)(weights=None).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values, low, high in (
                (module.running_mean, -0.5, 0.5), (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5), (module.bias.data, -0.5, 0.5),
            ):  # fmt: skip
                values.uniform_(low, high)
    axes: dict[str, Any] = {"dynamic_axes": {"data": {0: "batch"}}}
    if opset > 17:
        axes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (torch.rand(2, 3, SIZE, SIZE),), str(file), opset_version=opset, dynamo=opset > 17,
            input_names=["data"], output_names=["scores"], external_data=False, verbose=False, **axes,
        )  # fmt: skip


def measured(name: str, folder: Path, opset: int) -> dict[str, float]:
    """The largest difference of each from ONNX Runtime. Raises `NetError`."""
    import torch

    from caffenets.pytorch.trials import TrialsHere

    file, net, model = (folder / f"net.{end}" for end in ("onnx", "prototxt", "caffemodel"))
    export(name, file, opset)
    list(import_net(file, net, {}, TrialsHere(), folder))
    record = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE), np.float32)
    theirs = {"scores": opened(file).run(["scores"], {"data": record})[0]}
    with torch.no_grad():
        here = {"scores": caffenets.load(net, model)(torch.from_numpy(record))["scores"].numpy()}
    caffe = load_caffe()
    caffe.set_mode_cpu()
    loaded = caffe.Net(str(net), str(model), caffe.TEST)
    loaded.blobs["data"].data[...] = record
    pycaffe = {"scores": loaded.forward()["scores"]}
    return {
        judge: difference(ours, theirs, name, "ONNX Runtime")
        for judge, ours in (("caffenets", here), ("pycaffe", pycaffe))
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.way_back", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--nets", nargs="+", default=NETS, metavar="NET", help="of torchvision")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    asked = parser.parse_args(arguments)
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # RuntimeError: it is of another PyTorch
        print(f"bench.way_back {NEEDED} ({error})", file=sys.stderr)
        return 2
    prepare_environment(1)
    say = Clock()
    opsets = [17] if lacking("onnxscript", "onnx", "") else [17, 18]
    rows, bad = [["net", "opset", "caffenets", "pycaffe"]], 0
    for name in asked.nets:
        for opset in opsets:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    worst = measured(name, Path(folder), opset)
                except NetError as error:
                    say(f"{name}: {error}")
                    rows.append([name, str(opset), "failed", ""])
                    bad += 1
                    continue
            bad += max(worst.values()) > CLOSE
            rows.append([name, str(opset), *(f"{one:.1e}" for one in worst.values())])
            say(f"{name}: {', '.join(rows[-1][1:])}")
    print((table.markdown if asked.markdown else table.text)(rows))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
