from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands, commands
from tests.support.sabotaged_net import environment_of_torch, write_problem


@pytest.fixture
def engine() -> str:
    """The engine of the commands; `row` says with which others a row is tried."""
    return "caffe"


@pytest.fixture
def problem(tmp_path: Path, engine: str) -> Path:
    """As `problem` elsewhere, for the engine."""
    return write_problem(tmp_path / "problem", engine=engine)


@pytest.fixture
def speedo(tmp_path: Path, engine: str) -> Iterator[Commands]:
    environment = environment_of_torch(tmp_path / "problem") if engine == "torch" else None
    with commands(tmp_path, environment) as made:
        yield made
