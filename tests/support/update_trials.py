"""The same gradients to Caffe's own solver and to our update rules, for every solver type and its variants.

    python -m tests.support.update_trials FOLDER

prints as JSON how far weights and histories are apart, trial by trial, with the BLAS routines that this process has.
FOLDER has the LMDBs `train` and `test`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import SolverSpec, read_solver
from speedo.engines.solver_history import solverstate_in
from speedo.engines.solver_update import SolverUpdate, multipliers
from speedo.engines.solverstate import read_solverstate
from speedo.engines.update_rules import RULES, SolverFields
from speedo.exchange.vector import Layout, Vector
from tests.support.nets import net_text, write_solver
from tests.support.solvers import TYPES, weights, worker

UPDATES = 20
FIRST = 500  # global iteration of the first update; Adam must count its own
# Multipliers 2, 0 and 0.5; a layer that says nothing.
NET = """
layer { name: "one" type: "InnerProduct" bottom: "data" top: "one"
  param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 30 weight_filler { type: "xavier" } } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two"
  param { lr_mult: 0.5 decay_mult: 3 } param { lr_mult: 0 }
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "three" type: "InnerProduct" bottom: "two" top: "three"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "sig" type: "Sigmoid" bottom: "three" top: "top" }
"""


@dataclass(frozen=True, slots=True)
class Trial:
    kind: str
    decay: str = "L2"
    clips: bool = False
    iter_size: int = 1

    def fields(self) -> dict[str, Any]:
        fields = {
            **TYPES[self.kind],
            "regularization_type": f'"{self.decay}"',
            "weight_decay": 0.01,
            "iter_size": self.iter_size,
            "lr_policy": '"inv"',
            "gamma": 0.01,
            "power": 0.75,
        }
        # The sums of 20 gradients have norms of 2.7 to 8 times iter_size: some are clipped.
        return {**fields, "clip_gradients": 5.0 * self.iter_size} if self.clips else fields

    def __str__(self) -> str:
        clip = "clipped" if self.clips else "whole"
        return f"{self.kind}-{self.decay}-{clip}-{self.iter_size}"


TRIALS = [
    Trial(kind, decay, clips, iter_size)
    for kind, decay, clips, iter_size in itertools.product(
        TYPES, ("L1", "L2"), (False, True), (1, 2, 3)
    )
]


def rule_of(spec: SolverSpec, layout: Layout, place: slice | None = None) -> SolverUpdate:
    """As a server would make it: from the solver's text and the layout."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    return SolverUpdate(
        SolverFields.from_solver(parameter),
        layout,
        multipliers(parameter.train_net_param, layout),
        spec.lr_policy,
        place,
    )


def gradients(layout: Layout) -> Iterator[tuple[int, Vector]]:
    """Iterations and mean gradients; statistics gain as much."""
    random = np.random.default_rng(3)
    for update in range(UPDATES):
        size = 0.1 * random.uniform(0.5, 1.5)
        yield (
            FIRST + update,
            random.standard_normal(layout.size).astype(np.float32) * np.float32(size),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """`history` is one after the other, as in a `.solverstate`."""

    weights: Vector
    history: Vector


def by_caffe(spec: SolverSpec) -> tuple[Layout, Vector, Outcome]:
    """The layout, the weights before, and what is there afterwards."""
    engine = worker(spec)
    try:
        before = weights(engine)
        for iteration, gradient in gradients(engine.layout):
            engine.set_iteration(iteration)
            engine.apply_gradient(gradient)
        return engine.layout, before, Outcome(weights(engine), history_of(engine, spec.type))
    finally:
        engine.close()


def history_of(engine: PycaffeEngine, kind: str) -> Vector:
    content = solverstate_in(kind, engine.layout, engine.history())
    history, _ = read_solverstate(engine.layout, RULES[kind].vectors, content)
    return np.concatenate(history)


def by_rules(
    spec: SolverSpec, layout: Layout, before: Vector, cuts: tuple[int, ...] = ()
) -> Outcome:
    """The same by our rules, over ranges that end at `cuts`."""
    edges = [0, *cuts, layout.size]
    places = [slice(*edge) for edge in itertools.pairwise(edges)]
    rules = [rule_of(spec, layout, place) for place in places]
    center = before.copy()
    for iteration, gradient in gradients(layout):
        kept = gradient.copy()
        total = sum(
            rule.squared_norm(gradient[place]) for rule, place in zip(rules, places, strict=True)
        )
        for rule, place in zip(rules, places, strict=True):
            rule.update(center[place], gradient[place], iteration, total)
        assert np.array_equal(gradient, kept)
    history = [
        np.concatenate(parts) for parts in zip(*(rule.history for rule in rules), strict=True)
    ]
    return Outcome(center, np.concatenate(history))


def apart(found: Vector, expected: Vector) -> float:
    """The largest difference, in units of the last place of the largest value."""
    return float(np.abs(found - expected).max() / np.spacing(np.abs(expected).max()))


def main() -> None:
    folder = Path(sys.argv[1])
    found = {}
    for trial in TRIALS:
        spec = read_solver(write_solver(folder, net_text(NET), **trial.fields()))
        layout, before, expected = by_caffe(spec)
        ours = by_rules(spec, layout, before)
        found[str(trial)] = [
            apart(ours.weights, expected.weights),
            apart(ours.history, expected.history),
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
