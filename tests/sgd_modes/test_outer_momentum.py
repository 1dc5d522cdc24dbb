"""Outer momentum against its equations written out, PyTorch's SGD, and itself over servers and a team."""

from __future__ import annotations

import numpy as np
import pytest

from speedo.errors import ConfigError
from speedo.exchange.vector import Vector
from speedo.master.plan import Plan
from speedo.messages import Action, Event, Train
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.rules import BLOCK, Contribution, MergeRule, State
from speedo.sgd_modes.rules.outer_momentum import OuterMomentum
from speedo.testing import check_rule
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import World


def merged(rule: MergeRule, center: Vector, state: State, *deltas: tuple[list[float], int]) -> None:
    parts = [Contribution(np.array(delta, np.float32), samples) for delta, samples in deltas]
    rule.merge(center, parts, rule.rate(len(parts)), 0, state)


@pytest.mark.parametrize(
    ("nesterov", "first", "second"),
    [
        # v = (2.5, 3); then 1/2 v + (1, -1) = (2.25, 0.5)
        (True, (1 + 0.5 * 3.75, 2 + 0.5 * 4.5), (2.875 + 0.5 * 2.125, 4.25 - 0.5 * 0.75)),
        (False, (1 + 0.5 * 2.5, 2 + 0.5 * 3.0), (2.25 + 0.5 * 2.25, 3.5 + 0.5 * 0.5)),
    ],
)
def test_two_rounds_written_out(
    nesterov: bool, first: tuple[float, float], second: tuple[float, float]
) -> None:
    rule = OuterMomentum(0.5, 0.5, nesterov)
    center, state = np.array([1, 2], np.float32), rule.state_for(2)
    merged(rule, center, state, ([1, 0], 1), ([3, 4], 3))  # their mean is (2.5, 3)
    assert center.tolist() == list(first)
    assert state.vectors["momentum"].tolist() == [2.5, 3.0]
    merged(rule, center, state, ([1, -1], 8))
    assert center.tolist() == list(second)
    assert state.vectors["momentum"].tolist() == [2.25, 0.5]


@pytest.mark.torch
@pytest.mark.parametrize("nesterov", [True, False])
def test_it_is_pytorchs_sgd_whose_gradient_is_the_mean_delta_turned_round(nesterov: bool) -> None:
    import torch

    random, size = np.random.default_rng(5), 2 * BLOCK + 3
    rule = OuterMomentum(nesterov=nesterov)
    center, state = random.standard_normal(size).astype(np.float32), rule.state_for(size)
    theirs = torch.nn.Parameter(torch.from_numpy(center.copy()))
    outer = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=nesterov)
    for _ in range(5):
        deltas = [random.standard_normal(size).astype(np.float32) for _ in range(3)]
        theirs.grad = -torch.from_numpy(np.mean(deltas, axis=0, dtype=np.float32))
        outer.step()
        parts = [Contribution(delta, 8) for delta in deltas]
        rule.merge(center, parts, rule.rate(3), 0, state)
    np.testing.assert_allclose(center, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_without_momentum_at_rate_one_it_averages() -> None:
    options = {"mode": "sync", "local_steps": 4}
    plain = trained(**options)
    same = trained(**options, rule="outer-momentum", outer_lr=1.0, outer_momentum=0.0)
    np.testing.assert_allclose(same, plain, rtol=1e-6)


def test_servers_and_a_team_come_to_the_same_center() -> None:
    options = {"mode": "sync", "local_steps": 4, "rule": "outer-momentum"}
    alone = trained(**options)
    np.testing.assert_array_equal(trained(servers=2, **options), alone)
    np.testing.assert_allclose(trained(team=True, **options), alone, rtol=1e-5)


def test_it_keeps_what_it_promises() -> None:
    check_rule(OuterMomentum())
    check_rule(OuterMomentum(1.0, 0.0, nesterov=False))


class Commands:
    """Notes whether workers are told to train as a team."""

    teams = False

    def saw(self, event: Event, now: float) -> None:
        """Nothing is asked of it."""

    def did(self, action: Action, now: float) -> None:
        self.teams = self.teams or (isinstance(action, Train) and action.team is not None)


def trained(servers: int = 0, team: bool = False, **options: object) -> Vector:
    """The center of three workers after 20 rounds."""
    trained_in = Commands()
    config = make_config({"workers": 3, **options})
    plan = Plan(12, 80, workers=3, teams=config.teams)
    found = simulate(
        make_strategy(config, 12),
        plan,
        world=World(jitter=0.0),
        servers=servers,
        samples_per_step=4,
        places=(lambda worker: "here") if team else None,
        observer=lambda trace: trained_in,
    )
    assert found.outcome.complete
    assert trained_in.teams == team
    return found.center.vector


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"outer_lr": 0}, "outer_lr is 0.0: use a rate above 0, usually at most 1"),
        ({"outer_momentum": 1}, "outer_momentum is 1.0: use 0 or more, below 1"),
        ({"mode": "async"}, "rule outer-momentum does not go with mode async"),
        ({"rule": None, "outer_lr": 0.5}, "only rule outer-momentum uses it"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config({"mode": "sync", "rule": "outer-momentum", **options})
