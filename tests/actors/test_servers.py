"""`speedo train --servers`: the same model, and what becomes of a server, or of its Redis, that is killed.

A start costs more than all that is looked at here, so what can happen in one run does.
"""

from __future__ import annotations

import json
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from speedo.data.roots import default_data_root
from speedo.run.prepare import chosen_solver
from speedo.run_dir.checkpoint_file import latest
from tests.faults.scripts import kept
from tests.support.commands import Commands, interrupt, wait_for_line
from tests.support.processes import words_of
from tests.whole_runs.local import model_made_here, weights_in

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


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
        one for one in speedo.left() if Path(" ".join(words_of(one)[:1])).name.startswith(word)
    ]
    return sorted(found, key=lambda one: one.create_time())[-count:]


@pytest.mark.matrix
@pytest.mark.slow
def test_lenet_with_the_solvers_update_on_servers_is_that_of_the_master(
    speedo: Commands, tmp_path: Path
) -> None:
    """With processes for servers to the bit what they are in this one."""
    process = speedo.start(
        *train(None, "run", "2", "--workers", "1", "--max-iter", "30", "--server-gradient")
    )
    here = partial(
        model_made_here, chosen_solver(None), data_root=default_data_root().absolute(), workers=1, max_iter=30,
        seed=5, server_gradient=True,
    )  # fmt: skip
    served, alone = here(tmp_path / "served", servers="2"), here(tmp_path / "alone")
    result, _ = outcome(process, tmp_path / "run")
    assert result["complete"]
    assert (tmp_path / "run" / "model.caffemodel").read_bytes() == served
    _, kept, _ = latest(tmp_path / "run" / "checkpoints")
    assert kept.master_history
    centers = [weights_in(model) for model in (served, alone)]
    assert np.linalg.norm(centers[0] - centers[1]) < 1e-6 * np.linalg.norm(centers[0])


def test_turns_that_overlap_end_with_all_their_work(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    options = ("--mode", "async", "--workers", "2", "--max-iter", "60", "--overlap", "all")
    compress = ("--compress", "int8", "--compress", "center=bfloat16")
    process = speedo.start(*train(problem, "run", "3", *options, *compress))
    result, _ = outcome(process, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 60)
    assert len(set(merges(tmp_path / "run"))) == 60
    kept = "".join(one.read_text(errors="replace") for one in (tmp_path / "run").rglob("*.*"))
    assert re.findall(r"rediss?://[^ ]*@", kept) == []


@pytest.mark.matrix
def test_a_phase_of_every_mode_ends_with_all_its_work(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    """To which each phase waits for the results that are under way."""
    modes = ("partial", "weed-out", "sync", "async", "easgd")
    phases = [word for mode in modes for word in ("--phase", f"{mode}:10")]
    process = speedo.start(
        *train(problem, "run", "2", "--workers", "2", "--max-iter", "50", "--mode", "hybrid"), *phases
    )  # fmt: skip
    result, _ = outcome(process, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 50)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert sum(line["samples"] for line in lines if line.get("decision") == "merged") == 50 * 8


def clipping(problem: Path) -> Path:
    """The same problem, with gradients that are clipped."""
    problem.write_text(problem.read_text() + "clip_gradients: 0.1\n")
    return problem


@pytest.mark.parametrize(
    "extra", [(), pytest.param(("--server-gradient",), marks=pytest.mark.matrix)]
)
def test_a_run_whose_server_is_killed_in_a_merge_begins_again_from_its_checkpoint(
    speedo: Commands, problem: Path, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    """Before a merge, in it, after it, one in each attempt; then it is resumed with another number of servers."""
    points = ("server-merging", "server-merged", "server-published")
    options = ("--workers", "2", "--team", "off", "--checkpoint-interval", "0.001", *extra)
    problem = clipping(problem) if extra else problem
    process = speedo.start(
        *train(problem, "run", "2", "--max-iter", "60", *options),
        environment={
            "SPEEDO_FAILPOINT": " ".join(f"{point}:1@10" for point in points),
            "SPEEDO_FAILPOINT_DONE": str(tmp_path / "done"),
        },
    )
    result, errors = outcome(process, tmp_path / "run")
    told = re.findall(
        r"warning: server 1 at here is lost: .*: the run begins again from the newest checkpoint",
        errors,
    )
    assert len(told) == len(points), errors
    assert (tmp_path / "done.2").exists()
    assert (result["complete"], result["iteration"]) == (True, 60)
    assert trained(tmp_path / "run") == 60 * 8
    again = speedo.start(
        "train", "--resume", "run", "--servers", "3", "--max-iter", "80", "--seed", "5", *options
    )
    result, _ = outcome(again, tmp_path / "run")
    assert (result["complete"], result["iteration"]) == (True, 80)
    assert trained(tmp_path / "run") == 80 * 8


def trained(folder: Path) -> int:
    """The records of all results that count."""
    lines = kept(json.loads(line) for line in whole_lines(folder))
    return sum(line["samples"] for line in lines if line.get("decision") == "merged")


def goes_on(folder: Path, versions: int = 50) -> None:
    """Wait until this many more are merged."""
    last = [json.loads(line) for line in whole_lines(folder) if '"decision":"merged"' in line][-1]
    wait_for_line(folder / "metrics.jsonl", f'"version":{last["version"] + versions},', 90)


def whole_lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()


def test_a_redis_of_servers_comes_back_and_a_server_lost_with_it_ends_the_attempt(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    """The Redis of both servers stands still, then is killed, then with its server. `speedo status` shows both."""
    folder = tmp_path / "run"
    process = speedo.start(
        *train(problem, "run", "2", "--mode", "async", "--workers", "2", "--max-iter", "1000000"),
        "--checkpoint-interval", "1",
    )  # fmt: skip
    wait_for_line(folder / "metrics.jsonl", '"version":10,', 90)
    asked = speedo.start("status", "--json")
    out, errors = asked.communicate(timeout=WAIT_S)
    assert asked.returncode == 0, errors
    (told,) = json.loads(out)["runs"]
    assert [(one["server"], one["host"], one["state"]) for one in told["servers"]] == [
        (0, "here", "serving"),
        (1, "here", "serving"),
    ]
    for how in (signal.SIGSTOP, signal.SIGKILL):
        victims = started_last(speedo, "redis-server", 2)
        assert len(victims) == 2
        for victim in victims:
            victim.send_signal(how)
        if how == signal.SIGSTOP:
            time.sleep(3)
            for victim in victims:
                victim.send_signal(signal.SIGCONT)
        goes_on(folder)
    assert "begins again" not in (folder / "train.log").read_text()

    wait_for_line(folder / "metrics.jsonl", '"event":"checkpoint"', 90)
    servers = started_last(speedo, "ray::ServerActor", 2)
    assert len(servers) == 2
    for victim in (*started_last(speedo, "redis-server", 2), *servers):
        victim.kill()
    wait_for_line(folder / "metrics.jsonl", '"event":"resumed"', 90)
    goes_on(folder)
    interrupt(process)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert re.search(
        r"warning: server [01] at here is lost: .*: the run begins again from the newest checkpoint",
        errors,
    )
