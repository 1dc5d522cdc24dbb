"""Engines made from a solver as a run makes them, and every solver type with fields that train."""

from __future__ import annotations

from typing import Any

from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import SolverSpec, solver_for_tester, solver_for_worker
from speedo.exchange.vector import Vector

TYPES: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Nesterov": {"type": '"Nesterov"'},
    "AdaGrad": {"type": '"AdaGrad"', "momentum": 0},
    "RMSProp": {"type": '"RMSProp"', "momentum": 0, "base_lr": 0.005},
    "AdaDelta": {"type": '"AdaDelta"', "base_lr": 1.0, "delta": 1e-6},
    "Adam": {"type": '"Adam"', "base_lr": 0.002},
}


def worker(spec: SolverSpec, **options: Any) -> PycaffeEngine:
    text = solver_for_worker(
        spec,
        rank=options.get("rank", 0),
        count=options.get("count", 1),
        batch_size=spec.batch_size,
    )
    return PycaffeEngine(text, lr_policy=spec.lr_policy, folder=spec.folder, **options)


def scorer(spec: SolverSpec) -> PycaffeEngine:
    return PycaffeEngine(solver_for_tester(spec), lr_policy=spec.lr_policy, folder=spec.folder)


def weights(engine: PycaffeEngine) -> Vector:
    vector = engine.layout.zeros()
    engine.read_weights(vector)
    return vector
