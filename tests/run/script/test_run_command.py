"""`speedo run` as a user runs it, with a script of NumPy's: no Caffe, no solver, a process for each worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.faults.rows import row
from tests.faults.scripts import EACH_ONCE, RECORDS, SCRIPT_MODES, options_of, trained
from tests.faults.scripts import FIT as SCRIPT
from tests.support.commands import Commands, how_loaded, wait_for_line
from tests.support.invariants import read_lines
from tests.support.processes import environment_of

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.usefixtures("forked_python")]
WAIT_S = 200
RIGHT = [1.0, -2.0, 3.0]


def run(speedo: Commands, *words: str) -> tuple[int, str, str]:
    slowly = ("--timeout", f"{120 * how_loaded():.0f}")
    process = speedo.start("run", "--run-dir", "run", *slowly, *words)
    out, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, out, errors


def script_of(speedo: Commands, worker: int, *scripts: Path) -> psutil.Process:
    """The process of this worker's script."""
    return next(
        one
        for script in scripts or (SCRIPT, SCRIPT.with_name("fit_torch.py"))
        for one in speedo.scripts(script)
        if f"worker-0.{worker}." in environment_of(one).get("SPEEDO_WORKER", "")
    )


def test_every_mode_trains_each_record_once_and_the_model_is_everybodys(
    speedo: Commands, tmp_path: Path
) -> None:
    phases = [
        word
        for mode in ("sync", "async", "partial", "weed-out", "easgd")
        for word in ("--phase", f"{mode}:18")
    ]
    status, out, errors = run(
        *(speedo, "--workers", "2", "--mode", "hybrid", *phases, str(SCRIPT)),
    )
    assert status == 0, errors
    assert out.splitlines()[-1] == str(tmp_path / "run" / "model.npz")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    assert {line["worker"] for line in lines if line["event"] == "result"} == {0, 1}
    finish = next(line for line in lines if line["event"] == "finish")
    assert (finish["complete"], finish["reason"]) == (True, "every script has ended")
    model = np.load(tmp_path / "run" / "model.npz")["w"]
    np.testing.assert_allclose(model, RIGHT, atol=0.1)
    said = [(tmp_path / "run" / "logs" / f"worker-{rank}.log").read_text() for rank in (0, 1)]
    for rank, text in enumerate(said):  # both have what the run came to
        assert f"fitted {rank} {model.round(3).tolist()}" in text
    assert "fitted 0" in errors  # worker 0 is shown
    assert "fitted 1" not in errors
    for rank in (0, 1):  # an end as it should be is no alarm
        assert f"worker {rank} on here has done its part" in errors
    assert "is gone" not in errors
    assert "samples/s" in out
    assert "images" not in out + errors
    assert json.loads((tmp_path / "run" / "result.json").read_text())["samples"] == 3 * RECORDS
    assert speedo.left() == []


def test_ctrl_c_ends_the_run_and_the_model_so_far_is_there(
    speedo: Commands, tmp_path: Path
) -> None:
    words = ("--workers", "2", "--mode", "async", str(SCRIPT), "none", "0.2")
    process = speedo.start("run", "--run-dir", "run", *words)
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"merged"', WAIT_S, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, errors
    assert (tmp_path / "run" / "model.npz").is_file()
    assert "fitted 0" in errors  # it came out of its loop, with the model
    assert out.splitlines()[-1] == str(tmp_path / "run" / "model.npz")


@pytest.mark.parametrize(
    ("fault", "ends_with", "said"),
    [
        pytest.param(
            *(
                "early",
                1,
                "its script ended with status 1: ValueError: the file of settings is not",
            ),
            marks=pytest.mark.matrix,
        ),
        ("never-joins", 1, "fit.py ended without a call of speedo.join"),
        pytest.param(
            *("no-length", 1, "run.share cannot divide a zip: it needs records with numbers"),
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            *(
                "foreign",
                1,
                "the optimizer has a parameter of shape (2, 3) that the model does not",
            ),
            marks=[pytest.mark.matrix, pytest.mark.torch],
        ),
        ("raises", 3, "ValueError: no such column"),
        pytest.param(
            *("never-steps", 1, "without a step: train inside of it, with run.step()"),
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            *("shape", 1, "w of shape (3,) instead of w of shape (4,)"), marks=pytest.mark.matrix
        ),
        ("nan", 3, "it is not finite (NaN or infinity)"),
        ("other-data", 1, ": the checksum of record 120 is "),
    ],
)
def test_a_script_that_cannot_train_ends_the_run_with_the_cause(
    speedo: Commands, fault: str, ends_with: int, said: str
) -> None:
    workers = "2" if fault in ("shape", "nan", "other-data") else "1"  # the second is at fault
    words = ("--workers", workers, "--restarts", "0", "--mode", "async", str(SCRIPT), fault)
    status, _, errors = run(speedo, *words)
    assert status == ends_with
    assert said in errors
    assert any(said in line for line in errors.splitlines() if line.startswith("speedo: "))
    raised = fault in ("early", "no-length", "foreign", "raises", "never-steps")
    if fault == "other-data":  # who comes second raises it, and worker 0 is the one that is shown
        raised = "the data of worker 0 is not that of worker 1" in errors
    assert errors.count("Traceback (most recent call last)") == raised  # of worker 0
    assert "most recent call first" not in errors  # the threads of its actor
    assert speedo.left() == []


@row(
    18,
    "a user's script raises in one worker, exits in another, and leaves early in a third",
    SCRIPT_MODES,
    "async",
)
def test_workers_that_end_as_they_should_not_leave_their_records_to_the_others(
    speedo: Commands, tmp_path: Path, mode: str
) -> None:
    """One leaves early, one raises, one exits, and the first joins a second time."""
    script = SCRIPT.with_name("misused.py")
    words = ("--workers", "4", "--restarts", "0", *options_of(mode), str(script))
    status, out, errors = run(speedo, *words)
    assert status == 0, errors
    assert out.splitlines()[-1] == str(tmp_path / "run" / "model.npz")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    causes = {line["worker"]: line["cause"] for line in lines if line["event"] == "left"}
    assert causes[1] == "its script has ended"
    # On a busy machine what a script has raised is known, and not yet that it has ended.
    assert causes[2].endswith("ValueError: no such column")
    assert causes[3] == "its script has ended"  # sys.exit() without a status is a success
    np.testing.assert_allclose(np.load(tmp_path / "run" / "model.npz")["w"], RIGHT, atol=0.1)
    assert "told: speedo.join is called once more" in errors


CLOSURE = """
import torch, speedo
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters())
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3)).square().mean()
    loss.backward()
    return loss
with speedo.join(model, optimizer) as run:
    for _ in range(5):
        optimizer.step(closure)
"""
GOES_ON = """
import numpy as np, speedo, time
from speedo.run.script import joined_run
joined_run.GOES_ON_S = 0.5
w = np.zeros(3, np.float32)
with speedo.join({"w": w}) as run:
    while True:
        w += 1
        run.step()
        time.sleep(0.01)
run.print("said once")
run.save("once.npz", {"rank": run.rank})
print("goes on after the block", hash("a set has one order"), flush=True)
"""


@pytest.mark.torch
def test_a_mistake_that_each_worker_would_make_again_ends_the_run_with_one_message(
    speedo: Commands, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CLOSURE)
    status, _, errors = run(speedo, "--workers", "2", "--restarts", "5", str(script))
    assert status == 1, errors
    assert "restarting" not in errors
    *_, last = errors.splitlines()
    assert last.startswith(
        "speedo: nothing was trained: stopped by a mistake in the script (worker "
    )
    assert "optimizer.step(closure) computes gradients while it steps" in last


def test_a_loop_that_does_not_ask_whether_the_run_is_over_ends(
    speedo: Commands, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(GOES_ON)
    words = ("--workers", "2", "--mode", "async", "--max-iter", "20", str(script))
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    logs = [(tmp_path / "run" / "logs" / f"worker-{one}.log").read_text() for one in (0, 1)]
    (before, after), (others, other) = (one.rsplit("\ngoes on after the block ", 1) for one in logs)
    assert before.endswith("a loop that asks run.should_stop ends by itself\nsaid once")
    assert "said once" not in others
    assert np.load(tmp_path / "once.npz")["rank"] == 0
    assert after == other  # Python's hashes


@pytest.mark.matrix
def test_a_script_may_load_for_as_long_as_timeout_says(speedo: Commands, tmp_path: Path) -> None:
    """Without it two minutes are all that a worker has to start."""
    words = ("--timeout", "600", "--workers", "1", "--mode", "async", str(SCRIPT), "loads-long")
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    assert trained(read_lines(tmp_path / "run" / "metrics.jsonl")) == EACH_ONCE


def test_a_script_that_fails_after_the_training_is_told(speedo: Commands, tmp_path: Path) -> None:
    status, _, errors = run(speedo, "--workers", "1", "--mode", "async", str(SCRIPT), "late")
    assert status == 1
    assert "worker 0: its script ended with status 1: ValueError: the report cannot" in errors
    assert (tmp_path / "run" / "model.npz").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.py"], "nothing.py is not a file; give the path of a Python script"),
        (["--mode", "hybrid", "--phase", "async:9,lr=0.1", str(SCRIPT)], "has its own optimizer"),
        (["--workers", "0", str(SCRIPT)], "workers is 0: use 1 to"),
    ],
)
def test_what_a_script_cannot_have_is_refused_before_anything_is_made(
    speedo: Commands, tmp_path: Path, words: list[str], said: str
) -> None:
    status, _, errors = run(speedo, *words)
    assert status == 2, errors
    assert said in errors
    assert not (tmp_path / "run").exists()


def test_weights_that_the_model_refuses_leave_no_directory(
    speedo: Commands, tmp_path: Path
) -> None:
    """It stayed with the workers' logs alone."""
    np.savez(tmp_path / "other.npz", w=np.zeros(5, np.float32))
    words = ("--workers", "2", "--mode", "async", "--weights", "other.npz", str(SCRIPT))
    status, _, errors = run(speedo, *words)
    assert status == 2, errors
    assert "other.npz has w in shape (5,), the model in shape (3,)" in errors
    assert not (tmp_path / "run").exists()


def test_collectives_meet_all_workers_of_the_run(speedo: Commands, tmp_path: Path) -> None:
    script = SCRIPT.with_name("collect.py")
    status, _, errors = run(speedo, "--workers", "3", "--mode", "sync", str(script))
    assert status == 0, errors
    for rank in range(3):
        said = (tmp_path / "run" / "logs" / f"worker-{rank}.log").read_text()
        assert "collected [0, 1, 2] [6.0, 6.0, 6.0] [2.0] [7.0] [3.]" in said
    causes = [
        line["cause"]
        for line in read_lines(tmp_path / "run" / "metrics.jsonl")
        if line["event"] == "left"
    ]
    assert causes == ["its script has ended"] * 3  # nobody was overdue


@pytest.mark.redis
def test_collectives_go_on_without_a_worker_that_dies_and_with_it_again(
    speedo: Commands, tmp_path: Path
) -> None:
    script = SCRIPT.with_name("regroup.py")
    words = ("--workers", "3", "--mode", "async", str(script), str(tmp_path / "died"))
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    logs = tmp_path / "run" / "logs"
    said = [(logs / f"worker-{rank}.log").read_text() for rank in range(3)]
    assert "met 3 broken 2 3" in said[0]
    assert "met 3 broken 2 3" in said[2]
    assert "met 3\n" in said[1]
    assert trained(read_lines(tmp_path / "run" / "metrics.jsonl")) == Counter(
        {(0, record): 1 for record in range(60)}
    )


def test_a_script_alone_is_a_run_of_one_worker() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "fitted 0" in done.stdout
