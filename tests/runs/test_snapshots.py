"""Which snapshots a run leaves: those that Caffe leaves, the one at the end too."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.run_dir.directory import link_or_copy
from speedo.storage.memory_store import MemoryStore
from tests.runs.local import train_here
from tests.support.nets import net_text, write_data, write_solver

CASES: dict[str, dict[str, Any]] = {
    "none in between": {},
    "one in between": {"snapshot": 4},
    "in step with the end": {"snapshot": 3},
    "none after": {"snapshot_after_train": "false"},
    "none after, one in between": {"snapshot": 4, "snapshot_after_train": "false"},
    "none after, in step with the end": {"snapshot": 3, "snapshot_after_train": "false"},
}


@pytest.mark.caffe
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_a_run_leaves_the_snapshots_that_caffe_leaves(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    (tmp_path / "plain").mkdir()
    write_data(tmp_path)
    text = net_text(train=f"{tmp_path}/train", test=f"{tmp_path}/test")
    solver = write_solver(
        tmp_path, text, max_iter=6, snapshot_prefix=f'"{tmp_path}/plain/tiny"', **fields
    )
    caffe = load_caffe()
    caffe.set_mode_cpu()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    with contextlib.chdir(tmp_path):
        caffe.get_solver(str(solver)).solve()
    result, _, _ = train_here(solver, MemoryStore(), tmp_path / "run", workers=2, mode="sync")
    assert result.complete
    expected = {file.name for file in (tmp_path / "plain").glob("*.caffemodel")}
    assert {file.name for file in (tmp_path / "run").glob("tiny*")} == expected
    last = tmp_path / "run" / "tiny_iter_6.caffemodel"
    if last.name in expected:
        assert last.read_bytes() == Path(result.model).read_bytes()


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name_is_whole_and_may_be_given_again(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise OSError("no links here")

        monkeypatch.setattr("os.link", refuse)
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("new")
    other.write_text("old")
    for _ in range(2):
        link_or_copy(file, other)
    assert other.read_text() == "new"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "other"]
