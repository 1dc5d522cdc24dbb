"""A Ray cluster that is not there, or cannot be used from here, is an error with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.actors.fleet.connection import address_of
from speedo.errors import ClusterError
from tests.support.commands import Commands

pytestmark = pytest.mark.ray


def test_auto_is_the_address_of_the_environment_or_left_to_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert address_of("auto") == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of("auto") == "10.0.0.1:6379"
    assert address_of("10.0.0.2:6379") == "10.0.0.2:6379"
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1:8265")
    with pytest.raises(ClusterError, match="by `ray job submit`"):
        address_of("auto")


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_ends_the_command_before_anything_is_made(
    speedo: Commands, tmp_path: Path, problem: Path
) -> None:
    process = speedo.start(
        "train", "--ray", "127.0.0.1:1", "--workers", "1", "--run-dir", "run", str(problem)
    )
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1, errors
    assert errors == (
        "speedo: no Ray cluster answers at 127.0.0.1:1: correct --ray, or start its head\n"
    )
    assert not (tmp_path / "run").exists()
