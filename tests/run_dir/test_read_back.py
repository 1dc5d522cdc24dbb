"""What a run left is read as if anybody had written in it since."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from speedo.errors import CheckpointError, ConfigError, DataError
from speedo.run_dir.checkpoint_file import MAGIC, latest, read_checkpoint, write_checkpoint
from speedo.run_dir.events import (
    CheckpointWritten,
    LogFollower,
    ModelTested,
    OtherLine,
    ResultDropped,
    ResultMerged,
    RunFinished,
    RunResumed,
    WorkerJoined,
    WorkerLeft,
    read_events,
)
from speedo.run_dir.metrics_log import MetricsLog
from speedo.study.planning.calibrate_from_run import from_run
from speedo.study.planning.calibration import read_calibration
from speedo.watch.status_text import lines_of, outcome_of
from tests.run_dir.test_checkpoint_file import checkpoint
from tests.study.planning.test_from_run import write_run as write_timed_run

ODD = (None, "x", [], {}, True, -1, 0.5, 10**400, 1e300, math.nan, math.inf, {"a": []}, "é" * 1000)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


# ---------------------------------------------------------------- checkpoints


def with_header(path: Path, values: Any) -> None:
    """Give the file this header, with the right checksum."""
    data = path.read_bytes()
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    header = values if isinstance(values, bytes) else json.dumps(values).encode()
    start = len(header).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(header).to_bytes(
        8, "little"
    )
    path.write_bytes(MAGIC + start + header + data[len(MAGIC) + 16 + length :])


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    found: dict[str, Any] = json.loads(data[len(MAGIC) + 16 :][:length])
    return found


FIELDS = (
    "run", "epoch", "mode", "version", "iteration", "samples", "received", "seconds", "layout", "dropped", "workers",
    "sections",
)  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_header_with_a_right_checksum_gives_way_to_the_checkpoint_before(
    tmp_path: Path, field: str
) -> None:
    older = write_checkpoint(tmp_path, checkpoint(6))
    newest = write_checkpoint(tmp_path, checkpoint(7))
    good = header_of(newest)
    wrong = [{name: value for name, value in good.items() if name != field}]
    right = {
        "run": ("x",),
        "mode": ("x", "é" * 1000),
        "dropped": ({},),
        "workers": ({},),
        "seconds": (0.5,),
    }
    wrong += [
        {**good, field: value}
        for value in ODD
        if (value not in right.get(field, ())) and not (field == "mode" and value == "é" * 1000)
    ] + [{**good, field: good[field], "more": 1}]
    for values in wrong:
        with_header(newest, values)
        path, found, problems = latest(tmp_path)
        assert (path, found.counters.version) == (older, 6)
        assert len(problems) == 1
        assert "7.checkpoint is damaged: " in problems[0]


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b"{}", b'{"sections": [["center", -1, 0]]}'],
)
def test_a_header_that_is_none_is_damage(tmp_path: Path, header: bytes) -> None:
    path = write_checkpoint(tmp_path, checkpoint())
    with_header(path, header)
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize("worker", ODD)
def test_a_worker_of_a_checkpoint_has_a_shard(tmp_path: Path, worker: Any) -> None:
    path = write_checkpoint(tmp_path, checkpoint())
    good = header_of(path)
    for one in (
        worker,
        {**good["workers"]["0"], "rank": worker},
        {**good["workers"]["0"], "rank": 2},
    ):
        with_header(path, {**good, "workers": {"0": one}})
        with pytest.raises(CheckpointError, match="is damaged"):
            read_checkpoint(path)


def test_a_center_that_is_not_finite_is_damage(tmp_path: Path) -> None:
    bad = checkpoint()
    bad.center[3] = math.nan
    path = write_checkpoint(tmp_path, bad)
    with pytest.raises(CheckpointError, match="holds numbers that are not finite"):
        read_checkpoint(path)


# ---------------------------------------------------------------- metrics


MERGED: dict[str, Any] = {
    "time": 1.5, "event": "result", "decision": "merged", "worker": 1, "version": 3, "iteration": 3, "staleness": 2,
    "samples": 64, "loss": None, "timings": {"fetch": 0.1, "compute": 1.0, "publish": 0.25},
}  # fmt: skip


def write_log(folder: Path, *lines: Any) -> Path:
    """A run directory whose log has these lines."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_every_kind_of_line_becomes_a_record(tmp_path: Path) -> None:
    left = {"event": "left", "worker": 1, "cause": "killed"}
    run = write_log(
        tmp_path,
        {"time": 0, "event": "joined", "worker": 1, "host": "here"},
        {**MERGED, "losses": [0.5, None], "records": [[0, 8, 16]], "loss": 0.25},
        {"time": 2, "event": "result", "decision": "late", "worker": 1, "reason": "too late"},
        {"time": 3, "event": "test", "version": 3, "iteration": 3, "metrics": {"accuracy": 0.5}},
        {"time": 4, "event": "checkpoint", "version": 3, "iteration": 3, "bytes": 7},
        {"time": 5, **left},
        {"time": 6, "event": "resumed", "epoch": 2, "version": 3, "iteration": 3, "samples": 192},
        {"time": 7, "event": "checkpoint", "version": 4, "iteration": 4, "bytes": 7},
        {"time": 8, "event": "finish", "complete": True, "reason": "reached max_iter 4"},
        {"time": 9, **left},
    )
    found = list(read_events(run))
    merged = found.pop(1)
    assert isinstance(merged, ResultMerged)
    assert (merged.worker, merged.version, merged.staleness, merged.seconds) == (1, 3, 2, 1.5)
    assert merged.timings == {"fetch": 0.1, "compute": 1.0, "publish": 0.25}
    assert (merged.loss, merged.records) == (0.25, ((0, 8, 16),))
    assert merged.losses[0] == 0.5
    assert math.isnan(merged.losses[1])
    assert found == [
        WorkerJoined(1, "here", 0.0),
        ResultDropped(1, "late", "too late", 2.0),
        ModelTested(3, 3, {"accuracy": 0.5}, 3.0),
        CheckpointWritten(run / "checkpoints" / "000000-000000000003.checkpoint", 3, 4.0),
        WorkerLeft(1, "killed", 5.0),
        RunResumed(2, 3, 3, 192, 6.0),
        CheckpointWritten(run / "checkpoints" / "000002-000000000004.checkpoint", 4, 7.0),
        RunFinished(True, "reached max_iter 4", 8.0),
        OtherLine(9.0),  # workers are let go at the end
    ]


@pytest.mark.parametrize(
    "field",
    ["worker", "iteration", "time", "loss", "samples", "staleness", "losses", "records", "timings"],
)
@pytest.mark.parametrize("value", ["x", {}, True, 10**400, 1e300, math.inf, [{"a": []}]], ids=repr)
def test_an_odd_value_in_the_metrics_is_named_by_its_line(
    tmp_path: Path, field: str, value: object
) -> None:
    wrong = {"fetch": value} if field == "timings" else value
    run = write_log(tmp_path, MERGED, {**MERGED, field: wrong})
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2 is not a line of metrics"):
        list(read_events(run))


@pytest.mark.parametrize("field", ["worker", "samples", "staleness", "timings"])
def test_what_is_counted_or_lasts_is_not_below_0(tmp_path: Path, field: str) -> None:
    run = write_log(tmp_path, {**MERGED, field: {"fetch": -1} if field == "timings" else -1})
    with pytest.raises(DataError, match="line 1 is not a line of metrics"):
        list(read_events(run))


@pytest.mark.parametrize(
    "line", ["null", "[]", "3", "\x00", "[" * 100_000, "", '{"time": 1, "event": "test", "metrics": []}']
)  # fmt: skip
def test_a_line_that_is_none_is_named_but_for_a_last_one_that_is_cut(
    tmp_path: Path, line: str
) -> None:
    with pytest.raises(DataError, match="line 2 is not a line of metrics"):
        list(read_events(write_log(tmp_path, MERGED, line, MERGED)))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(MERGED) + '\n{"time": 1, "ev')
    assert len(list(read_events(tmp_path))) == 1


def test_a_log_is_followed_while_it_is_written(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    assert follower.new() == []
    line = json.dumps(MERGED)
    with (tmp_path / "metrics.jsonl").open("w") as log:
        log.write(f"{line}\n\n[1]\n{line[:9]}")
        log.flush()
        assert [type(one) for one in follower.new()] == [ResultMerged]
        log.write(line[9:] + '\n{"time": 2, "event": "joined", "worker": 4}\n')
        log.flush()
        assert [type(one) for one in follower.new()] == [ResultMerged, WorkerJoined]


def test_times_of_nothing_are_told(tmp_path: Path) -> None:
    run = write_timed_run(tmp_path / "run")
    text = (run / "metrics.jsonl").read_text().replace("0.04", "0.00")
    (run / "metrics.jsonl").write_text(text)
    with pytest.raises(ConfigError, match="has times that no run has"):
        from_run(run, cores=2)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff", b'{"seal": 1e308}', b"null"])
def test_a_calibration_that_is_none_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ConfigError, match="holds no calibration"):
        read_calibration(tmp_path / "file")


@pytest.mark.parametrize(
    "last", [b'{"time": null}', b"[]", b"junk", b'{"time": 1e308}', b"\xff\xff"]
)
def test_a_resumed_log_goes_on_from_the_last_line_that_tells_its_time(
    tmp_path: Path, last: bytes
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"time": 7.5, "event": "x"}\n' + last + b"\n")
    log = MetricsLog(tmp_path, 100.0, resumed=True)
    log.disown()
    assert log._start == 92.5


# ---------------------------------------------------------------- results and answers


@given(ANY_JSON, st.sampled_from(["iteration", "reason", "model", "accuracy"]))
def test_a_result_that_is_none_says_so(
    tmp_path_factory: pytest.TempPathFactory, value: object, field: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    good = {"iteration": 3, "reason": "done", "model": "m", "accuracy": 0.5}
    for content in ({**good, field: value}, value):
        (folder / "result.json").write_text(json.dumps(content))
        result, said = outcome_of(folder)
        assert said.startswith(
            "the run has ended without a result" if result is None else "it ended at"
        )


@given(
    st.dictionaries(
        st.sampled_from(["run", "workers", "metrics", "epoch", "problem", "over"]), ANY_JSON
    )
)
def test_an_answer_that_cannot_be_read_is_told(answer: dict[str, Any]) -> None:
    assert all(isinstance(line, str) for line in lines_of(answer))
