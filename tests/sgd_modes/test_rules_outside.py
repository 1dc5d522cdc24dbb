"""Rules that are no file of the package: in all modes that they go with, with state, with servers and teams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.config.run_config import make_config
from speedo.errors import ConfigError, TrainingStopped
from speedo.master.plan import Plan
from speedo.sgd_modes.registry import make_strategy
from speedo.simulation.simulator import Simulation, simulate
from speedo.simulation.world import World

RULES = '''
"""Rules for a test, as a user writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from speedo.bounds import Interval, Option
from speedo.sgd_modes.rules import Contribution, MergeRule, State, mean_into


@dataclass(frozen=True)
class Added(MergeRule):
    """As add-delta."""

    rounds: ClassVar = False
    by_ranges: ClassVar = True

    def rate(self, workers, staleness=0):
        return min(1.0, 2.0 / max(workers, 1))

    def merge(self, center, contributions, rate, iteration, state):
        for one in contributions:
            center += np.float32(rate) * one.vector if rate != 1 else one.vector


@dataclass(frozen=True)
class Heavy(MergeRule):
    """The mean of a round, with momentum."""

    rounds: ClassVar = True
    by_ranges: ClassVar = True
    by_mean: ClassVar = True
    vectors: ClassVar = ("momentum",)
    numbers: ClassVar = ("merges",)
    heavy: Annotated[float, Option("Momentum of the rounds.", Interval("[0, 1)", "use less than 1"))] = 0.5

    def merge(self, center, contributions, rate, iteration, state):
        mean = np.empty_like(center)
        mean_into(mean, contributions)
        momentum = state.vectors["momentum"]
        momentum *= np.float32(self.heavy)
        momentum += mean
        center += momentum
        state.numbers["merges"] += 1


@dataclass(frozen=True)
class Backwards(MergeRule):
    """Adds what is left of the way from where its worker began."""

    rounds: ClassVar = False
    by_ranges: ClassVar = True
    wants_begun: ClassVar = True

    def merge(self, center, contributions, rate, iteration, state):
        (one,) = contributions
        assert one.staleness >= 0 and one.loss == one.loss
        center += one.vector + np.float32(0.25) * (one.begun - center)


@dataclass(frozen=True)
class Normed(MergeRule):
    """Needs the whole vector."""

    rounds: ClassVar = None

    def merge(self, center, contributions, rate, iteration, state):
        center += contributions[0].vector / (1 + np.linalg.norm(center))


@dataclass(frozen=True)
class Explodes(MergeRule):
    rounds: ClassVar = False

    def merge(self, center, contributions, rate, iteration, state):
        center /= 0 if iteration > 3 else 1
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the module of RULES, which is in the folder of the command alone."""
    name = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    path = [*sys.path]
    yield name
    sys.path[:] = path


def trained(
    options: dict[str, Any], *, iterations: int = 10, servers: int = 0, **more: Any
) -> Simulation:
    config = make_config({"workers": 3, **options})
    world = World(jitter=0.0, slowness=lambda worker: (1.0, 1.3, 1.9)[worker % 3])
    plan = Plan(10, iterations, workers=3, teams=config.teams)
    return simulate(make_strategy(config, 10), plan, world=world, servers=servers, **more)


def test_a_rule_like_add_delta_gives_the_golden_trace_of_async_to_the_byte(outside: str) -> None:
    golden = Path(__file__).parents[1] / "simulation" / "golden" / "async.txt"
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
