"""PyTorch's modules in a user's script, with `speedo run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.script.test_run_command import lines_of, run
from tests.support.commands import Commands

pytestmark = [pytest.mark.torch, pytest.mark.ray, pytest.mark.redis]
SCRIPT = Path(__file__).parent / "scripts" / "fit_torch.py"
STEPS = 40  # of that script with both halves


def test_workers_in_rounds_make_the_model_of_one_process(speedo: Commands, tmp_path: Path) -> None:
    """SGD with momentum, a step to a round: the mean of two workers' steps is the step on both batches.

    Which worker has which half of a round is not fixed, and so is the rounding: at most that of each step.
    """
    words = ("--workers", "2", "--mode", "sync", str(SCRIPT), "8")
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    alone = subprocess.run(
        [sys.executable, str(SCRIPT), "16", str(tmp_path / "alone.npz")],
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    ours, theirs = np.load(tmp_path / "run" / "model.npz"), np.load(tmp_path / "alone.npz")
    assert set(ours) == set(theirs)
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        reach = STEPS * np.finfo(np.float32).eps * max(float(np.abs(theirs[name]).max()), 1)
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=reach)
    losses = [line["loss"] for line in lines_of(tmp_path) if line["event"] == "result"]
    assert losses == [None] * len(losses)  # this script says none
