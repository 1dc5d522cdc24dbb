"""The journal of a run: in shared memory, if there is room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from speedo.engines.solver import read_solver
from speedo.run.config.run_config import make_config
from speedo.run.prepare import run_settings
from speedo.run.settings import Near
from speedo.storage.memory_store import MemoryStore
from tests.support.disks import small_disk
from tests.whole_runs.local import train_as
from tests.whole_runs.test_resume import smooth_solver

pytestmark = pytest.mark.caffe


@pytest.mark.parametrize("size", ["256k", "8m"])
def test_without_room_for_the_journal_the_run_says_so_and_goes_on(
    tmp_path: Path, size: str
) -> None:
    config = make_config({"mode": "async", "workers": 1})
    settings = run_settings(config, read_solver(smooth_solver(tmp_path, max_iter=5)), "here")
    folder = tmp_path / "memory"
    notices: list[str] = []
    with small_disk(folder, size):
        settings = replace(settings, near=Near(folder=str(folder)))
        result, _, _ = train_as(
            config, settings, MemoryStore(), tmp_path / "run", notices=notices, checkpointed=True
        )
        left = list(folder.iterdir())
    assert (result.complete, result.iteration) == (True, 5)
    told = [one for one in notices if "no journal" in one]
    if size == "8m":
        assert (told, len(left)) == ([], 2)
        return
    assert left == []
    assert len(told) == 1
    assert f"no journal in {folder} (No space left on device): if the master dies" in told[0]
