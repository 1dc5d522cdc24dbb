"""The rules with a state, with Caffe's own nets: they learn, also with BatchNorm, and their state is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.storage.memory_store import MemoryStore
from tests.support.nets import BATCH_NORM, LENET, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
OUTER = {"mode": "sync", "local_steps": 5, "rule": "outer-momentum", "outer_momentum": 0.5}
COMPENSATED = {"mode": "async", "rule": "delay-compensated"}


@pytest.mark.parametrize("net", [LENET, BATCH_NORM], ids=["lenet", "batch-norm"])
@pytest.mark.parametrize("options", [OUTER, COMPENSATED], ids=["outer", "compensated"])
def test_it_learns(tmp_path: Path, net: str, options: dict[str, Any]) -> None:
    write_data(tmp_path, train=240, test=40)
    solver = write_solver(tmp_path, net_text(net, batch=12), max_iter=120, base_lr=0.02)
    result, _, center = train_here(solver, MemoryStore(), tmp_path / "run", **options)
    assert result.complete, result.reason
    assert result.accuracy is not None
    assert result.accuracy >= 0.9
    assert np.isfinite(center).all()
