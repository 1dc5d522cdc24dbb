"""A calibration out of what a run left, by runs that are written here line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedo.errors import ConfigError
from speedo.study.planning.calibrate_from_run import check_run, from_run, with_run
from speedo.study.planning.calibration import (
    HANDLE_S,
    MEETING_S,
    StepTime,
    read_calibration,
    write_calibration,
)
from speedo.study.planning.predict import predict
from speedo.study.planning.site import Site
from tests.study.planning.times import calibration, passage

NBYTES = 4_000_000


def write_run(
    folder: Path,
    workers: int = 1,
    turns: int = 20,
    *,
    rest: float = 0.010,
    samples: int = 64,
    timings: bool = True,
    log: bool = True,
    **options: Any,
) -> Path:
    """Turns of 2 ms fetch, 40 ms compute, 3 ms publish and a rest; the first one much longer."""
    folder.mkdir()
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"mode": "async", "workers": workers, **options})
    )
    if log:
        (folder / "train.log").write_text(
            "12:00:00 1,000,000 parameters in 8 blobs, 4.0 MB per exchange\n"
        )
    lines: list[dict[str, Any]] = [{"time": 0.0, "event": "joined", "worker": 0, "incarnation": 1}]
    time = 3.0
    for turn in range(turns):
        compute = 1.0 if turn == 0 else 0.040
        time += 0.002 + compute + 0.003 + rest
        for worker in range(workers):
            own = {"fetch": 0.002, "compute": compute, "publish": 0.003}
            lines.append(
                {
                    "time": round(time, 6), "event": "result", "decision": "merged", "worker": worker,
                    "version": turn, "iteration": turn, "staleness": 0, "samples": samples,
                    "loss": 1.0, "timings": own if timings else {},
                }
            )  # fmt: skip
    lines.append({"time": time, "event": "finish", "complete": True})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"time": 99, "event": "resu')
    return folder


def test_a_run_of_one_worker_tells_every_part_of_its_turns(tmp_path: Path) -> None:
    told = from_run(write_run(tmp_path / "run"), cores=2)
    assert (told.batch_size, told.nbytes, told.net) == (64, NBYTES, "run")
    assert told.step_seconds(64) == pytest.approx(0.040)
    assert told.far.read.seconds == pytest.approx(0.002)
    assert told.far.write.seconds == pytest.approx(0.003)
    # 10 ms are left: what the master does, with 0.8 ms each for check and merge, and a message there and back.
    assert told.check == told.merge == pytest.approx(0.0008)
    assert told.message == pytest.approx((0.010 - 0.0016 - 0.005 - HANDLE_S) / 2)


def test_what_a_run_tells_predicts_that_run(tmp_path: Path) -> None:
    told = from_run(write_run(tmp_path / "run"), cores=2)
    assert predict(told, Site(2), "async", 1, 1).images_per_s == pytest.approx(64 / 0.055)


def test_local_steps_are_taken_apart(tmp_path: Path) -> None:
    told = from_run(write_run(tmp_path / "run", samples=640, local_steps=10), cores=2)
    assert told.batch_size == 64
    assert told.step_seconds(64) == pytest.approx(0.004)


def test_a_divided_batch_is_put_together_again(tmp_path: Path) -> None:
    told = from_run(write_run(tmp_path / "run", workers=4, samples=16, mode="sync"), cores=8)
    assert told.batch_size == 64
    assert told.step_seconds(16) == pytest.approx(0.040)
    assert told.step_seconds(64) == pytest.approx(0.160)
    whole = write_run(tmp_path / "whole", workers=4, mode="sync", split_batch=False)
    assert from_run(whole, cores=8).batch_size == 64


def test_without_its_log_the_size_is_that_of_the_model(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", log=False)
    with pytest.raises(ConfigError, match="does not say the size of its model"):
        from_run(run, cores=2)
    (run / "model.caffemodel").write_bytes(bytes(5000))
    assert from_run(run, cores=2).nbytes == 5000


def test_where_each_figure_comes_from_is_told(tmp_path: Path) -> None:
    origin = from_run(write_run(tmp_path / "run"), cores=2).origin
    assert "16 turns of a worker" in origin["compute"]
    assert {
        "assumed" in origin[name] for name in ("crowding", "time of Redis itself", "master")
    } == {True}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "hybrid"}, "a run of mode hybrid, whose turns are of several kinds; give one"),
        (
            {"host": "10.0.0.5"},
            "a run over a network, whose time is part of its turns; give one",
        ),
        (
            {"compress": "int8"},
            "a run with compression, whose time is part of its turns; give one without",
        ),
        ({"turns": 5}, "too short a run: no worker has 5 turns after its first; give a longer one"),
        ({"timings": False}, "too short a run"),
    ],
)
def test_a_run_that_cannot_tell_is_refused_with_the_reason(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        from_run(write_run(tmp_path / "run", **options), cores=2)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no metrics\.jsonl"):
        from_run(tmp_path, cores=2)


def test_messages_are_what_a_run_has_beyond_what_was_measured(tmp_path: Path) -> None:
    """Shared memory, read 1 ms and written 1 ms; 10 ms of rest, of which the master took 2 + 4 x 0.5 ms."""
    four = dict.fromkeys(("check", "merge", "publish", "handle"), 0.0005)
    measured = calibration(nbytes=NBYTES, shared_memory=passage(0.001), near=passage(0.003), **four)
    run = write_run(tmp_path / "run")
    assert with_run(run, measured).message == pytest.approx(0.003)
    redis = write_run(tmp_path / "redis", same_node="redis")
    assert with_run(redis, measured).message == pytest.approx(0.001)
    far = write_run(tmp_path / "far", host="10.0.0.5")
    # There the master reads payloads out of Redis and writes centers into both.
    told = with_run(far, measured)
    assert (told.message, told.far_message) == (0.0, pytest.approx(0.0005))


@pytest.mark.parametrize("options", [{"host": "10.0.0.5", "overlap": "far"}, {"overlap": "all"}])
def test_turns_that_overlapped_tell_nothing(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"turns overlapped.* give one of --overlap none"):
        check_run(write_run(tmp_path / "run", **options))
    check_run(write_run(tmp_path / "here", overlap="far"))


def test_a_lone_worker_tells_what_its_turns_take_beyond_their_parts(tmp_path: Path) -> None:
    """Fetch 2 ms, compute 40 ms, publish 3 ms; measured alone were 1 ms, 39.5 ms and 1 ms."""
    steps = (StepTime(samples=64, seconds=0.0395),)
    measured = calibration(nbytes=NBYTES, batch_size=64, steps=steps, near=passage(0.001))
    told = with_run(write_run(tmp_path / "run"), measured)
    assert (told.load, told.seal) == (pytest.approx(0.0015), pytest.approx(0.002))
    speed = predict(told, Site(2), "async", 1, 1).images_per_s
    assert speed == pytest.approx(64 / 0.055, rel=0.01)
    alone = measured.model_copy(update={"load": 0.002})
    far = with_run(write_run(tmp_path / "far", host="10.0.0.5"), alone)
    assert (far.load, far.seal, far.far_load) == (0.002, 0.0, pytest.approx(0.0025))
    assert "turns between machines" in far.origin
    two = with_run(write_run(tmp_path / "two", workers=2), measured)
    assert (two.load, two.seal) == (0.0, 0.0)


def test_messages_are_not_taken_from_a_run_of_another_net(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is a run of another net: 4\.0 MB of parameters, the solver's 12\.5 MB"
    ):
        with_run(write_run(tmp_path / "run"), calibration())


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    told = from_run(write_run(tmp_path / "run"), cores=2)
    write_calibration(told, tmp_path / "told.json")
    assert read_calibration(tmp_path / "told.json") == told


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "not JSON"])
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "told.json").write_text(text)
    with pytest.raises(ConfigError, match="holds no calibration of this version"):
        read_calibration(tmp_path / "told.json")


def write_team_run(folder: Path, members: int = 3, rounds: int = 10) -> Path:
    """As `write_run`, of a team: rounds of 40 ms, and 6 ms in which the slowest member met and summed.

    The leader, worker 1, fetches for 2 ms and publishes for 3 ms; the others wait for it, and for slower ones.
    """
    write_run(folder, mode="sync", workers=members, split_batch=False)
    lines = []
    for turn in range(20):
        time = 3.0 + turn * (0.005 + rounds * 0.046 + 0.010)
        for worker in range(members):
            waited = 0.001 * abs(worker - 1)
            own = {
                "fetch": 0.002, "compute": rounds * (0.040 - waited), "team": rounds * (0.006 + waited),
                "publish": 0.003 if worker == 1 else 0.0,
            }  # fmt: skip
            lines.append(
                {
                    "time": round(time, 6), "event": "result", "decision": "merged", "worker": worker,
                    "version": 1, "iteration": 1, "staleness": 0, "samples": rounds * 64,
                    "loss": 1.0, "losses": [1.0] * rounds, "timings": own,
                }
            )  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_of_a_team_tells_steps_the_leaders_exchanges_and_meetings(tmp_path: Path) -> None:
    told = from_run(write_team_run(tmp_path / "run"), cores=4)
    assert told.batch_size == 64
    assert told.step_seconds(64) == pytest.approx((0.040 + 2 * 0.039) / 3)
    assert told.far.read.seconds == pytest.approx(0.002)
    assert told.far.write.seconds == pytest.approx(0.003)
    # 10 ms are left as in a run without a team; 0.8 ms of the 6 ms were the sum, the rest two meetings with two others.
    assert told.message == pytest.approx((0.010 - 0.0016 - 0.005 - HANDLE_S) / 2)
    assert told.meeting == pytest.approx((0.006 - 0.0008) / 4)
    assert "from the turns of" in told.origin["teams"]
    alone = from_run(write_run(tmp_path / "alone"), cores=4)
    assert alone.meeting == MEETING_S
    assert alone.origin["teams"].startswith("assumed: 0.03 ms")


def test_beside_a_measured_net_a_team_tells_its_meetings(tmp_path: Path) -> None:
    measured = calibration(nbytes=NBYTES, load=0.001, merge=0.002, near=passage(0.001))
    told = with_run(write_team_run(tmp_path / "run"), measured)
    assert told.meeting == pytest.approx((0.006 - 0.001 - 0.002) / 4)


def test_a_run_with_threads_has_steps_of_as_many(tmp_path: Path) -> None:
    assert from_run(write_run(tmp_path / "two", threads="2"), cores=4).threads == 2
    assert from_run(write_run(tmp_path / "one"), cores=4).threads == 1
