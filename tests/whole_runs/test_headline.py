"""The first lines of a run say which records are not divided between workers, and which are not read evenly."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.run.config.run_config import make_config
from speedo.run.headline import headline
from speedo.run.prepare import prepare
from tests.support.nets import net_text, write_data, write_solver

pytestmark = pytest.mark.caffe
WINDOWS = (
    "layer 'data' (WindowData) is not divided: every worker reads or draws from all its records"
)
UNEVEN = (
    "batch 8 is no multiple of 3 workers: the shards are read at different speeds, so an epoch has some records twice "
    "and some not; --batch 6 or 9 reads each once"
)


@pytest.mark.parametrize(
    ("windows", "options", "expected"),
    [
        (True, {"workers": 2}, [WINDOWS]),
        (True, {"workers": 1}, []),
        (True, {"workers": 2, "data_share": "same"}, []),
        (False, {"workers": 2}, []),
        (False, {"workers": 3}, [UNEVEN]),
        (False, {"workers": 3, "mode": "async"}, []),
    ],
)
def test_what_is_not_divided_or_not_evenly_is_told(
    tmp_path: Path, windows: bool, options: dict[str, object], expected: list[str]
) -> None:
    write_data(tmp_path)
    text = net_text(train="train", test="test")
    if windows:
        (tmp_path / "windows.txt").write_text("# 0\na.jpg\n3\n8\n8\n0\n")
        text = text.replace('type: "Data"', 'type: "WindowData"', 1).replace(
            'data_param { source: "train" backend: LMDB',
            'window_data_param { source: "windows.txt"',
        )
    solver = write_solver(tmp_path, text)
    found = prepare(make_config({"solver": solver, "run_dir": tmp_path / "run", **options}), print)
    first, _, *told = headline(found)
    assert told == expected
    assert "learning rate 0.05 (fixed)," in first
