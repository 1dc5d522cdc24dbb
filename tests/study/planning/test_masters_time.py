"""What a result costs the master, measured with the real driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.run_dir.events import ResultMerged, read_events
from speedo.storage.memory_store import MemoryStore
from speedo.study.planning.masters_time import time_of_results


@pytest.mark.parametrize("together", [False, True])
def test_every_result_is_merged_and_written(together: bool, tmp_path: Path) -> None:
    """Else the time would be that of something else."""
    store = MemoryStore()
    took = time_of_results(4, 3, 50, (store, store), tmp_path, together=together)
    merged = [event for event in read_events(tmp_path) if isinstance(event, ResultMerged)]
    assert [event.version for event in merged] == list(range(1, 51))
    assert 0.0 < took.center < took.whole
