"""Three small real runs, made once: sequential Caffe, sync and easgd with two workers, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from speedo.storage.memory_store import MemoryStore
from speedo.study.comparison.sequential import main as train_alone
from speedo.watch.report.run_history import RunHistory, read_history
from tests.support.nets import LENET, net_text, write_data, write_solver
from tests.whole_runs.local import train_here

RECORDS = 64


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("report")
    write_data(folder, train=RECORDS)
    solver = write_solver(folder, net_text(LENET), max_iter=80, test_interval=20)
    config = folder / "alone.yaml"
    options = {"solver": str(solver), "max_iter": 80, "seed": 7, "test_interval": 20}
    config.write_text(yaml.safe_dump(options))
    train_alone([str(config), str(folder / "sequential")])
    for mode in ("sync", "easgd"):
        train_here(solver, MemoryStore(), folder / mode, mode=mode, workers=2)
    return [folder / name for name in ("sequential", "sync", "easgd")]


@pytest.fixture(scope="session")
def histories(run_folders: list[Path]) -> list[RunHistory]:
    return [read_history(folder) for folder in run_folders]
