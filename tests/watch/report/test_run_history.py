"""A run directory is read as it stands: finished, resumed, running, with teams, with results that were not merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.errors import DataError
from speedo.watch.report.figures import figures_of
from speedo.watch.report.run_history import RunHistory, read_history


def merged(time: float, version: int, **fields: Any) -> dict[str, Any]:
    usual = {
        "time": time, "event": "result", "decision": "merged", "worker": 0, "ticket": version, "version": version,
        "iteration": version, "staleness": 0, "samples": 10, "loss": 1.0, "timings": {},
    }  # fmt: skip
    return usual | fields


def history(folder: Path, *lines: dict[str, Any], cut: str = "") -> RunHistory:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + cut)
    return read_history(folder)


def joined(time: float, worker: int) -> dict[str, Any]:
    return {"time": time, "event": "joined", "worker": worker, "incarnation": 1}


def test_the_parts_of_a_merge_are_one_piece(tmp_path: Path) -> None:
    run = history(
        tmp_path, joined(0.5, 0), joined(1.0, 1),
        merged(2.0, 1, samples=6, loss=3.0), merged(2.0, 1, worker=1, samples=4, loss=0.5),
        merged(3.0, 2), merged(3.0, 2, worker=1, staleness=1),
    )  # fmt: skip
    assert (run.ends, run.seconds, run.losses) == ([10, 30], [2.0, 3.0], [2.0, 1.0])
    assert (run.began, run.merged, dict(run.staleness)) == (1.0, 4, {0: 3, 1: 1})


def test_the_rounds_of_a_stretch_are_pieces_of_their_own(tmp_path: Path) -> None:
    run = history(
        tmp_path, joined(0.0, 0), joined(0.0, 1),
        merged(1.0, 1, loss=2.0, losses=[3.0, 1.0]), merged(1.0, 1, worker=1, loss=4.0, losses=[5.0, 3.0]),
    )  # fmt: skip
    assert (run.ends, run.seconds, run.losses) == ([10, 20], [0.5, 1.0], [4.0, 2.0])


def test_what_a_resume_undid_is_left_out(tmp_path: Path) -> None:
    run = history(
        tmp_path, joined(0.0, 0), merged(1.0, 1), merged(2.0, 2), merged(3.0, 3),
        {"time": 3.5, "event": "test", "version": 1, "iteration": 3, "metrics": {"accuracy": 0.1}},
        {"time": 9.0, "event": "resumed", "epoch": 2, "version": 2, "iteration": 2, "samples": 20,
         "cause": "no raylet"},
        joined(10.0, 0), merged(11.0, 3, loss=0.5), merged(12.0, 4, loss=0.5),
        {"time": 13.0, "event": "test", "version": 1, "iteration": 4, "metrics": {"accuracy": 0.9}},
    )  # fmt: skip
    assert (run.ends, run.losses, run.resumes) == ([10, 20, 30, 40], [1.0, 1.0, 0.5, 0.5], [20])
    assert run.accuracies() == [(40, 12.0, 0.9)]
    assert run.master_restarts == ["no raylet"]
    assert [(life.began, life.ended, life.cause) for life in run.lives] == [
        (0.0, 9.0, "the master ended"),
        (10.0, None, ""),
    ]
    # 10 images in each of the parts from its first result on; the pause between them counts nowhere.
    assert run.images_per_s() == pytest.approx(10.0)


def test_a_test_stands_at_the_images_of_its_version(tmp_path: Path) -> None:
    run = history(
        tmp_path, joined(0.0, 0), merged(1.0, 1), merged(2.0, 2),
        {"time": 2.5, "event": "test", "version": 1, "iteration": 1, "metrics": {"accuracy": 0.5, "loss": None}},
    )  # fmt: skip
    assert run.accuracies() == [(10, 1.0, 0.5)]


def test_a_report_shows_the_mean_average_precision_of_detectors(tmp_path: Path) -> None:
    tested = {"ssd": {"detection_eval": 0.75}, "faster-rcnn": {"accuracy": 0.94, "mAP": 0.625}}
    for name, metrics in tested.items():
        (tmp_path / name).mkdir()
        test = {"time": 2.5, "event": "test", "version": 2, "iteration": 2, "metrics": metrics}
        history(tmp_path / name, joined(0.0, 0), merged(1.0, 1), merged(2.0, 2, loss=0.5), test)
    folders, target = [str(tmp_path / name) for name in tested], tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", *folders, "-o", str(target)])
    assert done.exit_code == 0, done.output
    page = target.read_text()
    for words in ("Test mean average precision", "<th>mean average precision", "0.7500", "0.6250"):
        assert words in page
    (tmp_path / "lenet").mkdir()
    test = {
        "time": 2.5,
        "event": "test",
        "version": 1,
        "iteration": 1,
        "metrics": {"accuracy": 0.5},
    }
    lenet = history(tmp_path / "lenet", joined(0.0, 0), merged(1.0, 1), test)
    runs = [lenet, *(read_history(Path(folder)) for folder in folders)]
    assert figures_of(runs, records=None).score == "accuracy"


def test_refused_results_and_deaths_are_counted_with_their_causes(tmp_path: Path) -> None:
    dropped = {"event": "result", "worker": 0, "decision": "discarded", "reason": "too stale"}
    run = history(
        tmp_path, joined(0.0, 0), merged(1.0, 1), {"time": 1.5, **dropped}, {"time": 1.6, **dropped},
        {"time": 2.0, "event": "left", "worker": 0, "incarnation": 1, "cause": "killed by signal 9"},
        cut='{"time": 3, "ev',
    )  # fmt: skip
    assert [(one.decision, one.reason, one.count) for one in run.refused] == [
        ("discarded", "too stale", 2)
    ]
    assert [(life.ended, life.cause) for life in run.lives] == [(2.0, "killed by signal 9")]
    assert (run.complete, run.reason) == (False, "it is running, or was killed")


def test_the_parts_of_a_turn_add_up_to_it(tmp_path: Path) -> None:
    parts = {"fetch": 0.1, "compute": 0.5, "publish": 0.1, "receive": 0.05, "merge": 0.05}
    run = history(tmp_path, joined(0.0, 0), merged(1.0, 1), merged(2.0, 2, timings=parts))
    assert run.turns.pop("turn") == pytest.approx(1.0)
    assert run.turns == pytest.approx(
        {"fetch": 0.1, "compute": 0.5, "publish": 0.1, "merge": 0.1, "rest": 0.2}
    )


def test_a_folder_without_a_run_and_a_broken_line_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run directory"):
        read_history(tmp_path)
    with pytest.raises(DataError, match="line 2 is not a line of metrics"):
        history(tmp_path, joined(0.0, 0), merged(1.0, 1, samples=-1))


def test_sequential_caffe_and_sync_have_the_same_losses(histories: list[RunHistory]) -> None:
    alone, sync, _ = histories
    assert alone.mode == "sequential"
    assert alone.ends == sync.ends
    assert sync.losses == pytest.approx(alone.losses, rel=1e-3)
    tests = [(images, value) for images, _, value in alone.accuracies()]
    assert [images for images, _ in tests] == [0, 160, 320, 480, 640]
