"""The rate that workers step by where `--lr scale` is not none."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.run.config.run_config import make_config
from speedo.run.headline import headline
from speedo.run.prepare import prepare
from tests.support.nets import net_text, write_data, write_solver

pytestmark = pytest.mark.caffe


def test_every_iteration_has_the_scaled_rate_and_the_first_line_says_so(tmp_path: Path) -> None:
    write_data(tmp_path)
    text = net_text(train=f"{tmp_path}/train", test=f"{tmp_path}/test")
    fields = {"lr_policy": '"step"', "gamma": 0.1, "stepsize": 10, "base_lr": 0.05}
    solver = write_solver(tmp_path, text, **fields)
    options = {"solver": solver, "run_dir": tmp_path / "run", "mode": "easgd", "workers": 4}
    found = prepare(make_config(options), print)
    rates = [found.spec.lr_policy.rate(iteration) for iteration in (0, 9, 10, 20)]
    assert rates == pytest.approx([0.2, 0.2, 0.02, 0.002])
    written = parse_text(found.spec.text, caffe_schema().SolverParameter())
    assert written.base_lr == pytest.approx(0.2)
    told = "learning rate 0.2 (step, 4 times the solver's: --lr scale=linear:4 with 4 workers)"
    assert told in headline(found)[0]
