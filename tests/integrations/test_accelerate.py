"""Accelerate in a run of two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Commands

pytestmark = [
    *(pytest.mark.torch, pytest.mark.libraries, pytest.mark.ray, pytest.mark.redis),
    pytest.mark.usefixtures("forked_python"),
]


def test_a_loop_over_prepared_objects_trains_each_record_once(
    speedo: Commands, tmp_path: Path
) -> None:
    """Accelerate halves the loss also where a single batch is left."""
    from tests.integrations.one_process import one_process, run_library

    right = one_process(accumulates=2, rest=0.5)
    logs = run_library(speedo, tmp_path, "accelerate", right)
    assert "first: True 0 5\n" in logs[0]
    assert "first: False 1 5\n" in logs[1]
