"""Hugging Face's Trainer in a run of two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Commands

pytestmark = [
    *(pytest.mark.torch, pytest.mark.libraries, pytest.mark.ray, pytest.mark.redis),
    pytest.mark.usefixtures("forked_python"),
]


def test_train_trains_each_record_once_and_the_first_worker_writes_checkpoints(
    speedo: Commands, tmp_path: Path
) -> None:
    from tests.integrations.one_process import one_process, run_library

    logs = run_library(speedo, tmp_path, "hugging_face", one_process(accumulates=2))
    assert "first: True steps: 9\n" in logs[0]
    assert "first: False steps: 9\n" in logs[1]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("checkpoint-3", "checkpoint-6", "checkpoint-9")
    }
