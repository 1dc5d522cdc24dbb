"""What matters on a GPU and can be seen without one: PyTorch's meta device computes shapes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.engines.schema import caffe_schema
from speedo.errors import EngineError
from speedo.solver import read_solver, solver_for_worker
from speedo.solver.proto import parse_text
from tests.support.nets import net_text, records, write_lmdb, write_solver

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_a_label_without_a_class_is_named_before_it_reaches_the_device(tmp_path: Path) -> None:
    from speedo.engines.pytorch.net import Net

    images, labels = records(8)
    write_lmdb(tmp_path / "train", images, np.where(np.arange(8) == 5, 9, labels))
    write_lmdb(tmp_path / "test", images, labels)
    spec = read_solver(write_solver(tmp_path, net_text()))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    solver = parse_text(text, caffe_schema().SolverParameter())
    net = Net(solver.train_net_param, "TRAIN", device=torch.device("meta"))
    try:
        with pytest.raises(
            EngineError, match="layer 'loss' reads the label 9, but 'ip' has 4 classes"
        ):
            net.forward()
    finally:
        net.close()


def test_float32_is_float32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from speedo.engines.pytorch.devices import use_device

    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    use_device(torch.device("cuda:1"))
    assert chosen == [torch.device("cuda:1")]
    assert not torch.backends.cudnn.allow_tf32
