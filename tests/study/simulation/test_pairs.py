"""Every pair of options in every mode: it is refused before the run, or a run with both trains to its end."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from typing import Any, Final

import numpy as np
import pytest

from speedo.engines.quadratic import RECORDS
from speedo.errors import ConfigError
from speedo.exchange.codecs import Compression
from speedo.exchange.vector import Vector
from speedo.master.plan import Plan
from speedo.master.turn_records import TurnRecords
from speedo.run.config.run_config import RunConfig, make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.schedules import MODES, solver_of
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import World

REMEDY: Final = re.compile(r"\b(?:use|leave|give|take)\b")
BATCH, ITERATIONS, WORKERS = 12, 8, 4
OF_MODES: Final[tuple[dict[str, Any], ...]] = (
    {"sync_when": "norm>0.3", "local_steps": 3},
    {"momentum_correction": True},
    {"staleness_scaling": True},
    {"backup_workers": 1},
    {"catch_up": True},
    {"rule": "add-delta"},
    {"rule": "delay-compensated"},
    {"rule": "outer-momentum"},
    {"rule": "elastic", "moving_rate": 0.2},
    {"local_steps": 3},
    {"local_steps": "1,4@9"},
    {"local_steps": "adaptive:4/5"},
    {"moving_rate": 0.3},
    {"delta_scale": 0.5},
    {"server_gradient": True},
    {"max_advance": 1},
    {"window": 3},
)
OF_RUNS: Final[tuple[dict[str, Any], ...]] = (
    {"compress": "int8"},
    {"compress": "topk:0.25"},
    {"compress_center": "bfloat16"},
    {"overlap": "all"},
    {"team": "off"},
    {"stretch": 0.0},
    {"servers": 2},
    {"data_share": "once"},
    {"target": "accuracy>=2"},
    {"min_workers": 3},
)


def config_of(mode: str, *given: dict[str, Any]) -> RunConfig:
    """Options of modes are those of the first phase of a hybrid run, whose second is asynchronous."""
    options = {"mode": mode, "workers": WORKERS}
    own: dict[str, Any] = {}
    for one in given:
        (own if one in OF_MODES else options).update(one)
    if mode != "hybrid":
        return make_config(options | own)
    phases = [{"mode": "sync", "iterations": 3} | own, {"mode": "async"}]
    return make_config(options | {"phases": phases})


def trained(config: RunConfig) -> tuple[int, Vector]:
    """The samples merged by a run with these options, and its center."""
    once = config.data_share == "once"
    plan = Plan(
        BATCH,
        ITERATIONS,
        WORKERS,
        min_workers=config.min_workers,
        teams=config.teams,
        over_hosts=config.teams,
        stretch_s=config.stretch if config.compress == "none" else 0.0,
        once=once,
    )
    book = TurnRecords.of_run(RECORDS, plan.samples, 0, b"", lambda text: None) if once else None
    solver: Any = None
    if any(one.server_gradient for one in config.phases or (config,)):
        solver = solver_of
    servers = 0 if config.servers == "auto" else int(config.servers)

    def update(gradient: Vector, center: Vector, *_: object, **__: object) -> None:
        center -= np.float32(0.05) * gradient

    found = simulate(
        make_strategy(config, BATCH, update),
        plan,
        world=World(compression=Compression(config.compress, config.compress_center)),
        samples_per_step=BATCH // WORKERS,
        lr=0.02,
        keep_trace=False,
        overlap=range(WORKERS) if config.overlap != "none" else (),
        places=(lambda worker: f"host {worker % 2}") if config.teams else None,
        servers=servers,
        solver=solver,
        records=book,
    )
    assert found.outcome.complete, found.outcome
    return found.outcome.samples, found.center.vector


def outcome_of(mode: str, *given: dict[str, Any]) -> str:
    try:
        config = config_of(mode, *given)
    except ConfigError as error:
        return "refused" if REMEDY.search(str(error)) else f"refused without a remedy: {error}"
    samples, center = trained(config)
    assert samples >= BATCH * ITERATIONS
    assert np.isfinite(center).all()
    return "trained"


@pytest.mark.parametrize("mode", MODES)
def test_two_options_are_refused_together_or_train_together(mode: str) -> None:
    counts: Counter[str] = Counter()
    for pair in combinations((*OF_MODES, *OF_RUNS), 2):
        try:
            counts[outcome_of(mode, *pair)] += 1
        except Exception as error:
            error.add_note(f"mode {mode} with {pair}")
            raise
    assert set(counts) == {"refused", "trained"}, set(counts)
    assert min(counts.values()) > 50
