"""One pair of tiny databases for all tests of engines and solvers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nets import write_data


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the LMDBs `train` (64 records) and `test` (40 records)."""
    folder = tmp_path_factory.mktemp("databases")
    write_data(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, databases: Path) -> Path:
    """A folder of its own that sees the databases under their relative names."""
    for name in ("train", "test"):
        (tmp_path / name).symlink_to(databases / name)
    return tmp_path
