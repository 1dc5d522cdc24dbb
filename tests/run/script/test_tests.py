"""`run.test` in scripts: made once for all workers, of the center, and in the log as any test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import speedo
from speedo.errors import ConfigError
from tests.faults.scripts import EACH_ONCE, trained
from tests.run.script.test_run_command import run
from tests.support.commands import Commands
from tests.support.invariants import read_lines

SCRIPT = Path(__file__).parent / "scripts" / "tested.py"


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.parametrize(
    "mode", ["sync", *(pytest.param(mode, marks=pytest.mark.matrix) for mode in ("async", "easgd"))]
)
def test_each_test_is_made_by_one_worker_and_is_in_the_log(
    speedo: Commands, tmp_path: Path, mode: str
) -> None:
    status, _, errors = run(speedo, "--workers", "3", "--mode", mode, str(SCRIPT))
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    # Two tests may be under way at once: the one that began later may end first.
    tests = sorted(
        (line for line in lines if line["event"] == "test"), key=lambda line: int(line["version"])
    )
    assert [line["problem"] for line in tests] == [None] * 3, tests
    assert tests[0]["version"] > 0
    said = "".join(
        (tmp_path / "run" / "logs" / f"worker-{rank}.log").read_text() for rank in range(3)
    )
    for line in tests:
        assert set(line["metrics"]) == {"loss", "first"}
        assert f" {round(line['metrics']['loss'], 4)}\n" in said
    losses = [line["metrics"]["loss"] for line in tests]
    assert losses[-1] < 0.2 * losses[0], losses
    assert said.count("measured") == 3


@pytest.mark.ray
@pytest.mark.redis
def test_who_dies_in_a_test_leaves_it_to_another(speedo: Commands, tmp_path: Path) -> None:
    words = ("--workers", "2", "--restarts", "0", "--mode", "async", str(SCRIPT), "dies")
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    problems = [line["problem"] for line in lines if line["event"] == "test"]
    assert "worker 1, which made it, is gone" in problems[0]
    assert problems[1:] == [None] * 3  # the first again, by who came to it later


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.parametrize(
    ("mode", "dies"),
    [
        ("async", "-dies"),
        pytest.param("sync", "", marks=pytest.mark.matrix),
        pytest.param("easgd", "", marks=pytest.mark.matrix),
    ],
)
def test_workers_share_a_test_and_what_one_that_dies_has_not_tested_is_tested_by_the_others(
    speedo: Commands, tmp_path: Path, mode: str, dies: str
) -> None:
    """The mean of their parts is that over all records."""
    words = ("--workers", "2", "--restarts", "0", "--mode", mode, str(SCRIPT), f"shared{dies}")
    status, _, errors = run(speedo, *words, str(tmp_path / "joined"))
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    tests = [line for line in lines if line["event"] == "test"]
    assert [line["problem"] for line in tests] == [None] * 3
    for line in tests:
        assert line["metrics"]["loss"] == pytest.approx(line["metrics"]["whole"], rel=1e-5)


@pytest.mark.ray
@pytest.mark.redis
def test_a_target_ends_the_run(speedo: Commands, tmp_path: Path) -> None:
    words = ("--workers", "2", "--mode", "easgd", "--target", "loss<=100", str(SCRIPT))
    status, out, errors = run(speedo, *words)
    assert status == 0, errors
    assert "reached the target loss<=100" in out
    finish = next(
        line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if line["event"] == "finish"
    )
    assert finish["complete"]
    assert (tmp_path / "run" / "model.npz").is_file()
    assert "stopped 0" in errors


@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
def test_a_script_alone_tests_its_own_weights() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test at iteration") == 3
    assert "test at iteration 30: loss " in done.stdout


def test_a_script_alone_tests_all_records() -> None:
    w, x = np.zeros(1, np.float32), np.arange(10)
    with speedo.join({"w": w}) as run:
        found = run.test(lambda batches: {"mean": np.mean([*map(np.sum, batches)])}, x, batch=5)
        assert found == {"mean": 22.5}
        with pytest.raises(ConfigError, match=r"run\.test was given 2 arrays without a batch size"):
            run.test(lambda batches: {"mean": 0.0}, (x, x))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "takes a function that returns numbers by their names"),
        ({}, "takes a function that returns numbers by their names"),
        ({"accuracy": float("nan")}, "give finite numbers by names"),
        ({"accuracy": "high"}, "'accuracy' is 'high', not a number"),
        ({3: 0.5}, "give finite numbers by names"),
    ],
)
def test_what_is_no_metric_is_refused(found: object, said: str) -> None:
    with speedo.join({"w": np.zeros(1, np.float32)}) as run, pytest.raises(ConfigError, match=said):
        run.test(lambda: found)  # type: ignore[arg-type, return-value]


@pytest.mark.torch
def test_a_module_is_tested_in_its_eval_mode() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    model[1].eval()  # frozen by the script, and so afterwards
    modes = []

    def measure() -> dict[str, float]:
        modes.append(([part.training for part in model], torch.is_grad_enabled()))
        return {"accuracy": torch.tensor(0.5)}  # type: ignore[dict-item]

    with speedo.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        assert run.test(measure) == {"accuracy": 0.5}
    assert modes == [([False] * 3, False)]
    assert [part.training for part in model] == [True, False, True]
