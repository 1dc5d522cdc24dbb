"""`test_iter: 0`, `max_iter: 0` and `base_lr: 0` do what they do in plain Caffe."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.make import EngineChoice, make_engine, prepare_to_read
from speedo.engines.solver import read_solver, solver_for_tester
from speedo.run.result import RunResult
from speedo.run_dir.directory import METRICS
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import Sequential, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
engines = pytest.mark.parametrize(
    "engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)]
)


def solver(folder: Path, **fields: Any) -> Path:
    write_data(folder)
    text = net_text(train=f"{folder}/train", test=f"{folder}/test")
    return write_solver(folder, text, **{"max_iter": 20, **fields})


def run(path: Path, engine: str, **options: Any) -> tuple[RunResult, list[tuple[int, set[str]]]]:
    """The result, and of each test its iteration and outputs."""
    options = {"workers": 2, "engine": engine, "device": "cpu", **options}
    result, _, _ = train_here(path, MemoryStore(), path.parent / "run", **options)
    log = (path.parent / "run" / METRICS).read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    return result, [
        (one["iteration"], set(one["metrics"])) for one in lines if one["event"] == "test"
    ]


def plain_test(path: Path, steps: int) -> dict[str, float]:
    """The outputs of plain Caffe's two test batches after these steps."""
    spec = read_solver(path)
    plain = Sequential(spec.text, spec.folder)
    plain.solver.step(steps)
    net = plain.solver.test_nets[0]
    net.share_with(plain.solver.net)
    found = [{name: float(one) for name, one in net.forward().items()} for _ in range(2)]
    return {name: sum(one[name] for one in found) / 2 for name in found[0]}


@engines
def test_no_batches_are_no_test(tmp_path: Path, engine: str) -> None:
    result, tests = run(solver(tmp_path, test_iter=0), engine)
    assert (result.complete, result.iteration, result.metrics, tests) == (True, 20, {}, [])


@engines
def test_of_two_test_nets_that_without_batches_has_no_outputs(tmp_path: Path, engine: str) -> None:
    path = solver(tmp_path, test_iter=[0, 2])
    result, tests = run(path, engine, target="test1/accuracy>=2")
    assert result.complete
    assert tests == [(at, {"test1/accuracy", "test1/loss"}) for at in (0, 10, 20)]
    spec = read_solver(path)
    choice = EngineChoice(engine, "cpu")
    with closing(make_engine(choice, solver_for_tester(spec), lr_policy=spec.lr_policy)) as tester:
        assert tester.test_outputs() == ("test1/accuracy", "test1/loss")
    prepare_to_read("caffe")


@engines
@pytest.mark.parametrize(
    "options", [{}, {"mode": "easgd"}, {"servers": 2}, {"server_gradient": True}], ids=str
)
def test_without_iterations_a_run_scores_its_first_weights(
    tmp_path: Path, engine: str, options: dict[str, Any]
) -> None:
    """Caffe: solver.cpp, Solve: no step, the snapshot of iteration 0, one test."""
    path = solver(tmp_path, max_iter=0, snapshot_prefix='"tiny"')
    result, tests = run(path, engine, **options)
    assert (result.complete, result.iteration, result.samples) == (True, 0, 0)
    assert tests == [(0, {"accuracy", "loss"})]
    if engine == "caffe":  # the other draws other numbers
        assert result.metrics == pytest.approx(plain_test(path, 0))
    snapshot = tmp_path / "run" / "tiny_iter_0.caffemodel"
    assert snapshot.read_bytes() == Path(result.model).read_bytes()


@engines
@pytest.mark.parametrize("mode", ["sync", "async", "partial", "weed-out", "easgd"])
def test_without_a_rate_the_weights_stay(tmp_path: Path, engine: str, mode: str) -> None:
    result, before, after = train_here(
        solver(tmp_path, base_lr=0), MemoryStore(), tmp_path / "run", workers=2, mode=mode,
        engine=engine, device="cpu",
    )  # fmt: skip
    assert (result.complete, result.iteration, result.samples) == (True, 20, 160)
    np.testing.assert_array_equal(after, before)
    if engine == "caffe":
        assert result.metrics == pytest.approx(plain_test(tmp_path / "solver.prototxt", 20))
