"""What a script's callbacks are told, and what becomes of a run in which one raises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import speedo
from speedo.errors import ConfigError
from speedo.run_dir.checkpoint_file import checkpoint_path
from speedo.run_dir.directory import CHECKPOINTS
from tests.support.commands import Commands

SCRIPT = Path(__file__).parent / "scripts" / "told.py"
WAIT_S = 200


def run(speedo: Commands, *words: str) -> tuple[int, str]:
    process = speedo.start("run", "--run-dir", "run", "--workers", "2", *words)
    _, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, errors


def told(folder: Path, rank: int) -> list[str]:
    text = (folder / "run" / "logs" / f"worker-{rank}.log").read_text()
    return [line.split(" ", 2)[2] for line in text.splitlines() if line.startswith(f"told {rank} ")]


@pytest.mark.ray
@pytest.mark.redis
def test_worker_0_is_told_everything_that_the_log_has_and_both_end_with_the_model_unrounded(
    speedo: Commands, tmp_path: Path
) -> None:
    """Where centers are rounded, scripts ended with the rounded weights, from which turns begin."""
    words = ("--mode", "async", "--compress", "center=bfloat16", str(SCRIPT))
    status, errors = run(speedo, *words)
    assert status == 0, errors
    expected = []
    for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        seconds = f"seconds={line['time']}"
        if line["event"] == "joined":
            expected.append(
                f"WorkerJoined(worker={line['worker']}, host={line['host']!r}, {seconds})"
            )
        elif line["event"] == "left":
            cause = "its script has ended"
            expected.append(f"WorkerLeft(worker={line['worker']}, cause={cause!r}, {seconds})")
        elif line["event"] == "checkpoint":
            path = checkpoint_path(tmp_path / "run" / CHECKPOINTS, 0, line["version"])
            expected.append(
                f"CheckpointWritten(path={path!r}, iteration={line['iteration']}, {seconds})"
            )
        elif line["event"] == "result" and line["decision"] == "merged":
            records = tuple(map(tuple, line["records"]))
            expected.append(
                f"ResultMerged(worker={line['worker']}, iteration={line['iteration']}, version={line['version']}, "
                f"loss={line['loss']}, samples=8, staleness={line['staleness']}, {seconds}, losses=(), "
                f"timings={line['timings']}, records={records})"
            )
    assert len(expected) == 2 + 90 + 2 + 1
    assert told(tmp_path, 0) == expected
    assert told(tmp_path, 1) == []
    model = np.load(tmp_path / "run" / "model.npz")["w"]
    assert (model.view(np.uint32) & 0xFFFF).any(), "a model of bfloat16 alone shows no rounding"
    for rank in range(2):
        np.testing.assert_array_equal(np.load(tmp_path / f"w{rank}.npy"), model)


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("on_result", "sync"),
        pytest.param("on_join", "async", marks=pytest.mark.matrix),
        pytest.param("on_leave", "async", marks=pytest.mark.matrix),
    ],
)
def test_a_callback_that_raises_ends_the_run_with_its_model(
    speedo: Commands, tmp_path: Path, name: str, mode: str
) -> None:
    status, errors = run(speedo, "--mode", mode, "--restarts", "0", str(SCRIPT), name)
    assert status == 3, errors
    cause = f"an exception in {name}: LookupError: {name} was called (worker 0)"
    assert f"the run ended early: stopped by {cause}" in errors
    assert f"worker 0: its script ended with status 1: LookupError: {name} was called" in errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, f"stopped by {cause}")
    assert 0 < result["iteration"] < 90
    assert np.isfinite(np.load(tmp_path / "run" / "model.npz")["w"]).all()
    assert speedo.left() == []


def test_a_script_by_itself_is_told_of_each_step() -> None:
    seen: list[speedo.ResultMerged] = []
    with speedo.join({"w": np.zeros(2, np.float32)}, on_result=seen.append) as run:
        for some in run.share(np.arange(10), batch=4):
            run.step(loss=float(some[0]))
    assert [(one.worker, one.iteration, one.version, one.loss) for one in seen] == [
        (0, 1, 1, 0.0),
        (0, 2, 2, 4.0),
        (0, 3, 3, 8.0),
    ]
    assert [(one.samples, one.staleness) for one in seen] == [(4, 0), (4, 0), (2, 0)]
    assert 0 <= seen[0].seconds <= seen[1].seconds <= seen[2].seconds


def test_what_a_callback_raises_comes_out_of_the_step_of_a_script_by_itself() -> None:
    def raises(event: speedo.ResultMerged) -> None:
        raise LookupError(event.worker)

    with (
        pytest.raises(LookupError, match=r"^0$"),
        speedo.join({"w": np.zeros(2, np.float32)}, on_result=raises) as run,
    ):
        run.step()
    with pytest.raises(ConfigError, match="no run is joined here"):
        speedo.current()


def test_what_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        speedo.join({"w": np.zeros(2, np.float32)}, on_result=[], on_leave="stop")  # type: ignore[arg-type]
    assert caught.value.problems == (
        "on_result is []: give a function that takes one event, or leave it out",
        "on_leave is 'stop': give a function that takes one event, or leave it out",
    )


@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
def test_the_script_runs_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 91
    assert all(line.startswith("told 0 ResultMerged(worker=0, ") for line in lines[:90])


@pytest.mark.torch
def test_what_a_callback_raises_comes_out_of_the_optimizers_step() -> None:
    import torch

    def raises(event: speedo.ResultMerged) -> None:
        raise LookupError(event.loss)

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with speedo.join(model, optimizer, on_result=raises) as run:
        model(torch.ones(1, 2)).sum().backward()
        run.report(0.25)
        with pytest.raises(LookupError, match=r"^0.25$"):
            optimizer.step()
