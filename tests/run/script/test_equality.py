"""Workers with parts of each batch make the model of one process with whole batches, however the script trains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.run.script.test_run_command import run
from tests.support.commands import Commands

pytestmark = [
    pytest.mark.torch,
    pytest.mark.ray,
    pytest.mark.redis,
    pytest.mark.usefixtures("forked_python"),
]
SCRIPT = Path(__file__).parent / "scripts" / "equality_rows.py"
CLOSE = 1e-5
LEAST = 0.1  # that training has moved the weights, of the largest
TOGETHER = (
    *("Plain", "Momentum", "Adam", "Groups", "StepRate", "OneCycle", "Cosine", "Accumulated"),
    *(
        "AccumulatedSaid",
        "ClipNorm",
        "ClipValue",
        "Projected",
        "Scaler",
        "ScalerClip",
        "Autocast",
        "BFloat16",
    ),
    *("BatchNorm", "SyncBatchNorm", "Tied", "Frozen", "Unused", "Float64", "Fused", "Foreach"),
    *("TwoOptimizers", "Adversaries", "AdversariesTold", "Average"),
)


@pytest.mark.parametrize(
    ("workers", "rows", "mode"),
    [
        pytest.param(2, TOGETHER, "sync", id="modules"),
        pytest.param(2, ("NumPy",), "sync", id="NumPy"),
        pytest.param(1, TOGETHER, "async", id="modules-async"),
        pytest.param(4, TOGETHER, "sync", id="modules-4", marks=pytest.mark.matrix),
        *(
            pytest.param(2, (row,), "sync", id=row, marks=pytest.mark.matrix)
            for row in (*TOGETHER, "Compiled")
        ),
    ],
)
def test_workers_make_the_model_of_one_process(
    speedo: Commands, tmp_path: Path, workers: int, rows: tuple[str, ...], mode: str
) -> None:
    """20 steps with batches of 16; where deltas are merged one by one, a worker alone makes them."""
    words = ("--workers", str(workers), "--mode", mode, str(SCRIPT), str(workers), ",".join(rows))
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    for log in (tmp_path / "run" / "logs").glob("worker-*.log"):
        said = re.findall(r"^row (\w+) (\S+) (\S+)$", log.read_text(), re.MULTILINE)
        found = {name: (float(apart), float(moved)) for name, apart, moved in said}
        assert found.keys() == set(rows)
        assert {name: apart for name, (apart, _) in found.items() if not apart <= CLOSE} == {}
        assert {name: moved for name, (_, moved) in found.items() if not moved >= LEAST} == {}
