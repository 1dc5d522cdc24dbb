from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from speedo.monitor.control_socket import RUNTIME_VARIABLE
from tests.support.commands import Commands, commands


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's sockets; it does not exist yet."""
    folder = tmp_path / "runtime"
    monkeypatch.setenv(RUNTIME_VARIABLE, str(folder))
    return folder


@pytest.fixture
def speedo(tmp_path: Path) -> Iterator[Commands]:
    with commands(tmp_path) as made:
        yield made
