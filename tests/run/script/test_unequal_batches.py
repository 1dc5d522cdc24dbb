"""Scripts of unequal speeds in sync: their batches are divided by speed, and the model is that of one process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.faults.scripts import trained
from tests.run.script.test_run_command import WAIT_S, script_of
from tests.support.commands import Commands, wait_for_line
from tests.support.invariants import read_lines
from tests.support.throttled import throttle

pytestmark = [
    pytest.mark.torch,
    pytest.mark.ray,
    pytest.mark.redis,
    pytest.mark.usefixtures("forked_python"),
]
SCRIPT = Path(__file__).parent / "scripts" / "fit_slowly.py"
RECORDS, BATCH = 1290, 32


@pytest.mark.parametrize(
    "how",
    [
        "plain",
        *(pytest.param(how, marks=pytest.mark.matrix) for how in ("normalized", "dropped")),
        pytest.param("accumulated", marks=pytest.mark.matrix),
    ],
)
def test_a_slow_scripts_batches_become_smaller_and_the_model_stays_that_of_one_process(
    speedo: Commands, tmp_path: Path, how: str
) -> None:
    """Not where its loader drops the last batch, or where its steps have several backward passes."""
    epochs, run = 12, tmp_path / "run"
    process = speedo.start(
        *("run", "--run-dir", "run", "--seed", "0", "--workers", "2"),
        *(str(SCRIPT), "1", str(epochs), how),
    )
    wait_for_line(run / "metrics.jsonl", '"version":2,', WAIT_S, process)
    over = threading.Event()
    shares = {script_of(speedo, 1, SCRIPT).pid: 0.15}
    slow = threading.Thread(target=throttle, args=(shares, over))
    slow.start()
    try:
        _, errors = process.communicate(timeout=WAIT_S)
    finally:
        over.set()
        slow.join()
    assert process.returncode == 0, errors
    lines = read_lines(run / "metrics.jsonl")
    divided = [line["records"] for line in lines if line["event"] == "divided"]
    assert {sum(one) for one in divided} <= {2 * BATCH}
    assert bool(divided) == (how in ("plain", "normalized")), errors
    assert min(map(min, divided), default=4) >= (4 if how == "normalized" else 1)
    whole = RECORDS - RECORDS % BATCH if how == "dropped" else RECORDS
    once = Counter({(epoch, one): 1 for epoch in range(epochs) for one in range(whole)})
    assert trained(lines) == once
    if how != "plain":
        return
    file = tmp_path / "alone.npz"
    subprocess.run([sys.executable, str(SCRIPT), "2", str(epochs), how, str(file)], check=True)
    ours, theirs = np.load(run / "model.npz"), np.load(file)
    largest = max(float(np.abs(theirs[name]).max()) for name in theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-5 * largest)
