"""A mode is one file: laid into the package, it is found, said, checked, phased and trained with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from speedo.errors import ConfigError
from speedo.exchange.vector import Vector
from speedo.run.config.run_config import make_config
from speedo.sgd_modes import registry
from speedo.sgd_modes.rules import NO_STATE, AverageDeltas, Contribution, State

MODE = '''
"""Every other result is discarded: a mode for this test."""

from dataclasses import dataclass
from typing import Annotated

from speedo.system.bounds import Option, Whole
from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.base import Mode
from speedo.sgd_modes.rules import AddDelta, MergeRule


@dataclass
class EveryOther:
    rule: MergeRule
    every: Annotated[int, Option("Merge each N-th result.", Whole(1, 99), source="a guess")] = 2
    local_steps: int = 1
    name: str = "every-other"
    seen: int = 0

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        return Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        self.seen += 1
        worker = (result.worker,)
        if self.seen % self.every:
            return Decision(discard=worker, train=worker, why="not its turn")
        return Decision(merge=worker, train=worker)

    def on_leave(self, worker: int) -> Decision:
        return NOTHING


MODE = Mode("every-other", EveryOther, (AddDelta,), "this test", 2020, overlaps=True)
'''

# In a process of its own: a mode is found when the package is first imported.
PROGRAM = """
import json, sys
from speedo import sgd_modes

sgd_modes.__path__.append(sys.argv[1])

from click.testing import CliRunner

from speedo.cli.main import main
from speedo.run.config.formats import parse_phase
from speedo.run.config.run_config import make_config
from speedo.errors import ConfigError
from speedo.master.plan import Plan
from speedo.sgd_modes.registry import MODES, make_strategy
from tests.support.simulation.simulate import simulate
from tests.support.option_tables import markdown


def trained(options):
    config = make_config(options)
    plan = Plan(16, max_iter=20, workers=config.workers)
    run = simulate(make_strategy(config, 16), plan, seed=1)
    return [run.outcome.complete, run.outcome.iteration, run.trace.text().count("discarded")]


def problems(options):
    try:
        make_config(options)
    except ConfigError as error:
        return error.problems


phases = [parse_phase("every-other:4,every=3"), parse_phase("sync:4")]
print(json.dumps({
    "modes": MODES,
    "help": CliRunner().invoke(main, ["train", "--help-all"], terminal_width=200).output,
    "docs": markdown(),
    "low": problems({"mode": "every-other", "every": 0}),
    "elsewhere": problems({"mode": "sync", "every": 3}),
    "usual": make_strategy(make_config({"mode": "every-other"}), 16).every,
    "overlap": make_config({"mode": "every-other", "overlap": "far"}).overlap,
    "plain": trained({"mode": "every-other", "every": 4}),
    "hybrid": trained({"mode": "hybrid", "phases": phases}),
}))
"""


@pytest.mark.processes
def test_a_mode_that_is_one_file_is_found_said_checked_and_trained_with(tmp_path: Path) -> None:
    (tmp_path / "every_other.py").write_text(MODE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["modes"] == [
        "sync", "async", "partial", "easgd", "weed-out", "every-other", "hybrid",
    ]  # fmt: skip
    assert "every-other: merge each N-th result.  [default: 2]" in " ".join(
        told["help"].split("\n")
    )
    assert (
        "| `--mode ...,every=N` | every-other: merge each N-th result. | 1 to 99 | 2 | a guess |"
        in told["docs"]
    )
    assert told["low"] == ["every is 0: use 1 to 99"]
    assert told["elsewhere"] == [
        "every is 3, but mode sync does not use it; use --mode every-other, or leave every out"
    ]
    assert (told["usual"], told["overlap"]) == (2, "far")
    complete, iteration, discarded = told["plain"]
    assert (complete, iteration) == (True, 20)
    assert discarded >= 3 * 20
    assert told["hybrid"][:2] == [True, 20]
    assert told["hybrid"][2] > 0


@dataclass(frozen=True)
class Halved(AverageDeltas):
    """A rule for this test: half of the mean."""

    name: ClassVar[str] = "Halved"

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        super().merge(center, contributions, rate / 2, iteration, state)


def test_a_rule_that_teams_do_not_know_is_refused_without_team_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A team sums by itself, and would pass over the rule in silence."""
    monkeypatch.setitem(registry.PLAIN, "sync", replace(registry.PLAIN["sync"], rules=(Halved,)))
    with pytest.raises(ConfigError) as refused:
        make_config({"mode": "sync"})
    assert list(refused.value.problems) == [
        (
            "team is host, but the workers of a host cannot sum for Halved, the rule of mode sync, "
            "as it does not say by_mean; use --team off"
        )
    ]
    config = make_config({"mode": "sync", "team": "off"})
    assert not config.teams
    assert isinstance(registry.make_strategy(config, 16).rule, Halved)


def test_a_team_sums_for_a_mode_only_where_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode with rounds may leave results out: a team that sums them all would ignore what it was asked for."""
    assert make_config({"workers": 3}).teams
    assert not make_config({"workers": 3, "backup_workers": 1}).teams
    silent = replace(registry.PLAIN["sync"], sums=False)
    monkeypatch.setitem(registry.PLAIN, "sync", silent)  # type: ignore[misc]
    assert not make_config({"workers": 3}).teams
