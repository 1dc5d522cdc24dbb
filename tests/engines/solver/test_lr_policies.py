"""The seven policies against the rates that real Caffe uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.solver import LrPolicy, read_solver
from tests.support.nets import net_text, write_solver

NET = """ layer { name: "data" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 1
dim: 1 } data_filler { value: 1 } } } layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
inner_product_param { num_output: 1 } } layer { name: "loss" type: "EuclideanLoss" bottom: "ip"
bottom: "y" top: "loss" }
"""
POLICIES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "step": {"gamma": 0.7, "stepsize": 33},
    "exp": {"gamma": 0.99},
    "inv": {"gamma": 0.0001, "power": 0.75},
    "multistep": {"gamma": 0.3, "stepvalue": [10, 400, 999]},
    "poly": {"power": 1.5},
    "sigmoid": {"gamma": -0.01, "stepsize": 500},
}


@pytest.mark.caffe
@pytest.mark.parametrize("policy", POLICIES)
def test_a_thousand_iterations_have_the_rates_of_real_caffe(tmp_path: Path, policy: str) -> None:
    fields: dict[str, Any] = {
        "lr_policy": f'"{policy}"', "max_iter": 1000, "base_lr": 0.013, "momentum": 0,
        "weight_decay": 0, "test_iter": None, "test_interval": None,
        "net": f'"{tmp_path / "net.prototxt"}"',
    }  # fmt: skip
    fields.update(POLICIES[policy])
    if policy == "sigmoid":
        fields["gamma"] = 0.01  # Caffe refuses a negative one
    path = write_solver(tmp_path, NET, **fields)
    caffe = load_caffe()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    solver = caffe.get_solver(str(path))
    real = []
    for _ in range(1000):
        real.append(solver.lr)
        solver.step(1)
    chosen = read_solver(path).lr_policy
    ours = [chosen.rate(iteration) for iteration in range(1000)]
    np.testing.assert_allclose(ours, real, rtol=1e-6)
    assert policy == "fixed" or len(set(ours)) > 3


@pytest.mark.caffe
def test_steps_out_of_order_are_taken_as_caffe_takes_them(tmp_path: Path) -> None:
    path = write_solver(
        tmp_path, NET, lr_policy='"multistep"', gamma=0.5, stepvalue=[5, 3, 3, 9],
        test_iter=None, test_interval=None, net=f'"{tmp_path / "net.prototxt"}"',
    )  # fmt: skip
    solver = load_caffe().get_solver(str(path))
    policy = read_solver(path).lr_policy
    for iteration in range(15):
        # `lr` itself takes a pending step, so it may be asked once an iteration, after the update.
        solver.step(1)
        assert policy.stepvalues == (5, 6, 7, 9)
        used = np.float32(0.05 * 0.5 ** sum(value <= iteration for value in policy.stepvalues))
        assert policy.rate(iteration) == pytest.approx(float(used), rel=1e-6)
    assert solver.lr == pytest.approx(policy.rate(14), rel=1e-6)


def test_iterations_may_come_in_any_order() -> None:
    policy = LrPolicy("multistep", 1.0, gamma=0.5, stepvalues=(10, 20))
    assert [policy.rate(i) for i in (25, 0, 10, 9, 20)] == [0.25, 1.0, 0.5, 1.0, 0.25]


def test_poly_stays_at_zero_beyond_its_end() -> None:
    policy = LrPolicy("poly", 0.1, power=0.5, max_iter=100)
    assert policy.rate(99) > 0
    assert [policy.rate(100), policy.rate(250)] == [0.0, 0.0]


def test_a_warm_up_rises_in_a_line_to_the_rate_of_the_policy() -> None:
    policy = LrPolicy("step", 1.0, gamma=0.5, stepsize=20, warm_up=10)
    rates = [policy.rate(iteration) for iteration in (0, 5, 9, 10, 19, 20)]
    assert rates == pytest.approx([0.1, 0.55, 0.91, 1.0, 1.0, 0.5])


def test_sigmoid_far_from_its_step_neither_overflows_nor_stops() -> None:
    policy = LrPolicy("sigmoid", 0.1, gamma=1.0, stepsize=100_000)
    assert policy.rate(0) == 0.0
    assert policy.rate(10**6) == pytest.approx(0.1)


@pytest.mark.caffe
def test_an_overridden_rate_is_the_base_of_the_policy(home: Path) -> None:
    from speedo.engines.solver import SolverOverrides

    path = write_solver(home, net_text(), lr_policy='"exp"', gamma=0.5)
    spec = read_solver(path, overrides=SolverOverrides(lr=8.0))
    assert [spec.lr_policy.rate(i) for i in range(3)] == [8.0, 4.0, 2.0]
