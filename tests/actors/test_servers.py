"""`speedo train --servers`: the same model, and what becomes of a server, or of its Redis, that is killed."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from speedo.data.roots import default_data_root
from speedo.run.prepare import chosen_solver
from speedo.run_dir.checkpoint_file import latest
from tests.runs.local import model_made_here
from tests.support.commands import Commands, interrupt, wait_for_line

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 120


def train(problem: Path | None, run: str, servers: str, *options: str) -> tuple[str, ...]:
    solver = () if problem is None else (str(problem),)
    return (
        "train", *solver, "--servers", servers, "--seed", "5", "--test-interval", "0", "--run-dir", run, *options,
    )  # fmt: skip


def outcome(process: Any, folder: Path) -> tuple[dict[str, Any], str]:
    """Result and standard error of a run that is over well."""
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    return json.loads((folder / "result.json").read_text()), errors


def merges(folder: Path) -> list[tuple[int, int]]:
    """Worker and ticket of each merged result, by the run's log."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    return [(line["worker"], line["ticket"]) for line in lines if line.get("decision") == "merged"]


def started_last(speedo: Commands, word: str, count: int) -> list[psutil.Process]:
    """The `count` youngest processes whose command begins with this word, after its path."""
    found = [
        one for one in speedo.left() if Path(" ".join(one.cmdline()[:1])).name.startswith(word)
    ]
    return sorted(found, key=lambda one: one.create_time())[-count:]


@pytest.mark.slow
def test_lenet_over_servers_is_the_same_to_the_bit(speedo: Commands, tmp_path: Path) -> None:
    process = speedo.start(*train(None, "run", "2", "--workers", "1", "--max-iter", "30"))
    result, _ = outcome(process, tmp_path / "run")
    assert result["complete"]
    alone = model_made_here(
        chosen_solver(None), tmp_path / "alone", data_root=default_data_root().absolute(),
        workers=1, max_iter=30, seed=5,
    )  # fmt: skip
    assert (tmp_path / "run" / "model.caffemodel").read_bytes() == alone


@pytest.mark.parametrize("mode", ["async", "easgd"])
def test_two_workers_and_overlapping_turns_end_with_all_their_work(
    speedo: Commands, problem: Path, tmp_path: Path, mode: str
) -> None:
    options = ("--mode", mode, "--workers", "2", "--max-iter", "60", "--overlap", "all")
    compress = ("--compress", "int8", "--compress-center", "bfloat16")
    process = speedo.start(*train(problem, "run", "3", *options, *compress))
    result, _ = outcome(process, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 60)
    assert len(set(merges(tmp_path / "run"))) == 60
    kept = "".join(one.read_text(errors="replace") for one in (tmp_path / "run").rglob("*.*"))
    assert re.findall(r"rediss?://[^ ]*@", kept) == []


@pytest.mark.parametrize(
    "mode", [("partial",), ("weed-out",), ("hybrid", "--phase", "sync:10", "--phase", "easgd:10")]
)
def test_every_mode_ends_with_all_its_work(
    speedo: Commands, problem: Path, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    process = speedo.start(
        *train(problem, "run", "2", "--workers", "2", "--max-iter", "40", "--mode", *mode)
    )
    result, _ = outcome(process, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 40)


def test_status_shows_the_servers_of_a_team(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    run = speedo.start(*train(problem, "run", "2", "--workers", "2", "--max-iter", "1000000"))
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":3,', 90)
    asked = speedo.start("status", "--json")
    out, errors = asked.communicate(timeout=WAIT_S)
    assert asked.returncode == 0, errors
    (told,) = json.loads(out)["runs"]
    assert [(one["server"], one["host"], one["state"]) for one in told["servers"]] == [
        (0, "here", "serving"),
        (1, "here", "serving"),
    ]
    interrupt(run)
    _, errors = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, errors
    assert "Traceback" not in errors


def clipping(problem: Path) -> Path:
    """The same problem, with gradients that are clipped."""
    problem.write_text(problem.read_text() + "clip_gradients: 0.1\n")
    return problem


@pytest.mark.slow
def test_lenet_with_the_solvers_update_on_servers_is_that_of_the_master(
    speedo: Commands, tmp_path: Path
) -> None:
    centers = []
    options = ("--workers", "1", "--max-iter", "30", "--server-gradient")
    for servers in ("0", "2"):
        process = speedo.start(*train(None, f"run{servers}", servers, *options))
        outcome(process, tmp_path / f"run{servers}")
        _, kept, _ = latest(tmp_path / f"run{servers}" / "checkpoints")
        assert kept.master_history
        centers.append(kept.center.astype(float))
    assert np.linalg.norm(centers[0] - centers[1]) < 1e-6 * np.linalg.norm(centers[0])


@pytest.mark.parametrize(
    ("point", "extra"),
    [
        ("server-merging", ()),
        ("server-merged", ()),
        ("server-published", ()),
        ("server-published", ("--server-gradient",)),  # before its history is there
    ],
)
def test_a_server_that_is_killed_in_a_merge_is_replaced_and_no_bit_changes(
    speedo: Commands, problem: Path, tmp_path: Path, point: str, extra: tuple[str, ...]
) -> None:
    options = ("--workers", "2", "--max-iter", "30", "--team", "off", *extra)
    problem = clipping(problem) if extra else problem
    process = speedo.start(
        *train(problem, "run", "2", *options),
        environment={
            "SPEEDO_FAILPOINT": f"{point}:1@20",
            "SPEEDO_FAILPOINT_DONE": str(tmp_path / "done"),
        },
    )
    result, errors = outcome(process, tmp_path / "run")
    assert (tmp_path / "done").exists()
    assert "warning: server 1 is lost: " in errors
    assert "server 1 is back, with version " in errors
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    results = [line for line in lines if line.get("event") == "result"]
    merged = [line for line in results if line["decision"] == "merged"]
    assert (result["complete"], result["iteration"]) == (True, 30)
    assert len({(one["worker"], one["ticket"]) for one in merged}) == len(merged)
    assert sum(one["samples"] for one in merged) == 30 * 8
    gave_up = [one for one in results if one["decision"] != "merged"]
    if (
        gave_up
    ):  # on a busy machine the server takes longer to come back than a worker looks for its range
        assert all(":center:" in one["reason"] for one in gave_up), gave_up
        return
    assert result["version"] == 30
    more = {"server_gradient": True, "servers": "2"} if extra else {}
    sound = model_made_here(
        problem, tmp_path / "sound", workers=2, team="off", max_iter=30, seed=5, **more
    )
    assert (tmp_path / "run" / "model.caffemodel").read_bytes() == sound


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_redis_of_a_server_that_is_killed_comes_back(
    speedo: Commands, problem: Path, tmp_path: Path, how: signal.Signals
) -> None:
    process = speedo.start(
        *train(problem, "run", "2", "--mode", "async", "--workers", "2", "--max-iter", "600")
    )
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    victims = started_last(speedo, "redis-server", 2)
    assert len(victims) == 2
    for victim in victims:
        victim.send_signal(how)
    if how == signal.SIGSTOP:
        time.sleep(3)
        for victim in victims:
            victim.send_signal(signal.SIGCONT)
    result, _ = outcome(process, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 600)


def test_a_server_and_its_redis_that_are_killed_together_cost_what_no_worker_has(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    process = speedo.start(
        *train(problem, "run", "2", "--mode", "async", "--workers", "2", "--max-iter", "600"),
        "--checkpoint-interval", "0",
    )  # fmt: skip
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":100,', 90)
    servers = started_last(speedo, "ray::ServerActor", 2)
    assert len(servers) == 2
    for victim in (*started_last(speedo, "redis-server", 2), *servers):
        victim.kill()
    result, errors = outcome(process, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 600)
    told = re.findall(
        r"has lost its range with its store: it goes on from version (\d+), which here has of it; "
        r"merges lost in this range: (\d+)",
        errors,
    )
    assert len(told) == 2  # of both servers
    assert all(int(version) >= 50 and int(lost) < 200 for version, lost in told), told
    assert "goes back" not in errors


@pytest.mark.parametrize(("extra", "other"), [((), "0"), (("--server-gradient",), "1")])
def test_a_run_with_servers_is_resumed_with_another_number(
    speedo: Commands, problem: Path, tmp_path: Path, extra: tuple[str, ...], other: str
) -> None:
    """With gradients too the history is whole: the bits are those of a run without interruption on one server."""
    problem = clipping(problem) if extra else problem
    options = ("--workers", "2", "--team", "off", *extra)
    first = speedo.start(*train(problem, "run", "2", "--max-iter", "20", *options))
    outcome(first, tmp_path / "run")
    again = speedo.start(
        "train", str(problem), "--resume", "run", "--servers", "3", "--max-iter", "40", "--test-interval", "0",
        "--seed", "5", *options,
    )  # fmt: skip
    result, _ = outcome(again, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 40)
    more = {"server_gradient": True} if extra else {}
    whole = model_made_here(
        problem,
        tmp_path / "whole",
        workers=2,
        team="off",
        max_iter=40,
        seed=5,
        servers=other,
        **more,
    )
    assert (tmp_path / "run" / "model.caffemodel").read_bytes() == whole
