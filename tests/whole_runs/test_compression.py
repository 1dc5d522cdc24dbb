"""Compressed runs with Caffe's own nets: they learn, and what is tested and exported is the exact center."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import read_solver, solver_for_tester
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import BATCH_NORM, LENET, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
ROUNDED = {"compress_center": "bfloat16"}


@pytest.mark.parametrize("net", [LENET, BATCH_NORM], ids=["lenet", "batch-norm"])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sync", "compress": "int8"},
        {"mode": "sync", "compress": "topk:0.1", "server_gradient": True},
        {"mode": "async", "compress": "topk:0.1"},
        {"mode": "sync", "compress": "sparse:0.1", "local_steps": 2},
        {"mode": "async", "compress": "bfloat16", **ROUNDED},
        {"mode": "easgd", "compress": "int8", **ROUNDED},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_it_learns_and_tests_the_exact_center(
    tmp_path: Path, net: str, options: dict[str, Any]
) -> None:
    write_data(tmp_path, train=240, test=40)
    solver = write_solver(tmp_path, net_text(net, batch=12), max_iter=120, base_lr=0.02)
    result, _, center = train_here(solver, MemoryStore(), tmp_path / "run", **options)
    assert result.complete, result.reason
    assert result.accuracy is not None
    assert result.accuracy >= 0.9
    engine = PycaffeEngine(
        solver_for_tester(read_solver(solver)), lr_policy=read_solver(solver).lr_policy
    )
    exported = engine.layout.zeros()
    engine.copy_from(Path(result.model))
    engine.read_weights(exported)
    engine.close()
    np.testing.assert_array_equal(exported, center)


def test_the_result_counts_what_workers_pushed_and_pulled(tmp_path: Path) -> None:
    write_data(tmp_path, train=240, test=40)
    solver = write_solver(tmp_path, net_text(LENET, batch=12), max_iter=6, base_lr=0.02)
    result, _, center = train_here(
        solver, MemoryStore(), tmp_path / "run", compress="bfloat16", mode="sync"
    )
    turns, header = 2 * 6, 60
    assert result.bytes_pushed == turns * (header + 2 * center.size)
    assert result.bytes_pulled == turns * (header + 4 * center.size)
