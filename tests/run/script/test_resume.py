"""Checkpoints of a script's run: killed, stopped or at its end, it goes on, also with another number of workers."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from speedo.run.script_resume import read_former_run
from speedo.run_dir.checkpoint_file import checkpoints_in
from tests.faults.rows import Finding, row
from tests.faults.scripts import RECORDS, SCRIPT_MODES, ScriptRun, kept, trained
from tests.run.script.test_run_command import WAIT_S
from tests.support.commands import Commands, wait_for_line
from tests.support.invariants import read_lines

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.timeout(540)]
SCRIPT = Path(__file__).parent / "scripts" / "go_on.py"
OFTEN = ("--checkpoint-interval", "0.5")


def resumed(speedo: Commands, *words: str) -> tuple[int, str]:
    process = speedo.start("run", "--resume", "run", *words)
    _, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, errors


def each_once(epochs: int) -> Counter[tuple[int, int]]:
    return Counter({(epoch, place): 1 for epoch in range(epochs) for place in range(RECORDS)})


@row(
    3,
    "every process killed in mid-epoch, resumed with another number of workers, a user's script",
    SCRIPT_MODES,
    usual="async",
)
def test_a_killed_run_goes_on_with_more_workers_and_later_for_more_epochs(
    speedo: Commands, tmp_path: Path, mode: str, finding: Finding
) -> None:
    run = ScriptRun(speedo, mode, "--workers", "2", *OFTEN, str(SCRIPT), "numpy", "2", "1")
    run.wait_for(lambda: any(line["version"] > 0 for line in run.lines("checkpoint")))
    run.process.kill()
    speedo.kill_all()
    run.process.wait(WAIT_S)
    former = read_former_run(checkpoints_in(run.dir / "checkpoints")[0])
    counters = former.checkpoint.counters
    assert 0 < counters.iteration < RECORDS / 8, "it was not killed in the first epoch"
    assert former.book.settled(0) == counters.samples
    shown = (run.dir / "logs" / "worker-0.log").read_text()

    since = time.monotonic()
    run.resume("--workers", "3")
    run.wait_for(lambda: run.lines("resumed"))
    (line,) = run.lines("resumed")
    run.wait_for(lambda: run.merged_after(line))
    finding.recovered(time.monotonic() - since)
    run.wait_for(lambda: run.version >= counters.version + 3)
    run.process.send_signal(signal.SIGTERM)
    _, errors = run.process.communicate(timeout=WAIT_S)
    assert run.process.returncode == 143, errors
    assert (
        f"resumed at iteration {counters.iteration} (version {counters.version}), in epoch 0"
        in errors
    )
    assert "run.keep of 2 of 3 workers; the others begin with those of worker 0" in errors
    assert errors.count("begins at") == 1, "the former output of worker 0 is shown again"
    ((n, weights),) = re.findall(r"begins at (\d+) (.*)", errors)
    assert int(n) == counters.iteration
    assert weights == str(former.checkpoint.center.round(3).tolist())
    assert int(re.findall(r"restored (\d+)", errors)[0]) <= counters.iteration
    assert "restored" not in shown

    status, errors = resumed(speedo, str(SCRIPT), "numpy", "3", "0")
    assert status == 0, errors
    assert "optimizer and run.keep of 3 of 3 workers" in errors
    assert trained(kept(read_lines(tmp_path / "run" / "metrics.jsonl"))) == each_once(3)
    steps = [
        line["iteration"]
        for line in kept(read_lines(tmp_path / "run" / "metrics.jsonl"))
        if line.get("decision") == "merged"
    ]
    assert steps == sorted(steps)
    assert speedo.left() == []


@pytest.mark.torch
def test_one_worker_in_rounds_is_the_same_to_the_bit_after_a_kill_and_after_its_end(
    speedo: Commands, tmp_path: Path
) -> None:
    """Adam's moments, the rate of a scheduler that is kept, and the order of the records all matter here."""
    words = ("--workers", "1", "--mode", "sync", "--seed", "7", *OFTEN)
    whole = speedo.start("run", "--run-dir", "whole", *words, str(SCRIPT), "adam", "3", "0")
    _, errors = whole.communicate(timeout=WAIT_S)
    assert whole.returncode == 0, errors
    process = speedo.start("run", "--run-dir", "run", *words, str(SCRIPT), "adam", "2", "0.1")
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"checkpoint"', 60)
    speedo.kill_all()
    process.wait(WAIT_S)
    for epochs in ("2", "3"):
        status, errors = resumed(speedo, str(SCRIPT), "adam", epochs, "0")
        assert status == 0, errors
        assert "optimizer and run.keep of 1 of 1 workers" in errors
    assert trained(kept(read_lines(tmp_path / "run" / "metrics.jsonl"))) == each_once(3)
    one, other = np.load(tmp_path / "run" / "model.npz"), np.load(tmp_path / "whole" / "model.npz")
    for name in other:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
