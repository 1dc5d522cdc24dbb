"""Which runs correct the momentum of deltas that are added, and what their workers then step by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speedo.errors import ConfigError
from speedo.run.config.run_config import make_config
from speedo.run.headline import headline
from speedo.run.prepare import PreparedRun, prepare
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.registry import make_strategy
from tests.support.nets import SMOOTH, net_text, write_data, write_solver

pytestmark = pytest.mark.caffe


def prepared(folder: Path, options: dict[str, Any], **fields: Any) -> PreparedRun:
    write_data(folder)
    text = net_text(SMOOTH, train=f"{folder}/train", test=f"{folder}/test")
    solver = write_solver(folder, text, **{"momentum": 0.9, **fields})
    return prepare(make_config({"solver": solver, "run_dir": folder / "run", **options}), print)


@pytest.mark.parametrize("mode", ["async", "partial", "weed-out"])
def test_deltas_that_are_added_are_corrected(tmp_path: Path, mode: str) -> None:
    found = prepared(tmp_path, {"mode": mode, "workers": 2})
    assert found.config.momentum_correction is True
    assert found.spec.type == "Nesterov"
    assert "SGD with momentum correction" in headline(found)[0]


@pytest.mark.parametrize(
    "options",
    [{"mode": "easgd"}, *({"mode": m, "moving_rate": 0.3} for m in ("partial", "weed-out"))],
)
def test_elastic_workers_step_by_nesterovs_momentum_if_asked(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    found = prepared(tmp_path, {"workers": 2, "momentum_correction": True, **options})
    assert found.spec.type == "Nesterov"
    assert "SGD with momentum correction (EAMSGD)" in headline(found)[0]


def test_the_first_line_tells_of_staleness_scaling(tmp_path: Path) -> None:
    found = prepared(tmp_path, {"mode": "weed-out", "workers": 2, "staleness_scaling": True})
    assert "momentum correction, deltas divided by their staleness, learning" in headline(found)[0]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"mode": "sync", "workers": 2}, {}),
        ({"mode": "easgd", "workers": 2}, {}),
        ({"mode": "async", "workers": 1}, {}),  # the model of plain Caffe
        ({"mode": "async", "workers": 2, "momentum_correction": False}, {}),
        ({"mode": "partial", "workers": 2, "moving_rate": 0.3}, {}),
        ({"mode": "async", "workers": 2, "server_gradient": True}, {}),
        ({"mode": "async", "workers": 2}, {"momentum": 0.0}),
        ({"mode": "async", "workers": 2}, {"type": '"AdaGrad"', "momentum": 0.0}),
    ],
)
def test_others_keep_their_solver(
    tmp_path: Path, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    found = prepared(tmp_path, options, **fields)
    assert not found.config.momentum_correction
    assert found.spec.type == fields.get("type", '"SGD"').strip('"')
    assert "correction" not in headline(found)[0]


@pytest.mark.parametrize(
    ("options", "fields", "word"),
    [
        ({"mode": "async"}, {"type": '"Adam"'}, "Adam"),
        ({"mode": "async"}, {"momentum": 0.0}, "momentum 0"),
        ({"mode": "easgd"}, {"momentum": 0.0}, "momentum 0"),
        ({"mode": "async", "server_gradient": True}, {}, "server_gradient"),
        ({"mode": "sync"}, {}, "momentum_correction"),
    ],
)
def test_it_is_refused_where_it_means_nothing(
    tmp_path: Path, options: dict[str, Any], fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        prepared(tmp_path, {"workers": 2, "momentum_correction": True, **options}, **fields)
    assert not (tmp_path / "run").exists()


def test_four_deltas_are_added_whole_with_it_and_halved_without() -> None:
    for correction, scale in ((True, 1.0), (None, 0.5)):
        options = make_config({"mode": "async", "workers": 4, "momentum_correction": correction})
        strategy = make_strategy(options, 8)
        assert isinstance(strategy, Asynchronous)
        assert strategy.rule.rate(4) == scale
