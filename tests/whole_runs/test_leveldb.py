"""Nets that read LevelDBs, which only one process can open, train with several workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedo.run.config.run_config import make_config
from speedo.run.prepare import prepare
from speedo.storage.memory_store import MemoryStore
from tests.support.commands import Commands, commands
from tests.support.siamese import write_siamese
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "async": {"mode": "async"},
    "easgd": {"mode": "easgd", "local_steps": 3},
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEEDO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "leveldb"


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_a_siamese_net_trains_on_leveldb_with_two_workers(
    tmp_path: Path, cache: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "home").mkdir()
    solver = write_siamese(tmp_path / "home")
    result, _, _ = train_here(solver, MemoryStore(), tmp_path / "run", workers=2, **options)
    assert result.complete, result.reason
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    tests = [line["metrics"]["loss"] for line in lines if line["event"] == "test"]
    assert tests[-1] < 0.7 * tests[0]
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 2


def test_preparing_converts_with_a_line_counts_and_finds_them_under_the_data_root(
    tmp_path: Path, cache: Path
) -> None:
    root = tmp_path / "root"
    for folder in (root, tmp_path / "home"):
        folder.mkdir()
    solver = write_siamese(tmp_path / "home")
    for name in ("pairs_train_leveldb", "pairs_test_leveldb"):
        (tmp_path / "home" / name).rename(root / name)
    said: list[str] = []
    config = make_config(
        {"solver": solver, "data_root": root, "run_dir": tmp_path / "run", "workers": 2}
    )
    prepared = prepare(config, said.append)
    assert prepared.records == 160
    assert [line.split(" (")[0] for line in said] == [
        f"converting {root}/pairs_train_leveldb",
        f"converting {root}/pairs_test_leveldb",
    ]


@pytest.fixture
def speedo(tmp_path: Path) -> Iterator[Commands]:
    with commands(tmp_path) as started:
        yield started
        assert started.all_gone_within(15)


@pytest.mark.ray
@pytest.mark.redis
def test_two_workers_in_processes_of_their_own_read_one_leveldb(
    speedo: Commands, tmp_path: Path, cache: Path
) -> None:
    solver = write_siamese(tmp_path, max_iter=20)
    process = speedo.start(
        "train", str(solver), "--mode", "sync", "--workers", "2", "--run-dir", "run"
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("from LevelDB, which only one process can open") == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["complete"]
