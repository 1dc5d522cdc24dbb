"""Which fillers may go where nobody sees what they draw: those that Caffe takes in any case."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from caffenets.host_program import caffe_schema
from speedo.engines.net_trial import check_in_subprocess
from speedo.engines.solver import Draws, read_solver, solver_for_worker
from speedo.engines.solver.fillers import is_doubtful
from speedo.errors import SolverError
from tests.support.nets import net_text, write_solver

pytestmark = pytest.mark.caffe
SURE = (
    "type: 'constant' value: 3", "type: 'gaussian' std: 0.01", "type: 'gaussian'", "type: 'xavier'",
    "type: 'msra' variance_norm: FAN_OUT", "type: 'uniform' min: -1 max: 1", "type: 'uniform'",
)  # fmt: skip
DOUBTFUL = (
    "type: 'gauss'", "type: 'gaussian' std: 0", "type: 'gaussian' std: -1", "type: 'gaussian' std: nan",
    "type: 'uniform' min: 1 max: 0", "type: 'uniform' min: nan", "type: 'xavier' sparse: 3", "type: 'bilinear'",
    "type: 'positive_unitball'",
)  # fmt: skip


def filler(text: str) -> object:
    return text_format.Parse(text, caffe_schema().FillerParameter())


@pytest.mark.parametrize("text", SURE)
def test_what_caffe_takes_for_any_blob_is_not_doubted(text: str) -> None:
    assert not is_doubtful(filler(text))


@pytest.mark.parametrize("text", DOUBTFUL)
def test_all_else_is(text: str) -> None:
    assert is_doubtful(filler(text))


def with_filler(home: Path, text: str, draws: Draws) -> str:
    usual, own = 'weight_filler { type: "xavier" }', f"weight_filler {{ {text} }}"
    assert usual in net_text()
    net = net_text().replace(usual, own, 1)
    return solver_for_worker(
        read_solver(write_solver(home, net)), rank=0, count=1, batch_size=8, draws=draws
    )


@pytest.mark.parametrize("draws", [Draws.ALL, Draws.DOUBTFUL])
@pytest.mark.parametrize("text", DOUBTFUL[:3] + DOUBTFUL[4:5])
def test_a_trial_finds_every_filler_that_caffe_refuses(home: Path, text: str, draws: Draws) -> None:
    with pytest.raises(SolverError):
        check_in_subprocess(with_filler(home, text, draws))


@pytest.mark.parametrize("text", SURE)
def test_caffe_takes_what_is_not_doubted(home: Path, text: str) -> None:
    facts = check_in_subprocess(with_filler(home, text, Draws.ALL))
    assert facts == check_in_subprocess(with_filler(home, text, Draws.DOUBTFUL))
