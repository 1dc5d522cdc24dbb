"""The callbacks of `speedo.train`: what they are told, also of a run that goes on, and what one that raises does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import speedo
from speedo import train
from speedo.run.result import RunResult
from tests.support.commands import MARK, Commands

pytestmark = [
    pytest.mark.ray,
    pytest.mark.redis,
    pytest.mark.caffe,
    pytest.mark.usefixtures("forked_python"),
]
NAMES = ("on_result", "on_test", "on_join", "on_leave", "on_checkpoint")


@pytest.fixture
def trained(
    speedo: Commands, monkeypatch: pytest.MonkeyPatch, tested_problem: Path
) -> Callable[..., RunResult]:
    """`speedo.train` of a small net, whose processes are looked for at the end of the test."""
    monkeypatch.setenv(MARK, speedo.mark)

    def call(**options: Any) -> RunResult:
        return train(tested_problem, **{"workers": 2, "mode": "async", **options})

    return call


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


def expected(lines: list[dict[str, Any]], folder: Path, epoch: int = 0) -> list[Any]:
    """The events of these lines."""
    found: list[Any] = []
    for line in lines:
        at = line["time"]
        if line["event"] == "joined":
            found.append(speedo.WorkerJoined(line["worker"], line["host"], at))
        elif line["event"] == "test":
            place = line["iteration"], line["version"]
            found.append(speedo.ModelTested(*place, line["metrics"], at))
        elif line["event"] == "checkpoint":
            path = folder / "checkpoints" / f"{epoch:06d}-{line['version']:012d}.checkpoint"
            found.append(speedo.CheckpointWritten(path, line["iteration"], at))
        elif line["event"] == "result" and line["decision"] == "merged":
            place = line["worker"], line["iteration"], line["version"]
            more = line["loss"], line["samples"], line["staleness"], at
            found.append(speedo.ResultMerged(*place, *more, timings=line["timings"]))
    return found


def test_a_run_is_told_in_the_order_of_its_log_and_a_resumed_one_from_there_on(
    trained: Callable[..., RunResult], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    told: list[Any] = []
    every = dict.fromkeys(NAMES, told.append)
    trained(max_iter=20, test_interval=10, checkpoint_interval=0.2, run_dir=folder, **every)
    lines = lines_of(folder)
    assert told == expected(lines, folder)
    kinds = {type(one).__name__ for one in told}
    assert kinds == {"WorkerJoined", "ResultMerged", "ModelTested", "CheckpointWritten"}
    assert sum(one.samples for one in told if isinstance(one, speedo.ResultMerged)) == 160
    last = [one for one in told if isinstance(one, speedo.CheckpointWritten)][-1]
    assert last.path.is_file()

    told.clear()
    trained(resume=folder, max_iter=30, **every)
    assert told == expected(lines_of(folder)[len(lines) :], folder, epoch=1)
    assert {type(one).__name__ for one in told} == kinds
    assert [one.iteration for one in told if isinstance(one, speedo.ModelTested)][-1] == 30


@pytest.mark.parametrize(
    "name",
    [
        "on_test",
        *(pytest.param(one, marks=pytest.mark.matrix) for one in NAMES if one != "on_test"),
    ],
)
def test_what_a_callback_raises_ends_the_run_with_its_model_and_comes_out(
    trained: Callable[..., RunResult], tmp_path: Path, name: str
) -> None:
    folder, called = tmp_path / "run", list[Any]()

    def raises(event: Any) -> None:
        called.append(event)
        while b'"merged"' not in (folder / "metrics.jsonl").read_bytes():  # there is a model then
            time.sleep(0.1)
        raise LookupError("no such\ncolumn")

    def kill_worker(event: speedo.ResultMerged) -> None:
        (process,) = (
            one["process"]
            for one in lines_of(folder)
            if one["event"] == "joined" and one["worker"] == 1
        )
        with suppress(psutil.NoSuchProcess):
            psutil.Process(process).kill()

    callbacks: dict[str, Any] = {name: raises}
    if name == "on_leave":
        callbacks["on_result"] = kill_worker
    with pytest.raises(LookupError, match="no such") as caught:
        trained(
            max_iter=1_000_000,
            test_interval=20,
            checkpoint_interval=0.2,
            restarts=0,
            run_dir=folder,
            **callbacks,
        )
    assert len(called) == 1
    model = folder / "model.caffemodel"
    assert caught.value.__notes__ == [f"speedo: it has ended the run, whose model is {model}"]
    assert model.stat().st_size > 1_000_000
    result = json.loads((folder / "result.json").read_text())
    assert result["reason"] == f"stopped by an exception in {name}: LookupError: no such column"
    assert not result["complete"]
