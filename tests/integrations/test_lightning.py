"""Lightning in a run of two workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import Commands

pytestmark = [
    *(pytest.mark.torch, pytest.mark.libraries, pytest.mark.ray, pytest.mark.redis),
    pytest.mark.usefixtures("forked_python"),
]


def test_fit_trains_each_record_once_and_both_workers_validate_after_each_epoch(
    speedo: Commands, tmp_path: Path
) -> None:
    from tests.integrations.one_process import one_process, run_library

    logs = run_library(speedo, tmp_path, "lightning", one_process(decay=0.5))
    for text in logs:
        assert re.findall(r"validates at rate (.*)", text) == ["0.025", "0.0125", "0.00625"]
    (checkpoint,) = tmp_path.glob("lightning_logs/*/checkpoints/*")
    assert checkpoint.name == "epoch=2-step=15.ckpt"  # the first worker's
