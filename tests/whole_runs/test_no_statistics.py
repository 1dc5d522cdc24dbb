"""A first test before BatchNorm has statistics: Caffe prints nan and continues, and so does a run."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.make import CAFFE, EngineChoice, make_engine, prepare_to_read
from speedo.engines.solver import read_solver, solver_for_tester
from speedo.errors import EngineError
from speedo.run_dir.directory import METRICS, create_run_dir
from speedo.storage.memory_store import MemoryStore
from speedo.study.comparison.sequential import Sequential
from speedo.watch.first_failure import first_failure
from tests.support import nets
from tests.support.nets import DEEP_NORM, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
# Of an accuracy alone, which Caffe's layer gives as 1.0, nobody could see that the scores are NaN.
ALONE = """layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
  include { phase: TRAIN } }"""


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    write_data(tmp_path)
    text = net_text(DEEP_NORM, batch=16, train=f"{tmp_path}/train", test=f"{tmp_path}/test")
    return write_solver(
        tmp_path, text, max_iter=4, test_interval=2, base_lr=0.01, snapshot_after_train="false"
    )


def points_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
    return [line for line in lines if line["event"] == "test"]


@pytest.mark.parametrize("engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_run_continues_and_keeps_no_failure(solver: Path, engine: str) -> None:
    run_dir, notices = solver.parent / "run", list[str]()
    result, _, _ = train_here(
        solver, MemoryStore(), run_dir, notices=notices, engine=engine, device="cpu", keep_best=True
    )
    first, *others = points_of(run_dir)
    assert (first["problem"], first["metrics"]) == (None, {"accuracy": None, "loss": None})
    assert all(0 < one["metrics"]["loss"] < 100 for one in others)
    assert len(others) == 2
    assert result.complete
    assert result.best["iteration"] in (2, 4)
    (notice,) = notices
    assert notice == (
        "the test at iteration 0 has no number for accuracy, loss: BatchNorm has no statistics yet, and without "
        "them the net overflows, as in Caffe"
    )
    assert first_failure(run_dir) is None


def test_the_sequential_run_of_a_comparison_continues(solver: Path) -> None:
    """Its later tests are plain Caffe's."""
    spec, run_dir = read_solver(solver), create_run_dir(solver.parent / "alone")
    Sequential(spec, run_dir, tests=True).run()
    first, _, last = points_of(run_dir)
    assert first["metrics"] == {"accuracy": None, "loss": None}
    plain = nets.Sequential(spec.text, spec.folder)
    plain.solver.step(4)
    net = plain.solver.test_nets[0]
    net.share_with(plain.solver.net)
    losses = [float(net.forward()["loss"]) for _ in range(2)]
    assert last["metrics"]["loss"] == pytest.approx(sum(losses) / 2, rel=1e-3)


@pytest.mark.parametrize(
    "choice",
    [CAFFE, pytest.param(EngineChoice("torch", "cpu"), marks=pytest.mark.torch)],
    ids=lambda one: one.engine,
)
def test_accuracies_of_scores_that_are_not_numbers(solver: Path, choice: EngineChoice) -> None:
    """Without statistics it is not available; with them it is divergence. It is never 1.0."""
    net = solver.parent / "net.prototxt"
    net.write_text(net.read_text().rpartition("layer {")[0] + ALONE)
    spec = read_solver(solver)
    engine = make_engine(
        choice, solver_for_tester(spec), lr_policy=spec.lr_policy, folder=spec.folder
    )
    with closing(engine):
        assert {name: math.isnan(one) for name, one in engine.evaluate().items()} == {
            "accuracy": True
        }
        vector = engine.layout.zeros()
        engine.read_weights(vector)
        for blob, place in engine.layout.slices():
            vector[place] = 1e-8 if blob.statistic else np.where(vector[place] < 0, -3e38, 3e38)
        engine.load_weights(vector)
        with pytest.raises(
            EngineError, match="the test output accuracy is nan: training has diverged"
        ):
            engine.evaluate()
    prepare_to_read("caffe")
