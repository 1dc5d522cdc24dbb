"""Runs that a rule ends, the best model that they keep, and phases with their own solver values, with real Caffe."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from speedo.engines.solver import SolverOverrides, read_solver
from speedo.errors import ConfigError
from speedo.exchange.vector import Vector
from speedo.run.config.run_config import make_config
from speedo.run.prepare import check_nets, prepare
from speedo.run_dir.checkpoint_file import checkpoints_in, read_checkpoint
from speedo.storage.memory_store import MemoryStore
from tests.support.commands import commands
from tests.support.nets import Sequential, net_text, relative_difference, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe


def tiny_solver(folder: Path, **fields: Any) -> Path:
    write_data(folder)
    text = net_text(train=f"{folder}/train", test=f"{folder}/test")
    return write_solver(folder, text, **fields)


def lines_of(run: Path, event: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == event]


def scores_of(run: Path) -> list[dict[str, Any]]:
    return lines_of(run, "test")


def test_a_run_keeps_its_best_model_and_its_patience_over_a_resume(tmp_path: Path) -> None:
    """A rate of almost 0 learns nothing: the first test is the best of all."""
    solver = tiny_solver(tmp_path, base_lr=1e-12, test_interval=2, test_initialization="false")
    options: dict[str, Any] = {"workers": 1, "patience": 4, "keep_best": True, "checkpointed": True}
    short = SolverOverrides(max_iter=5)
    first, _, _ = train_here(
        solver, MemoryStore(), tmp_path / "run", overrides=short, final_test=False, **options
    )
    assert first.best is not None
    assert first.best["iteration"] == 2
    assert Path(first.best["model"]).is_file()
    kept = read_checkpoint(checkpoints_in(tmp_path / "run" / "checkpoints")[0])
    assert kept.counters.progress is not None
    assert (kept.counters.progress.best_iteration, kept.counters.progress.since_best) == (2, 1)
    second, _, _ = train_here(
        solver, MemoryStore(), tmp_path / "again", checkpoint=kept, final_test=False, **options
    )
    assert second.complete
    assert second.reason.startswith("no better accuracy in 4 tests; the best is ")
    assert second.reason.endswith(" at iteration 2")
    assert second.iteration == 10  # tests at 4, 6, 8, 10 were no better
    assert second.accuracy == first.best["value"]  # of the test that ended it
    assert (first.accuracy, first.test_problem) == (None, "")


def test_a_resumed_run_decides_its_turns_as_it_would_have(tmp_path: Path) -> None:
    """The mean loss of the first window, and what is summed up in the present one, are in the checkpoint."""
    solver = tiny_solver(tmp_path)
    options: dict[str, Any] = {"mode": "easgd", "workers": 1, "local_steps": "adaptive:4/8"}
    options |= {"final_test": False, "checkpointed": True}
    short = SolverOverrides(max_iter=12)
    train_here(solver, MemoryStore(), tmp_path / "run", overrides=short, **options)
    kept = read_checkpoint(checkpoints_in(tmp_path / "run" / "checkpoints")[0])
    assert kept.counters.progress is not None
    turns = kept.counters.progress.turns
    assert turns is not None
    assert turns.first is not None
    assert (turns.steps, turns.samples) == (4, 4 * 8)
    results = lines_of(tmp_path / "run", "result")
    assert turns.first == sum(one["loss"] for one in results[:2]) / 2
    assert turns.loss == results[2]["loss"] * turns.samples
    longer = SolverOverrides(max_iter=24)
    train_here(
        solver, MemoryStore(), tmp_path / "again", overrides=longer, checkpoint=kept, **options
    )
    again = lines_of(tmp_path / "again", "result")
    mean = (results[2]["loss"] + again[0]["loss"]) / 2
    steps = max(1, min(4, math.ceil(4 * math.sqrt(mean / turns.first))))
    assert [one["steps"] for one in again[:2]] == [4, steps]


def trained(folder: Path, solver: Path, *phases: dict[str, Any]) -> tuple[Vector, Vector]:
    """The weights of one worker after and before 8 iterations of these phases."""
    options: dict[str, Any] = {"mode": "hybrid", "phases": phases, "workers": 1}
    overrides = SolverOverrides(max_iter=8)
    run = folder / f"run{len(list(folder.iterdir()))}"
    result, before, after = train_here(solver, MemoryStore(), run, overrides=overrides, **options)
    assert result.complete
    return after, before


def caffes(folder: Path, solver: Path, iterations: int) -> Vector:
    """The weights after so many iterations of plain Caffe."""
    plain = Sequential(read_solver(solver).text, folder)
    plain.step(iterations)
    return plain.weights()


def test_the_rate_of_a_phase_is_caffes_after_a_step_of_the_policy(tmp_path: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    steps = {"lr_policy": '"multistep"', "gamma": 0.1, "stepvalue": [3]}
    expected = caffes(plain, tiny_solver(plain, **steps), 8)
    phases = {"mode": "sync", "iterations": 3}, {"mode": "sync", "lr": 0.005}
    after, before = trained(tmp_path, tiny_solver(tmp_path), *phases)
    assert relative_difference(after, expected, before) < 1e-4


def test_momentum_and_decay_of_a_phase_are_those_of_such_a_solver(tmp_path: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    expected = caffes(plain, tiny_solver(plain, momentum=0.5, weight_decay=0.1), 8)
    phase = {"mode": "sync", "iterations": 9, "momentum": 0.5, "weight_decay": 0.1}
    after, before = trained(tmp_path, tiny_solver(tmp_path), phase)
    assert relative_difference(after, expected, before) < 1e-4


def test_a_solver_that_is_built_anew_for_a_phase_goes_on_where_it_was(tmp_path: Path) -> None:
    """Weights, history and the place in the data survive: a decay that changes nothing changes nothing."""
    solver = tiny_solver(tmp_path, weight_decay=0.0)
    whole, before = trained(tmp_path, solver, {"mode": "sync", "iterations": 9})
    phases = {"mode": "sync", "iterations": 3}, {"mode": "sync", "weight_decay": 1e-12}
    after, _ = trained(tmp_path, solver, *phases)
    assert relative_difference(after, whole, before) < 1e-5


def test_a_larger_batch_of_a_phase_is_caffes_iter_size(tmp_path: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    expected = caffes(plain, tiny_solver(plain, iter_size=2), 4)
    phase = {"mode": "sync", "iterations": 9, "batch": 16}
    after, before = trained(tmp_path, tiny_solver(tmp_path), phase)
    assert relative_difference(after, expected, before) < 1e-4


@dataclass(frozen=True)
class Ended:
    """What the commands left: status, both outputs, `result.json`."""

    status: int
    output: str
    errors: str
    result: dict[str, Any]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ended, Ended, Ended]]:
    """A run of 1 s, the same resumed to 2 s in all, and the score of its best model."""
    folder = tmp_path_factory.mktemp("stopping")
    solver = tiny_solver(folder, max_iter=10_000_000, test_interval=100)
    run = folder / "run"
    with commands(folder) as speedo:

        def ended(*words: str) -> Ended:
            process = speedo.start(*words)
            output, errors = process.communicate(timeout=120)
            return Ended(
                process.returncode, output, errors, json.loads((run / "result.json").read_text())
            )

        yield (
            run,
            ended("train", str(solver), "--run-dir", "run", "--workers", "1", "--max-seconds", "1",
                  "--keep-best", "--test-interval", "final_test=no"),
            ended("train", "--resume", "run", "--max-seconds", "2"),
            ended("test", "--weights", "run/best.caffemodel", "--workers", "1", "--json"),
        )  # fmt: skip


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_whose_time_is_over_ends_well_and_says_why(
    parts: tuple[Path, Ended, Ended, Ended],
) -> None:
    run, first, _, _ = parts
    assert first.status == 0, first.errors
    assert first.result["complete"] is True
    assert first.result["reason"] == "trained for 1 s, the max_seconds"
    assert first.result["accuracy"] is None
    ending = first.output.splitlines()[0]
    assert ending.startswith("not tested at the end after ")
    assert ending.endswith("; trained for 1 s, the max_seconds")
    assert f"best accuracy {first.result['best']['value']:.4f} at iteration" in first.output
    assert (run / "model.caffemodel").is_file()


@pytest.mark.ray
@pytest.mark.slow
def test_a_resumed_run_counts_the_time_of_before_and_keeps_its_options(
    parts: tuple[Path, Ended, Ended, Ended],
) -> None:
    run, first, second, _ = parts
    assert second.status == 0, second.errors
    assert second.result["reason"] == "trained for 2 s, the max_seconds"
    assert second.result["iteration"] > first.result["iteration"]
    values = [one["metrics"]["accuracy"] for one in scores_of(run) if one["metrics"]]
    assert second.result["best"]["value"] == pytest.approx(max(values))
    assert second.result["accuracy"] is None  # final_test=no was kept


@pytest.mark.ray
@pytest.mark.slow
def test_the_best_model_scores_what_the_result_says(
    parts: tuple[Path, Ended, Ended, Ended],
) -> None:
    _, _, second, scored = parts
    assert scored.status == 0, scored.errors
    found = json.loads(scored.output)
    assert second.result["best"]["value"] == pytest.approx(_value(found, "accuracy"), abs=1e-6)


def _value(fields: dict[str, Any], output: str) -> float:
    """The figure of this output, wherever the report has it."""
    text = json.dumps(fields)
    assert output in text
    nested = next(one for one in fields.values() if isinstance(one, dict) and output in one)
    return float(nested[output])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"mode": "hybrid", "phases": [{"mode": "sync", "iterations": 3, "batch": 12}]},
            "no multiple",
        ),
        ({"target": "acuracy>=0.9"}, "its outputs are accuracy"),
        ({"keep_best": True, "best_by": "top5"}, "best_by is about top5"),
    ],
)
def test_what_only_the_solver_can_tell_is_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    solver = tiny_solver(tmp_path)
    config = make_config({"solver": solver, "workers": 1, "run_dir": tmp_path / "run", **options})
    with pytest.raises(ConfigError, match=said):
        check_nets(prepare(config, lambda line: None), tmp_path)
