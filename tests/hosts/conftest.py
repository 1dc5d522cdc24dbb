from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands, commands
from tests.support.network import Host, network


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(3) as made:
        yield made


@pytest.fixture
def speedo(tmp_path: Path, hosts: list[Host]) -> Iterator[Commands]:
    with commands(tmp_path) as made:
        yield made
