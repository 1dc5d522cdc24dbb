"""A run whose loss has diverged ends early, unless it was told to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.master import divergence
from speedo.run.result import RunResult
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import LENET, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe


@pytest.fixture(autouse=True)
def every_loss_is_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the watch has its first window; which losses are too high has tests of its own."""
    monkeypatch.setattr(divergence, "SUSTAINED", 1)
    monkeypatch.setattr(divergence, "ABOVE_BEST", 0.0)
    monkeypatch.setattr(divergence, "ABOVE_START", 0.0)


def trained(home: Path, **options: bool) -> RunResult:
    write_data(home, train=240, test=40)
    solver = write_solver(home, net_text(LENET, batch=12), max_iter=80, base_lr=0.02)
    result, _, _ = train_here(solver, MemoryStore(), home / "run", workers=2, **options)
    return result


def test_a_run_that_diverged_ends_and_says_so(tmp_path: Path) -> None:
    result = trained(tmp_path)
    assert not result.complete
    assert "the loss has diverged" in result.reason
    assert result.iteration < 80


def test_a_run_goes_on_without_the_divergence_stop(tmp_path: Path) -> None:
    result = trained(tmp_path, stop_on_divergence=False)
    assert result.complete, result.reason
    assert result.iteration == 80
