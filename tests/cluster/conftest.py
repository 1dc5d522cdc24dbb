from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.commands import Commands, commands
from tests.faults.nets import write_problem


@pytest.fixture
def speedo(tmp_path: Path) -> Iterator[Commands]:
    with commands(tmp_path) as made:
        yield made


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A solver for runs that go on until a test has seen enough: its workers rest most of the time."""
    return write_problem(tmp_path / "problem")
