"""Every mode on nets with their own difficulties: it learns, and the exported model is the one that was tested."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.parameters import Parameters
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import BATCH_NORM, LENET, SHARED, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "sync, two local steps": {"mode": "sync", "local_steps": 2},
    "sync, gradients": {"mode": "sync", "server_gradient": True},
    "async": {"mode": "async"},
    "async, gradients": {"mode": "async", "server_gradient": True},
    "partial": {"mode": "partial"},
    "partial, elastic": {"mode": "partial", "moving_rate": 0.3},
    "weed-out": {"mode": "weed-out"},
    "weed-out, elastic": {"mode": "weed-out", "moving_rate": 0.3},
    "easgd": {"mode": "easgd", "local_steps": 3},
    "hybrid": {
        "mode": "hybrid",
        "phases": [{"mode": "sync", "iterations": 20}, {"mode": "easgd", "iterations": 20}],
    },
}


@pytest.mark.parametrize("net", [LENET, BATCH_NORM, SHARED], ids=["lenet", "batch-norm", "shared"])
@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_it_learns_and_exports_what_it_tested(
    tmp_path: Path, net: str, options: dict[str, Any]
) -> None:
    write_data(tmp_path, train=240, test=40)
    fields = {"max_iter": 120, "base_lr": 0.02, "test_interval": 40}
    solver = write_solver(tmp_path, net_text(net, batch=12), **fields)
    result, _, center = train_here(solver, MemoryStore(), tmp_path / "run", workers=3, **options)
    assert result.complete, result.reason
    assert 120 <= result.iteration < 120 + 3 * 3
    assert result.accuracy is not None
    assert result.accuracy >= 0.9
    assert plain_score(tmp_path, result.model, center) == result.accuracy

    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    versions = [line["version"] for line in lines if line.get("decision") == "merged"]
    assert versions == sorted(versions)
    assert versions[-1] == result.version
    tests = [line["iteration"] for line in lines if line["event"] == "test"]
    assert tests[0] == 0
    assert tests[-1] == result.iteration
    assert len(tests) == 4


def plain_score(home: Path, model: str, center: np.ndarray) -> float:
    """Accuracy by pycaffe alone, of the very weights of the center."""
    caffe = load_caffe()
    with contextlib.chdir(home):
        trained = caffe.Net("net.prototxt", model, caffe.TRAIN)
        net = caffe.Net("net.prototxt", model, caffe.TEST)
    parameters = Parameters(trained)
    vector = parameters.layout.zeros()
    parameters.read(vector)
    np.testing.assert_array_equal(vector, center)
    return sum(float(net.forward()["accuracy"]) for _ in range(2)) / 2
