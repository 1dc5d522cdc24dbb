from __future__ import annotations

from pathlib import Path

import pytest

from speedo.engines.solver import check_solver, read_solver
from tests.support.bundled_nets import SHAPES, Bench

pytestmark = pytest.mark.caffe


@pytest.mark.parametrize("name", SHAPES)
def test_a_net_to_measure_is_a_solver_without_tests(name: str, tmp_path: Path) -> None:
    net = Bench.make(name, tmp_path)
    spec = read_solver(net.solver(10), data_root=tmp_path)
    check_solver(spec, workers=2, split=False)
    assert (spec.batch_size, spec.has_test, spec.snapshot) == (10, False, 0)
    assert net.batch == {"lenet": 64, "alexnet": 16, "googlenet": 8}.get(name, 100)


def test_a_net_of_one_layer_passes_the_checks_of_a_run(tmp_path: Path) -> None:
    net = Bench.one_layer("one", tmp_path, 100, 1000)
    spec = read_solver(net.solver(1), data_root=tmp_path)
    check_solver(spec, workers=2, split=False)
    assert (net.batch, spec.batch_size) == (1, 1)
