"""`caffenets.load` computes what pycaffe computes with the same net and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffenets
from caffenets.nets import read_deploy
from caffenets.prototxt.text import to_text
from speedo.engines.caffe_import import load_caffe, prepare_environment

pytestmark = [pytest.mark.torch, pytest.mark.caffe]
BUNDLED = Path(__file__).resolve().parents[3] / "prototxt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet", (1, 28, 28)),
        ("cifar10_full", (3, 32, 32)),
        pytest.param("alexnet", (3, 227, 227), marks=pytest.mark.matrix),
        pytest.param("googlenet", (3, 224, 224), marks=pytest.mark.matrix),
    ],
)
def test_a_loaded_net_computes_as_caffe(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    import torch

    prepare_environment(1)
    caffe: Any = load_caffe()
    deploy, given = tmp_path / "deploy.prototxt", {"data": (1, *shape)}
    deploy.write_text(to_text(read_deploy(BUNDLED / name / "train_test.prototxt", given).net))
    net = caffe.Net(str(deploy), caffe.TEST)
    rng = np.random.default_rng(1)
    for blobs in net.params.values():
        for blob in blobs:  # as far apart as a trained layer's: outputs neither vanish nor overflow
            values = rng.standard_normal(blob.data.shape, np.float32)
            blob.data[...] = values / np.sqrt(max(1, values[0].size))
    net.save(str(tmp_path / "net.caffemodel"))
    module = caffenets.load(deploy, tmp_path / "net.caffemodel")
    for batch in (1, 7):
        records = rng.random((batch, *shape), np.float32)
        net.blobs["data"].reshape(*records.shape)
        net.blobs["data"].data[...] = records
        expected = {top: values.copy() for top, values in net.forward().items()}
        with torch.no_grad():
            found = module(torch.from_numpy(records))
        assert found.keys() == expected.keys()
        for top, values in expected.items():
            assert values.std() > 0, "it depends on the records or the weights"
            apart = np.abs(found[top].numpy() - values).max() / np.abs(values).max()
            assert apart <= 1e-5, (top, apart)
