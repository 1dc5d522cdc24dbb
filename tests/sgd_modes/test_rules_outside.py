"""Rules that are no file of the package: in all modes that they go with, with state, with servers and teams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.errors import ConfigError, TrainingStopped
from speedo.master.plan import Plan
from speedo.run.config.formats import parse_phase
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import (
    folders_outside,
    make_strategy,
    parts_outside,
    rules_outside,
)
from tests.support.outside import outside as outside
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.world import World


def trained(
    options: dict[str, Any], *, iterations: int = 10, servers: int = 0, **more: Any
) -> Simulation:
    config = make_config({"workers": 3, **options})
    world = World(jitter=0.0, slowness=lambda worker: (1.0, 1.3, 1.9)[worker % 3])
    plan = Plan(10, iterations, workers=3, teams=config.teams)
    return simulate(make_strategy(config, 10), plan, world=world, servers=servers, **more)


def test_a_rule_like_add_delta_gives_the_golden_trace_of_async_to_the_byte(outside: str) -> None:
    golden = Path(__file__).parents[1] / "study" / "simulation" / "golden" / "async.txt"
    run = trained({"mode": "async", "rule": f"{outside}:Added"})
    assert run.trace.text() == golden.read_text(encoding="utf-8")
    usual = trained({"mode": "async"})
    assert run.center.vector.tobytes() == usual.center.vector.tobytes()


@pytest.mark.parametrize(
    ("mode", "rule"), [("sync", "Heavy"), ("async", "Backwards"), ("async", "Added")]
)
def test_servers_merge_as_the_master_does_with_state_and_weights_begun_from(
    outside: str, mode: str, rule: str
) -> None:
    options = {"mode": mode, "rule": f"{outside}:{rule}", "team": "off"}
    one, two = trained(options), trained(options, servers=2)
    assert one.trace.text() == two.trace.text()
    assert one.center.vector.tobytes() == two.center.vector.tobytes()
    assert one.center.state.pack() == two.center.state.pack()


def test_momentum_of_rounds_is_what_the_equation_says(outside: str) -> None:
    run = trained({"mode": "sync", "rule": f"{outside}:Heavy", "heavy": 0.0, "team": "off"})
    assert (
        run.center.vector.tobytes()
        == trained({"mode": "sync", "team": "off"}).center.vector.tobytes()
    )
    heavy = trained({"mode": "sync", "rule": f"{outside}:Heavy", "team": "off"})
    assert heavy.center.state.numbers == {"merges": float(heavy.outcome.version)}
    assert np.abs(heavy.center.vector - run.center.vector).max() > 1e-3


def test_a_team_carries_a_rule_of_means(outside: str) -> None:
    options = {"mode": "sync", "rule": f"{outside}:Heavy"}
    alone = trained({**options, "team": "off"}, iterations=9, momentum=0.5)
    team = trained(options, iterations=9, momentum=0.5, places=lambda worker: "here")
    assert team.outcome.samples == alone.outcome.samples
    assert team.center.state.numbers == alone.center.state.numbers
    np.testing.assert_allclose(team.center.vector, alone.center.vector, rtol=1e-5)


def test_a_mode_and_a_rule_outside_the_package_are_phases_of_hybrid(outside: str) -> None:
    phases = [
        parse_phase(f"{outside}:EveryOther:4,every=3"),
        parse_phase(f"sync:4,rule={outside}:Heavy,heavy=0.2"),
    ]
    config = make_config({"mode": "hybrid", "phases": phases, "team": "off", "workers": 3})
    assert [part.foreign for part in config.phases] == [{"every": 3}, {"heavy": 0.2}]
    assert len(parts_outside(config)) == 2
    assert rules_outside(config) == (f"{outside}:Heavy",)
    assert Path(folders_outside(config), f"{outside}.py").is_file()  # servers look there, too
    one, two = (
        simulate(make_strategy(config, 10), Plan(10, 16, workers=3), servers=count)
        for count in (0, 2)
    )
    assert one.outcome.complete
    assert one.center.vector.tobytes() == two.center.vector.tobytes()
    assert any(line.count("not its turn") for line in one.trace.text().splitlines())
    with pytest.raises(ConfigError, match="hybrid"):
        make_config({"mode": "hybrid", "phases": [{"mode": "hybrid", "iterations": 4}]})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "for another schedule": (
        {"mode": "sync", "rule": "Added"},
        (
            "rule M:Added does not go with mode sync: it merges each result as it comes; use --mode async, partial or "
            "weed-out"
        ),
    ),
    "for rounds": (
        {"mode": "async", "rule": "Heavy"},
        "rule M:Heavy does not go with mode async: it merges the results of a round; use --mode sync",
    ),
    "an option beyond its bound": (
        {"mode": "sync", "rule": "Heavy", "heavy": 1.5},
        "heavy is 1.5: use less than 1",
    ),
    "an option of another type": (
        {"mode": "sync", "rule": "Heavy", "heavy": "much"},
        "heavy is 'much'; use a value of type float",
    ),
    "another rule's option": (
        {"mode": "async", "rule": "Added", "delta_scale": 0.5},
        "delta_scale is 0.5, but rule M:Added does not use it; leave one of the two out",
    ),
    "teams": (
        {"mode": "sync", "rule": "Normed"},
        (
            "team is host, but the workers of a host cannot sum for Normed, the rule of mode sync, as it does not say "
            "by_mean; use --team off"
        ),
    ),
    "servers": (
        {"mode": "async", "rule": "Normed", "servers": "2"},
        (
            "servers are asked for, but rule Normed does not say by_ranges, so no server can merge its range by "
            "itself; use --servers 0"
        ),
    ),
    "overlap": (
        {"mode": "async", "rule": "Added", "overlap": "all"},
        (
            "overlap is given, but only with rule add-delta or elastic a worker knows what becomes of its result; "
            "leave it out with rule Added"
        ),
    ),
    "weights": (
        {"mode": "easgd", "rule": "Normed"},
        (
            "rule M:Normed does not go with mode easgd: it merges deltas, and workers of this mode send weights; use "
            "--mode sync, async, partial or weed-out"
        ),
    ),
    "no such class": ({"mode": "async", "rule": "Nobody"}, "M:Nobody: M has no Nobody"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_rule_cannot_do_is_said(outside: str, name: str) -> None:
    options, problem = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        make_config({**options, "rule": f"{outside}:{options['rule']}"})
    told = [text.replace(outside, "M") for text in refused.value.problems]
    assert problem in told


def test_a_rule_that_explodes_ends_the_run_with_the_center_before_it(outside: str) -> None:
    with pytest.raises(TrainingStopped, match=r"rule Explodes at iteration 4: .*not finite"):
        trained({"mode": "async", "rule": f"{outside}:Explodes"})
