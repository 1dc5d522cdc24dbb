"""The solver's history out and in: for every solver type, and refused where it is not this solver's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.solver import read_solver
from speedo.errors import EngineError
from tests.support.nets import LENET, net_text, write_solver
from tests.support.solvers import TYPES, weights, worker

pytestmark = pytest.mark.caffe


def test_adam_corrects_its_bias_after_a_resume_as_before_it(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(LENET), **TYPES["Adam"]))
    running, resumed = worker(spec), worker(spec)
    running.step(4)
    resumed.step(4)
    resumed.load_history(worker(spec).history())
    resumed.load_history(running.history())
    running.step(2)
    resumed.step(2)
    np.testing.assert_array_equal(weights(running), weights(resumed))


@pytest.mark.parametrize("kind", TYPES)
def test_history_round_trip_for_every_solver_type(home: Path, kind: str) -> None:
    spec = read_solver(write_solver(home, net_text(LENET), **TYPES[kind]))
    running, resumed = worker(spec, rank=1, count=2), worker(spec, rank=1, count=2)
    running.step(3)
    resumed.step(3)
    other = worker(spec, rank=1, count=2)
    resumed.load_history(other.history())
    resumed.load_history(running.history())
    running.step(3)
    resumed.step(3)
    np.testing.assert_array_equal(weights(running), weights(resumed))


def test_a_history_of_another_solver_type_is_refused(home: Path) -> None:
    state = worker(read_solver(write_solver(home, net_text()))).history()
    other = worker(read_solver(write_solver(home, net_text(), type='"Nesterov"')))
    with pytest.raises(EngineError, match="same solver type"):
        other.load_history(state)


def test_a_damaged_history_is_refused_and_the_process_lives(home: Path) -> None:
    engine = worker(read_solver(write_solver(home, net_text())))
    state = engine.history()
    header = state.split(b"\n", 1)[0] + b"\n"
    for damaged in (header, header + b"\xff\xff\xff", state[: len(state) // 2]):
        with pytest.raises(EngineError, match="damaged"):
            engine.load_history(damaged)


def test_caffe_gets_a_history_in_the_shapes_of_the_net_whatever_the_file_says(home: Path) -> None:
    """Caffe would allocate what a stranger's shape says, take `double_data` in place of `data`, and abort."""
    engine = worker(read_solver(write_solver(home, net_text())))
    engine.step(2)
    header, _, content = engine.history().partition(b"\n")
    state = load_caffe().proto.caffe_pb2.SolverState.FromString(content)
    state.history[0].shape.dim[:] = [2**20, 2**10]
    state.history[1].double_data.extend([1.0, 2.0])
    engine.load_history(header + b"\n" + state.SerializeToString())
    assert engine.history() == header + b"\n" + content
