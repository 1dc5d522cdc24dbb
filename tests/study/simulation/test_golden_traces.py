"""Whole scenarios as readable transcripts in `golden/`, compared to the byte.

After an intended change: `pytest tests/study/simulation/test_golden_traces.py --rewrite-traces`; read the diff.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speedo.master.driver import Limits
from speedo.master.plan import Plan
from speedo.messages import Event, Trained
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

FOLDER = Path(__file__).parent / "golden"
LINES = 60

BATCH = 10
Script = Callable[[SimulatedCluster], None]


def scenario(
    options: dict[str, Any],
    *,
    iterations: int,
    workers: int = 3,
    min_workers: int = 1,
    slowness: tuple[float, ...] = (1.0, 1.3, 1.9),
    script: Script = lambda cluster: None,
) -> str:
    """The trace of a run without jitter: the workers' turns of one step last 0.1 s times `slowness`."""
    simulation = simulate(
        make_strategy(make_config(options), BATCH),
        Plan(BATCH, iterations, workers=workers, min_workers=min_workers),
        world=World(jitter=0.0, slowness=lambda worker: slowness[worker % len(slowness)]),
        script=script,
        limits=Limits(join_s=5.0),
    )
    return simulation.trace.text()


def change_results(change: Callable[[SimulatedCluster, Trained], Event | None]) -> Script:
    """Let `change(cluster, result)` decide what the driver hears of each result."""

    def script(cluster: SimulatedCluster) -> None:
        cluster.deliver = lambda event: (
            change(cluster, event) if isinstance(event, Trained) else event
        )

    return script


def poison_worker_1(cluster: SimulatedCluster, result: Trained) -> Event | None:
    if result.worker == 1:
        cluster.poison(1, result.ticket)
    return result


def repeat_and_delay(cluster: SimulatedCluster, result: Trained) -> Event | None:
    """Worker 0 says everything twice; worker 1 is cut off in ticket 2, whose result comes later."""
    if result.ticket == 2:
        cluster.at(cluster.now + 0.25, lambda: result)
        cluster.die(1, cluster.now, "cut off")
        return None
    if result.worker == 0:
        cluster.at(cluster.now + cluster.world.latency_s, lambda: result)
    return result


def all_die_and_return(cluster: SimulatedCluster) -> None:
    cluster.die(0, 0.25)
    cluster.die(1, 0.26)
    cluster.join(1, 1.0)
    cluster.join(0, 1.05)


SCENARIOS: dict[str, Callable[[], str]] = {
    "async": lambda: scenario({"mode": "async"}, iterations=10),
    "sync": lambda: scenario({"mode": "sync"}, iterations=9),
    "easgd": lambda: scenario({"mode": "easgd", "local_steps": 2}, iterations=16),
    "partial_holds_the_fastest": lambda: scenario(
        {"mode": "partial", "max_advance": 2}, iterations=12, slowness=(1.0, 1.1, 4.0)
    ),
    "partial_catches_up": lambda: scenario(
        {"mode": "partial", "max_advance": 2, "catch_up": True},
        iterations=12,
        slowness=(1.0, 1.1, 4.0),
    ),
    "weed_out_discards_the_slowest": lambda: scenario(
        {"mode": "weed-out", "window": 3}, iterations=12, slowness=(1.0, 1.0, 3.5)
    ),
    "hybrid_switches_twice": lambda: scenario(
        {
            "mode": "hybrid",
            "phases": [{"mode": "async", "iterations": 4}, {"mode": "sync", "iterations": 6}],
        },
        iterations=16,
    ),
    "sync_goes_on_without_a_worker_that_dies": lambda: scenario(
        {"mode": "sync"}, iterations=8, script=lambda cluster: cluster.die(2, 0.15)
    ),
    "sync_lets_a_newcomer_in_with_the_next_round": lambda: scenario(
        {"mode": "sync"}, workers=2, iterations=10, script=lambda cluster: cluster.join(2, 0.05)
    ),
    "a_worker_that_sends_nan_is_set_aside": lambda: scenario(
        {"mode": "async"}, workers=2, iterations=6, script=change_results(poison_worker_1)
    ),
    "all_die_and_return": lambda: scenario(
        {"mode": "sync"}, workers=2, iterations=10, script=all_die_and_return
    ),
    "too_few_come_back": lambda: scenario(
        {"mode": "partial"},
        workers=2,
        min_workers=2,
        iterations=20,
        script=lambda cluster: cluster.die(1, 0.4),
    ),
    "repeated_and_late_results_are_refused": lambda: scenario(
        {"mode": "async"}, workers=2, iterations=8, script=change_results(repeat_and_delay)
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_run_is_as_written_down(name: str, request: pytest.FixtureRequest) -> None:
    path, text = FOLDER / f"{name}.txt", SCENARIOS[name]()
    if request.config.getoption("--rewrite-traces"):
        path.write_text(text, encoding="utf-8")
    assert text.count("\n") < LINES
    assert text == path.read_text(encoding="utf-8")


def test_every_transcript_has_its_scenario() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SCENARIOS)
