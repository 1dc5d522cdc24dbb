from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands, commands


@pytest.fixture
def speedo(tmp_path: Path) -> Iterator[Commands]:
    with commands(tmp_path) as made:
        yield made
