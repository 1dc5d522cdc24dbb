"""Which runs can have a standby; the others are told why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from speedo.engines.solver import read_solver
from speedo.errors import ClusterError
from speedo.run.config.run_config import RunConfig, make_config
from speedo.run.prepare import run_settings
from speedo.run.settings import RunSettings
from speedo.run.standby_terms import StandbyTerms, can_have_standby
from tests.support.nets import net_text, write_data, write_solver

FAR = "redis://10.0.0.9:6379"


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    write_data(tmp_path)
    net = net_text(train=str(tmp_path / "train"), test=str(tmp_path / "test"))
    return write_solver(tmp_path, net)


def of(solver: Path, **options: object) -> tuple[RunConfig, RunSettings]:
    config = make_config({"solver": solver, "host": "10.0.0.5", **options})
    return config, run_settings(config, read_solver(solver), "0123456789ab")


@pytest.mark.parametrize(
    "redis", [None, "redis://127.0.0.1:6379", "redis://localhost", "unix:///run/redis"]
)
def test_a_redis_on_the_masters_machine_is_lost_with_it(solver: Path, redis: str | None) -> None:
    config, settings = of(solver, redis=redis)
    assert not can_have_standby(config, settings)
    with pytest.raises(
        ClusterError, match="start the master with --redis URL, of a Redis on a third"
    ):
        StandbyTerms.of(config, settings, 10)


def test_servers_of_the_center_are_no_redis(solver: Path) -> None:
    config, settings = of(solver, redis=FAR, servers="2", mode="async")
    assert not can_have_standby(config, settings)
    with pytest.raises(ClusterError, match="started with --servers"):
        StandbyTerms.of(config, settings, 10)


def test_a_run_with_a_redis_elsewhere_can(solver: Path) -> None:
    config, settings = of(solver, redis=FAR)
    assert can_have_standby(config, settings)
    assert StandbyTerms.of(config, settings, 10) == StandbyTerms(config, settings, 10)


def test_another_version_or_other_records_are_refused(solver: Path, tmp_path: Path) -> None:
    config, settings = of(solver, redis=FAR)
    other = StandbyTerms(config, replace(settings, version="0.0.1"), 10)
    with pytest.raises(ClusterError, match=r"the master has 0\.0\.1"):
        other.prepared("10.0.0.7", None, tmp_path / "run", None, print)
    fewer = StandbyTerms(config, settings, 1_000_000)
    with pytest.raises(ClusterError, match="but the master 1000000: copy the master's data"):
        fewer.prepared("10.0.0.7", None, tmp_path / "run", None, print)
    assert not (tmp_path / "run").exists()
