"""Teams whose members are threads of this process, over the meetings and exchanges of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.test_team_turn import InProcesses, Members


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[[Members, int], InProcesses]]:
    made: list[InProcesses] = []

    def make(members: Members, hosts: int) -> InProcesses:
        made.append(InProcesses(members, tmp_path, hosts))
        return made[-1]

    yield make
    for one in made:
        one.close()
