"""What workers exchange: gradients where that can be, else deltas; asked for where it cannot be, it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import speedo
from speedo.errors import ConfigError
from speedo.master.slots import Assignment
from speedo.run.config.run_config import make_config
from speedo.run.prepare_script import prepare_script
from speedo.run.script.gradients import exchanges_gradients
from speedo.run.script_link import Start

HAS_OPTIMIZER = object()


def start(folder: Path, **options: Any) -> Start:
    """What the script of a run with these options is told."""
    script = folder / "train.py"
    script.touch()
    config = make_config({"script": (str(script),), "run_dir": folder / "run", **options})
    settings = prepare_script(config, lambda line: None).settings
    return Start(settings, Assignment(0, 1, 0, 2, 1), True)


def test_gradients_in_sync_with_one_local_step(tmp_path: Path) -> None:
    run = start(tmp_path, mode="sync", workers=2)
    assert run.settings.teams
    assert exchanges_gradients(None, HAS_OPTIMIZER, run)
    assert exchanges_gradients("gradients", HAS_OPTIMIZER, run)
    assert not exchanges_gradients("deltas", HAS_OPTIMIZER, run)
    assert not exchanges_gradients(None, None, run)  # NumPy arrays


def test_gradients_also_where_each_host_brings_its_own_script(tmp_path: Path) -> None:
    config = make_config({"run_dir": tmp_path / "run", "mode": "sync", "workers": 2})
    settings = prepare_script(config, lambda line: None).settings
    assert exchanges_gradients(
        None, HAS_OPTIMIZER, Start(settings, Assignment(0, 1, 0, 2, 1), True)
    )


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"mode": "async"}, "the mode is async: use --mode sync"),
        (
            {"mode": "hybrid", "phases": [{"mode": "sync", "iterations": 9}]},
            "the mode is hybrid: use --mode sync",
        ),
        ({"mode": "sync", "local_steps": 4}, "several local steps: leave out --local-steps"),
        ({"mode": "sync", "backup_workers": 1}, "not wait for all workers: leave out backup_wor"),
        ({"mode": "sync", "delta_scale": 0.5}, "--delta-scale is for deltas"),
        ({"mode": "sync", "compress": "int8"}, "--compress is for deltas"),
    ],
)
def test_else_deltas_and_gradients_are_refused(
    tmp_path: Path, options: dict[str, Any], remedy: str
) -> None:
    run = start(tmp_path, workers=2, **options)
    assert not run.settings.teams
    assert not exchanges_gradients(None, HAS_OPTIMIZER, run)
    with pytest.raises(ConfigError, match=r"cannot be in this run, because .*" + remedy):
        exchanges_gradients("gradients", HAS_OPTIMIZER, run)


def test_what_can_be_in_no_run_is_refused_at_once() -> None:
    arrays = {"w": np.zeros(1, np.float32)}
    with pytest.raises(ConfigError, match=r"is for a torch\.nn\.Module with its optimizer"):
        speedo.join(arrays, exchange="gradients")
    with pytest.raises(ConfigError, match='exchange is \'weights\': use "gradients" or "deltas"'):
        speedo.join(arrays, exchange="weights")
