"""Our update rules against Caffe's own: six solver types, L1 and L2, clipped and not, several batches to a step."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.solver import LrPolicy, read_solver
from speedo.engines.solver_history import history_from, solverstate_in
from speedo.engines.solver_update import BLOCK, Multipliers, SolverUpdate, multipliers
from speedo.engines.solverstate import read_solverstate, write_solverstate
from speedo.engines.update_rules import RULES, SolverFields
from speedo.errors import EngineError
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.system.import_order import with_our_path
from tests.support.nets import BATCH_NORM, SHARED, net_text, write_solver
from tests.support.solvers import TYPES, weights, worker
from tests.support.update_trials import (
    NET,
    TRIALS,
    Trial,
    apart,
    by_caffe,
    by_rules,
    gradients,
    rule_of,
)

FIXED = LrPolicy("fixed", 0.5)


@pytest.mark.caffe
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_twenty_updates_are_those_of_caffe_whatever_the_cuts(home: Path, trial: Trial) -> None:
    """Within 4 units in the last place of the largest value; the most that was seen is 3."""
    spec = read_solver(write_solver(home, net_text(NET), **trial.fields()))
    layout, before, expected = by_caffe(spec)
    whole = by_rules(spec, layout, before)
    assert apart(whole.weights, expected.weights) <= 4
    assert apart(whole.history, expected.history) <= 4
    assert apart(before, expected.weights) > 10_000
    # In the weights of the first layer, and in those of the second.
    cut = by_rules(spec, layout, before, cuts=(777, 2001))
    np.testing.assert_array_equal(cut.weights, whole.weights)
    parts = np.split(whole.history, RULES[trial.kind].vectors)
    np.testing.assert_array_equal(cut.history, np.concatenate(parts))


@pytest.mark.caffe
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names routines of that processor")
def test_where_blas_fuses_nothing_sgd_and_nesterov_are_those_of_caffe_to_the_bit(
    home: Path,
) -> None:
    """Nor is there another difference than the rounding of the norm where they clip, and of `powf` in the others."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.support.update_trials", str(home)],
        env=with_our_path({**os.environ, "OPENBLAS_CORETYPE": "Prescott"}),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    exact = [
        str(trial) for trial in TRIALS if trial.kind in ("SGD", "Nesterov") and not trial.clips
    ]
    assert len(exact) == 12
    assert {name: found[name] for name in exact} == {name: [0.0, 0.0] for name in exact}
    assert max(max(one) for one in found.values()) <= 4


@pytest.mark.caffe
@pytest.mark.parametrize("clip_gradients", [-1, 1])
def test_batch_norm_gains_what_the_gradient_carries(home: Path, clip_gradients: float) -> None:
    spec = read_solver(write_solver(home, net_text(BATCH_NORM), clip_gradients=clip_gradients))
    computing, stepping = worker(spec), worker(spec)
    layout, center = stepping.layout, weights(stepping)
    gradient = layout.zeros()
    rules = [rule_of(spec, layout, slice(0, 60)), rule_of(spec, layout, slice(60, layout.size))]
    assert [place.start for place in layout.statistics] == [54, 60, 66]
    for iteration in range(3):
        computing.load_weights(center)
        computing.gradient(1, gradient)
        total = rules[0].squared_norm(gradient[:60]) + rules[1].squared_norm(gradient[60:])
        rules[0].update(center[:60], gradient[:60], iteration, total)
        rules[1].update(center[60:], gradient[60:], iteration, total)
        stepping.step(1)
        np.testing.assert_allclose(center, weights(stepping), rtol=1e-5, atol=1e-7)


@pytest.mark.caffe
@pytest.mark.parametrize("kind", TYPES)
def test_a_history_goes_to_caffe_and_back(home: Path, kind: str) -> None:
    spec = read_solver(write_solver(home, net_text(NET), **Trial(kind).fields()))
    engine, fresh = worker(spec), worker(spec)
    layout = engine.layout
    ours = rule_of(spec, layout)
    center = weights(engine)
    for iteration, gradient in [*gradients(layout)][:5]:
        engine.set_iteration(iteration)
        engine.apply_gradient(gradient)
        ours.update(center, gradient, iteration)

    # Caffe goes on from ours.
    content = write_solverstate(layout, ours.history, ours.updates)
    fresh.load_weights(center)
    fresh.load_history(history_from(kind, layout, content))
    # And we from Caffe's.
    history, updates = read_solverstate(
        layout, RULES[kind].vectors, solverstate_in(kind, layout, engine.history())
    )
    assert updates == 5
    resumed = rule_of(spec, layout)
    resumed.restore(history, updates)
    own = weights(engine)
    for iteration, gradient in [*gradients(layout)][5:10]:
        for solver in (engine, fresh):
            solver.set_iteration(iteration)
            solver.apply_gradient(gradient)
        resumed.update(own, gradient, iteration)
    assert apart(weights(fresh), weights(engine)) <= 4
    assert apart(own, weights(engine)) <= 4


@pytest.mark.caffe
@pytest.mark.parametrize("kind", TYPES)
def test_a_solverstate_is_written_as_caffe_writes_it(home: Path, kind: str) -> None:
    spec = read_solver(write_solver(home, net_text(NET), **TYPES[kind]))
    engine = worker(spec)
    engine.step(3)
    content = solverstate_in(kind, engine.layout, engine.history())
    ours = write_solverstate(
        engine.layout, *read_solverstate(engine.layout, RULES[kind].vectors, content)
    )
    states = [caffe_schema().SolverState.FromString(one) for one in (content, ours)]
    states[0].ClearField("learned_net")
    assert states[0] == states[1]
    assert len(states[1].history) == len(engine.layout.blobs) * RULES[kind].vectors


@pytest.mark.caffe
def test_multipliers_stand_in_the_order_of_the_layout(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(NET)))
    found = multipliers(
        parse_text(spec.text, caffe_schema().SolverParameter()).train_net_param,
        worker(spec).layout,
    )
    pairs = [(own.lr, own.decay) for own in found]
    assert pairs == [(1, 1), (2, 0), (0.5, 3), (0, 1), (1, 1), (1, 1), (1, 1), (2, 0)]


@pytest.mark.caffe
def test_a_shared_blob_has_what_its_owner_or_else_another_layer_says(home: Path) -> None:
    first = 'param { name: "w" } param { name: "b" }'
    net = SHARED.replace(first, 'param { name: "w" lr_mult: 3 } param { name: "b" }', 1)
    net = net.replace(first, 'param { name: "w" decay_mult: 4 } param { name: "b" lr_mult: 5 }', 1)
    fields = {"test_iter": None, "test_interval": None}
    spec = read_solver(write_solver(home, net_text(net), **fields))
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    layout = worker(spec).layout
    found = multipliers(parameter.train_net_param, layout)
    assert [(own.lr, own.decay) for own in found] == [(3, 4), (5, 1), (1, 1), (2, 0)]
    _, before, expected = by_caffe(spec)
    assert apart(by_rules(spec, layout, before).weights, expected.weights) <= 4


@pytest.mark.caffe
def test_multipliers_of_another_net_are_refused(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(NET)))
    net = parse_text(spec.text, caffe_schema().SolverParameter()).train_net_param
    with pytest.raises(EngineError, match="no layer for the blob 'four/0'"):
        multipliers(net, Layout((Blob("one/0", (3,)), Blob("four/0", (3,)))))


@pytest.mark.caffe
def test_layers_of_one_name_are_told_apart_by_their_order() -> None:
    text = """
      layer { name: "a" param { lr_mult: 2 } } layer { name: "a" param { lr_mult: 3 } }
    """
    net = parse_text(text, caffe_schema().NetParameter())
    layout = Layout((Blob("a/0", (1,)), Blob("a/1", (1,)), Blob("a/0", (1,))))
    assert multipliers(net, layout) == (Multipliers(2), Multipliers(), Multipliers(3))


# ---------------------------------------------------------------- without Caffe


@pytest.mark.processes
def test_a_process_that_updates_needs_no_caffe() -> None:
    program = (
        "import sys; import speedo.engines.solver_update, speedo.engines.solverstate; "
        "print([name for name in ('caffe', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=with_our_path(os.environ),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"


def one_blob(size: int = 2) -> Layout:
    return Layout((Blob("ip/0", (size,)),))


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_momentum_is_kept_from_one_update_to_the_next() -> None:
    rule = SolverUpdate(SolverFields("SGD", momentum=0.5), one_blob(), [Multipliers()], FIXED)
    center = vector(8.0, -8.0)
    rule.update(center, vector(2.0, 4.0), 0)
    np.testing.assert_array_equal(center, [7.0, -10.0])
    rule.update(center, vector(2.0, 4.0), 1)
    np.testing.assert_array_equal(center, [5.5, -13.0])
    np.testing.assert_array_equal(rule.history, [[1.5, 3.0]])
    assert rule.updates == 2


def test_the_rate_is_that_of_the_global_iteration() -> None:
    policy = LrPolicy("step", 1.0, gamma=0.5, stepsize=10)
    rule = SolverUpdate(SolverFields("SGD"), one_blob(), [Multipliers()], policy)
    center = vector(0.0, 0.0)
    rule.update(center, vector(1.0, 2.0), 20)
    np.testing.assert_array_equal(center, [-0.25, -0.5])


def test_the_sum_over_iter_size_is_what_is_clipped() -> None:
    """A mean of norm 5 is a sum of norm 10; it is clipped to 1, and then divided by 2."""
    fields = SolverFields("SGD", clip_gradients=1.0, iter_size=2)
    rule = SolverUpdate(fields, one_blob(), [Multipliers()], FIXED)
    assert rule.squared_norm(vector(3.0, 4.0)) == 25.0
    center = vector(0.0, 0.0)
    rule.update(center, vector(3.0, 4.0), 0)
    np.testing.assert_allclose(center, [-0.15, -0.2], rtol=1e-6)


def test_a_range_is_not_clipped_by_its_own_norm() -> None:
    fields = SolverFields("SGD", clip_gradients=1.0)
    rule = SolverUpdate(fields, one_blob(4), [Multipliers()], FIXED, slice(0, 2))
    center = vector(0.0, 0.0)
    with pytest.raises(ValueError, match="the whole gradient"):
        rule.update(center, vector(3.0, 4.0), 0)
    rule.update(center, vector(3.0, 4.0), 0, 10_000.0)
    np.testing.assert_allclose(center, [-0.015, -0.02], rtol=1e-6)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_vectors_of_another_length_are_refused(size: int) -> None:
    rule = SolverUpdate(SolverFields("SGD"), one_blob(), [Multipliers()], FIXED)
    with pytest.raises(ValueError, match=f"a vector of {size} values for a range of 2"):
        rule.update(vector(1.0, 1.0), np.ones(size, np.float32), 0)


@pytest.mark.parametrize("kind", RULES)
def test_vectors_longer_than_a_block_are_updated_to_their_end(kind: str) -> None:
    size = 2 * BLOCK + 5
    long = SolverUpdate(SolverFields(kind), one_blob(size), [Multipliers()], FIXED)
    short = SolverUpdate(SolverFields(kind), one_blob(1), [Multipliers()], FIXED)
    center, own = np.ones(size, np.float32), vector(1.0)
    for iteration in range(3):
        long.update(center, np.full(size, 0.25, np.float32), iteration)
        short.update(own, vector(0.25), iteration)
    assert own[0] < 1.0
    np.testing.assert_array_equal(center, np.full(size, own[0]))
    assert long.squared_norm(np.full(size, 0.25, np.float32)) == size / 16


def test_a_history_of_another_solver_is_refused_and_nothing_changes() -> None:
    layout = one_blob()
    sgd = SolverUpdate(SolverFields("SGD"), layout, [Multipliers()], FIXED)
    adam = SolverUpdate(SolverFields("Adam"), layout, [Multipliers()], FIXED)
    sgd.update(vector(0.0, 0.0), vector(1.0, 1.0), 0)
    with pytest.raises(EngineError, match="same solver type"):
        adam.restore(sgd.history, 1)
    assert adam.updates == 0
    np.testing.assert_array_equal(adam.history, np.zeros((2, 2)))


@pytest.mark.parametrize("cut", [3, 9])
def test_a_damaged_solverstate_is_refused(cut: int) -> None:
    content = write_solverstate(one_blob(), [vector(1.0, 2.0)], 7)
    with pytest.raises(EngineError, match="damaged"):
        read_solverstate(one_blob(), 1, content[:-cut])
    with pytest.raises(EngineError, match="not those of this net"):
        read_solverstate(one_blob(3), 1, content)


@pytest.mark.parametrize("kind", TYPES)
def test_adjusted_it_is_the_update_of_a_solver_with_these_values(kind: str) -> None:
    """And without them its own again; the history stays."""
    layout, blobs = Layout((Blob("w/0", (7,)),)), (Multipliers(),)

    def solver(momentum: float, decay: float, lr: float) -> SolverUpdate:
        fields = SolverFields(kind, momentum=momentum, weight_decay=decay)
        return SolverUpdate(fields, layout, blobs, FIXED.from_base(lr))

    chance = np.random.default_rng(1)
    one, center = solver(0.9, 0.1, 0.5), chance.standard_normal(7).astype(np.float32)
    for wanted in ((0.5, 0.2, 0.25), (0.9, 0.1, 0.5)):
        own = (wanted[2], *wanted[:2]) if wanted[0] == 0.5 else (None, None, None)
        one.adjust(*own)
        other, expected = solver(*wanted), center.copy()
        other.restore(one.history, one.updates)
        for _ in range(3):
            gradient = chance.standard_normal(7).astype(np.float32)
            one.update(center, gradient, 0)
            other.update(expected, gradient, 0)
        np.testing.assert_array_equal(center, expected)
