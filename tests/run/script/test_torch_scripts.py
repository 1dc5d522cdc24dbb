"""PyTorch's modules in a user's script, with `speedo run`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.run_dir.events import SCRIPT_ENDED
from tests.faults.scripts import trained
from tests.run.script.test_run_command import WAIT_S, run, script_of
from tests.support.commands import Commands, how_loaded, wait_for_line
from tests.support.invariants import read_lines

pytestmark = [
    pytest.mark.torch,
    pytest.mark.ray,
    pytest.mark.redis,
    pytest.mark.usefixtures("forked_python"),
]
SCRIPT = Path(__file__).parent / "scripts" / "fit_torch.py"
RECORDS, WHOLE, STEPS = 1190, 48, 50  # the batch of one process, and its steps
EACH_ONCE = Counter({(epoch, position): 1 for epoch in range(2) for position in range(RECORDS)})


@pytest.mark.parametrize(
    ("workers", "optimizer"),
    [
        (3, "adam"),
        pytest.param(2, "adam", marks=pytest.mark.matrix),
        pytest.param(2, "sgd", marks=pytest.mark.matrix),
        pytest.param(3, "sgd", marks=pytest.mark.matrix),
    ],
)
def test_workers_that_average_gradients_make_the_model_of_one_process(
    speedo: Commands, tmp_path: Path, workers: int, optimizer: str
) -> None:
    """Within 1e-6 of the largest weight; the last batch of an epoch leaves nothing for the last worker.

    The mean is clipped, and the learning rate changes with each step.
    """
    words = ("--workers", str(workers), str(SCRIPT), str(WHOLE // workers), optimizer, "gradients")
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    file = tmp_path / "alone.npz"
    alone = subprocess.run(
        [sys.executable, str(SCRIPT), str(WHOLE), optimizer, "", "0", str(file)],
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    assert f"steps {STEPS}" in alone.stdout
    assert "Warning" not in alone.stderr  # that the loss is a tensor with gradients
    ours, theirs = np.load(tmp_path / "run" / "model.npz"), np.load(file)
    assert set(ours) == set(theirs)
    largest = max(float(np.abs(theirs[name]).max()) for name in theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6 * largest)
    results = [
        line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if line["event"] == "result"
    ]
    assert {line["worker"] for line in results} == set(range(workers))
    # Of a stretch that is the last batch alone, the last worker has nothing.
    assert all(line["loss"] > 0 for line in results if line["samples"])
    assert max(line["steps"] for line in results) > 1  # several steps between two reports


@pytest.mark.parametrize(
    ("exchange", "killed"),
    [
        ("gradients", (0,)),
        pytest.param("gradients", (1, 0), marks=pytest.mark.matrix),
        pytest.param("deltas", (0, 1), marks=pytest.mark.matrix),
    ],
)
def test_records_of_a_torch_script_that_is_killed_are_trained_by_others(
    speedo: Commands, tmp_path: Path, exchange: str, killed: tuple[int, ...]
) -> None:
    """Worker 0 leads the team. Who is killed is started again, and no record is trained twice or not.

    With gradients the leader dies first with what it was dealt for others: the master had leased that to members that
    lived on and did not know, and it was in no result. Who is started again has the others' scheduler.
    """
    words = ("--workers", "3", str(SCRIPT), "5", "adam", exchange, "0.15")
    done = tmp_path / "done"
    process = speedo.start(
        *("run", "--run-dir", "run", *words),
        environment={"SPEEDO_FAILPOINT": "team-dealt@2", "SPEEDO_FAILPOINT_DONE": str(done)},
    )
    died = int(exchange == "gradients")
    log, to_kill, deadline = (
        tmp_path / "run" / "metrics.jsonl",
        list(killed),
        time.monotonic() + WAIT_S * how_loaded(),
    )
    while to_kill and time.monotonic() < deadline:
        time.sleep(0.3)
        events = (
            [line["event"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
            if log.exists()
            else []
        )
        joined = 3 + died + len(killed) - len(to_kill)
        if events.count("joined") == joined and events[-1] == "result":
            script_of(speedo, to_kill.pop(0)).kill()
    _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, to_kill) == (0, []), errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert done.exists() == bool(died), "the leader dies with what it was dealt, where there is one"
    assert trained(lines) == EACH_ONCE
    assert killed_in(lines) == died + len(killed)
    logs = [file.read_text().splitlines() for file in (tmp_path / "run" / "logs").glob("worker-*")]
    rates = [float(line.split()[1]) for log in logs for line in log if line.startswith("rate ")]
    assert len(rates) == 3
    if exchange == "gradients":  # of the last steps, of which some may have been the others'
        assert max(rates) < 1.1 * min(rates)
    steps = max(line["steps"] for line in lines if line.get("decision") == "merged")
    assert (steps > 1) == (exchange == "gradients")


def test_a_stream_is_divided_exactly_though_a_worker_is_killed_and_has_one_order_for_a_seed(
    speedo: Commands, tmp_path: Path
) -> None:
    """Each worker reads it all. Its batches are those of `python script.py`, in one loop of epochs and in the next."""
    script = SCRIPT.with_name("streamed.py")
    process = speedo.start(
        "run", "--run-dir", "run", "--workers", "3", "--seed", "0", str(script), "0.1"
    )
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"merged"', WAIT_S * how_loaded(), process)
    script_of(speedo, 1, script).kill()
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == Counter(
        {(epoch, place): 1 for epoch in range(2) for place in range(16)}
    )
    assert sum(line["samples"] for line in lines if line.get("decision") == "merged") == 2 * 62
    assert killed_in(lines) == 1
    alone = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    batches = alone.stdout.splitlines()
    assert [line.split()[1] for line in batches] == ["0"] * 16 + ["7"] * 16
    logs = [file.read_text().splitlines() for file in (tmp_path / "run" / "logs").glob("worker-*")]
    assert {line for log in logs for line in log if line.startswith("batch")} == {*batches}


def killed_in(lines: list[dict[str, Any]]) -> int:
    """How many workers were killed."""
    causes = [line["cause"] for line in lines if line["event"] == "left"]
    return sum("killed by SIGKILL" in cause for cause in causes)


def test_a_turn_ends_between_batches_though_several_optimizers_step_on_one(
    speedo: Commands, tmp_path: Path
) -> None:
    """Each third batch has a gradient of G from before the step of D."""
    script, steps, batches = Path(__file__).parents[2] / "scripts" / "wgan.py", 10, 3
    words = ("--workers", "2", "--mode", "async", str(script), "8", str(steps))
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert {line["cause"] for line in lines if line["event"] == "left"} == {SCRIPT_ENDED}
    records = 16 * steps * batches
    assert trained(lines) == Counter({(e, r): 1 for e in range(5) for r in range(records // 5)})
    merged = [line for line in lines if line.get("decision") == "merged"]
    assert sum(line["samples"] for line in merged) == records


def test_a_worker_that_tests_or_leaves_ends_the_turn_of_its_team_and_nothing_is_lost(
    speedo: Commands, tmp_path: Path
) -> None:
    """No batch is trained twice. A test that all workers make has each record once."""
    script = SCRIPT.with_name("tested_torch.py")
    status, _, errors = run(speedo, "--workers", "3", str(script))
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line for line in lines if line.get("decision") == "discarded"] == []
    epochs, records, tests = 4, 600, 201
    all_epochs = range(epochs + 1)  # the last one is not tested
    assert trained(lines) == Counter({(e, r): 1 for e in all_epochs for r in range(records)})
    found = [line for line in lines if line["event"] == "test"]
    assert [line["problem"] for line in found] == [None] * epochs
    said = [file.read_text().splitlines() for file in (tmp_path / "run" / "logs").glob("worker-*")]
    by_one, by_all, stepped = (
        [int(line.split()[-1]) for one in said for line in one if line.startswith(word)]
        for word in ("tested alone", "tested together", "stepped")
    )
    assert by_one == [tests] * (epochs // 2)
    assert sum(by_all) == epochs // 2 * tests
    assert len(by_all) > epochs // 2, "the tests of all workers were made by one"
    assert sum(stepped) == len(all_epochs) * records // 6
