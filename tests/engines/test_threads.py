"""Other Python threads beside one in which Caffe computes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.caffe_import import let_others_run, load_caffe
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import read_solver
from tests.support.nets import LENET, SMOOTH, net_text, write_solver
from tests.support.solvers import weights, worker

pytestmark = [pytest.mark.caffe, pytest.mark.usefixtures("others")]
MOST_STEPS = 500
COPYING_LAYER = """
import caffe

class Copy(caffe.Layer):
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
"""


@pytest.fixture
def others() -> Iterator[None]:
    let_others_run(True)
    yield
    let_others_run(False)


@pytest.fixture
def threads_never_take_turns() -> Iterator[None]:
    """A thread runs until it lets go by itself."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(former)


@pytest.mark.usefixtures("threads_never_take_turns")
def test_others_run_while_caffe_computes(home: Path) -> None:
    """Else this thread would see the other one again only at its end."""
    engine = worker(read_solver(write_solver(home, net_text(LENET))))
    stop, steps = threading.Event(), 0

    def train() -> None:
        nonlocal steps
        while not stop.is_set() and steps < MOST_STEPS:
            engine.step(1)
            steps += 1

    training = threading.Thread(target=train)
    training.start()
    stop.set()
    training.join()
    lets_go = hasattr(load_caffe()._caffe, "let_others_run")  # a pycaffe of one's own need not
    assert (steps < MOST_STEPS) == lets_go


def test_a_python_layer_is_safe_beside_another_thread(home: Path) -> None:
    """The same weights as alone, while another thread makes and drops objects all the time."""
    (home / "copy_layer.py").write_text(COPYING_LAYER)
    layer = """
    layer { name: "py" type: "Python" bottom: "sig" top: "top"
      python_param { module: "copy_layer" layer: "Copy" } }
    """
    net = net_text(SMOOTH.replace('top: "top"', 'top: "sig"') + layer)
    spec = read_solver(write_solver(home, net))

    def trained() -> tuple[PycaffeEngine, np.ndarray]:
        engine = worker(spec)
        for _ in range(50):
            engine.step(1)
        return engine, weights(engine)

    _, alone = trained()
    stop, made = threading.Event(), 0

    def churn() -> None:
        nonlocal made
        while not stop.is_set():
            made += len([str(number) for number in range(100)])

    other = threading.Thread(target=churn)
    other.start()
    try:
        _, beside = trained()
    finally:
        stop.set()
        other.join()
    assert made > 0
    np.testing.assert_array_equal(beside, alone)


def test_an_error_of_a_python_layer_reaches_the_thread_that_trains(home: Path) -> None:
    (home / "failing_layer.py").write_text(
        COPYING_LAYER.replace("top[0].data[...] = bottom[0].data", "raise ValueError('no more')")
    )
    layer = """
    layer { name: "py" type: "Python" bottom: "sig" top: "top"
      python_param { module: "failing_layer" layer: "Copy" } }
    """
    net = net_text(SMOOTH.replace('top: "top"', 'top: "sig"') + layer)
    engine = worker(read_solver(write_solver(home, net)))
    found: list[BaseException] = []

    def train() -> None:
        try:
            engine.step(1)
        except Exception as error:
            found.append(error)

    training = threading.Thread(target=train)
    training.start()
    training.join()
    assert "no more" in str(found[0])
    assert sum(range(10)) == 45  # this thread goes on
