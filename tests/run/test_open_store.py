"""The store of a process on the master's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.run.open_store import is_near, this_machine
from speedo.run.settings import Near


@pytest.mark.parametrize("folder", [True, False])
def test_who_begins_while_redis_starts_again_is_near_all_the_same(
    tmp_path: Path, folder: bool
) -> None:
    """Its socket is gone then; what is in shared memory alone would not be found in Redis."""
    home, memory = tmp_path / "redis", tmp_path / "memory"
    home.mkdir()
    memory.mkdir()
    near = Near(
        this_machine(), str(memory) if folder else "", str(home / "socket"), by_memory=folder
    )
    assert is_near(near), "the socket is not there yet"
    (home / "socket").touch()
    assert is_near(near)
    (home / "socket").unlink()
    home.rmdir()
    assert not is_near(near), "another file system, or the run has ended"
    assert not is_near(Near("another", str(memory), "", by_memory=True))
