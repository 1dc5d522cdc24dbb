"""Checks the fields of a solver for what Caffe would refuse or never finish.

Caffe: solver.cpp (Init, InitTrainNet, InitTestNets), sgd_solvers.hpp (constructors) and
solvers/sgd_solver.cpp (GetLearningRate). Caffe aborts at the first problem; here all are reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from caffenets.prototxt.text import did_you_mean
from speedo.engines.caffe_import import is_cpu_only
from speedo.engines.solver.lr_policies import REQUIRED, LrPolicy
from speedo.system.bounds import LARGEST_SEED, EngineName

# In the order of the old enum `solver_type` (Caffe: util/upgrade_proto.cpp, UpgradeSolverType).
SOLVER_TYPES: Final = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")
_TOLD_APART: Final = ("base_lr", "momentum")  # with bounds of their own
_WITHOUT_MOMENTUM: Final = ("AdaGrad", "RMSProp")


def solver_problems(
    parameter: Any, path: Path, engine: EngineName = "caffe", *, trains: bool = True
) -> list[str]:
    """Every problem in the fields of a SolverParameter, each beginning with the file's name.

    With `trains` false it is read for its test nets alone: what only training uses is not looked at.
    """
    checks = [_nets, _tests, _numbers]
    if trains:
        checks += [_intervals, _length, _rate, _type, _momentum, _regularization]
    if engine == "caffe":  # PyTorch computes where --device says
        checks.append(_mode)
    return [f"{path}: {problem}" for check in checks for problem in check(parameter)]


def _nets(parameter: Any) -> Iterator[str]:
    fields = ("net", "net_param", "train_net", "train_net_param")
    given = [field for field in fields if parameter.HasField(field)]
    if not given:
        yield 'names no train net: add `net: "..."`'
    elif len(given) > 1:
        yield f"names the train net more than once ({' and '.join(given)}): keep one"


def _tests(parameter: Any) -> Iterator[str]:
    named = len(parameter.test_net) + len(parameter.test_net_param)
    tests = len(parameter.test_iter)
    generic = parameter.HasField("net") or parameter.HasField("net_param")
    trained = generic or parameter.HasField("train_net") or parameter.HasField("train_net_param")
    if tests < named or (tests != named and not generic and trained):
        yield (f"has {named} test nets but {tests} test_iter: give one test_iter for each test net")
    states = len(parameter.test_state)
    if states and states != max(tests, named):
        yield f"has {states} test_state for {tests} test nets: give none, or one for each test net"
    for count in parameter.test_iter:
        if count < 0:
            yield f"test_iter is {count}: use 0 or more"


def _intervals(parameter: Any) -> Iterator[str]:
    tests = len(parameter.test_iter)
    named = len(parameter.test_net) + len(parameter.test_net_param)
    if parameter.test_interval < 0:
        yield f"test_interval is {parameter.test_interval}: use 1 or more, or leave it out"
    elif tests and not parameter.test_interval:
        yield "has test_iter but no test_interval: say after how many iterations to test"
    elif parameter.test_interval and not tests and not named:
        yield (
            f"test_interval is {parameter.test_interval} but there is no test net: "
            "add test_iter, or leave test_interval out"
        )


def _length(parameter: Any) -> Iterator[str]:
    if not parameter.HasField("max_iter"):
        yield "has no max_iter: say after how many iterations to stop"
    elif parameter.max_iter < 0:
        yield f"max_iter is {parameter.max_iter}: use 0 or more"
    for field in ("iter_size", "average_loss"):
        if getattr(parameter, field) < 1:
            yield f"{field} is {getattr(parameter, field)}: use 1 or more"
    if parameter.snapshot < 0:
        yield f"snapshot is {parameter.snapshot}: use 1 or more, or leave it out"
    if parameter.snapshot_diff:
        yield "snapshot_diff is true, but no one net has the gradients of all workers: leave it out"


def _numbers(parameter: Any) -> Iterator[str]:
    """Numbers that the fields accept and Caffe computes with, although they make no sense."""
    if parameter.random_seed > LARGEST_SEED:
        yield (
            f"random_seed is {parameter.random_seed}, but Caffe's generator takes 32 bits: "
            f"use at most {LARGEST_SEED}"
        )
    for field, value in parameter.ListFields():
        is_float = field.type == field.TYPE_FLOAT and field.name not in _TOLD_APART
        if is_float and not math.isfinite(value):
            yield f"{field.name} is {value}, which a float32 does not hold: use a number up to 3.4e+38"


def _rate(parameter: Any) -> Iterator[str]:
    if not parameter.HasField("base_lr"):
        yield "has no base_lr: give the learning rate"
    elif not (parameter.base_lr >= 0 and math.isfinite(parameter.base_lr)):
        yield f"base_lr is {parameter.base_lr:g}: use a learning rate of 0 or more"
    policy = parameter.lr_policy
    if not policy:
        yield f"has no lr_policy: use one of {', '.join(REQUIRED)}"
        return
    if policy not in REQUIRED:
        suggestion = did_you_mean(policy, REQUIRED)
        yield f"lr_policy {policy!r} is not one of {', '.join(REQUIRED)}{suggestion}"
        return
    for field in REQUIRED[policy]:
        absent = not (parameter.stepvalue if field == "stepvalue" else parameter.HasField(field))
        if absent:
            yield f"lr_policy {policy!r} needs {field}: add it"
        elif field == "stepsize" and parameter.stepsize <= 0:
            yield f"stepsize is {parameter.stepsize}: use 1 or more"
        elif field == "gamma" and parameter.gamma < 0:
            yield f"gamma is {parameter.gamma:g}: use 0 or more"
        elif field in ("gamma", "power") and not math.isfinite(getattr(parameter, field)):
            return  # reported with the numbers
    if parameter.max_iter > 0 and math.isfinite(parameter.base_lr) and parameter.base_lr > 0:
        yield from _rate_at_the_ends(parameter)


def _rate_at_the_ends(parameter: Any) -> Iterator[str]:
    """Every policy is monotonic, so the first and last rate show whether all are finite."""
    if parameter.lr_policy in ("step", "sigmoid") and parameter.stepsize <= 0:
        return
    policy = LrPolicy.from_solver(parameter)
    for iteration in (0, parameter.max_iter - 1):
        rate = policy.rate(iteration)
        if not math.isfinite(rate):
            yield (
                f"the learning rate at iteration {iteration} is {rate}: correct base_lr or what lr_policy "
                f"{parameter.lr_policy!r} makes of it"
            )
            return


def _type(parameter: Any) -> Iterator[str]:
    if parameter.HasField("type") and parameter.HasField("solver_type"):
        yield "has both type and the old solver_type: keep type"
    elif parameter.type not in SOLVER_TYPES:
        suggestion = did_you_mean(parameter.type, SOLVER_TYPES)
        yield f"solver type {parameter.type!r} is not one of {', '.join(SOLVER_TYPES)}{suggestion}"


def _momentum(parameter: Any) -> Iterator[str]:
    kind = parameter.type
    if parameter.HasField("solver_type"):
        kind = SOLVER_TYPES[parameter.solver_type]
    if kind in _WITHOUT_MOMENTUM and parameter.momentum:
        yield f"momentum is {parameter.momentum:g}, but {kind} has none: set momentum: 0"
    elif not 0 <= parameter.momentum < 1:
        yield f"momentum is {parameter.momentum:g}: use 0 or more and less than 1"
    if kind == "Adam" and not 0 <= parameter.momentum2 < 1:
        yield f"momentum2 is {parameter.momentum2:g}: use 0 or more and less than 1"
    if kind == "RMSProp" and not 0 <= parameter.rms_decay < 1:
        yield f"rms_decay is {parameter.rms_decay:g}: use 0 or more and less than 1"


def _regularization(parameter: Any) -> Iterator[str]:
    if parameter.weight_decay and parameter.regularization_type not in ("L1", "L2"):
        yield f"regularization_type {parameter.regularization_type!r} is neither L1 nor L2: use one"


def _mode(parameter: Any) -> Iterator[str]:
    # An absent mode means GPU in Caffe's own definition, but nobody asked for it.
    if (
        parameter.HasField("solver_mode")
        and parameter.solver_mode == parameter.GPU
        and is_cpu_only()
    ):
        yield (
            "solver_mode is GPU, but this Caffe was built for the CPU only: "
            "set solver_mode: CPU, or give --device cpu"
        )
