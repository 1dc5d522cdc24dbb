"""A worker that becomes slow gets a smaller share of the batch in the same process; a resumed run keeps the shares."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from speedo.run_dir.checkpoint_file import checkpoints_in, read_checkpoint
from speedo.run_dir.directory import CHECKPOINTS
from tests.support.bundled_nets import Bench
from tests.support.commands import Commands, interrupt, wait_for_line
from tests.support.invariants import read_lines
from tests.support.throttled import throttle

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
ENDLESS = ("--max-iter", "1000000", "--test-interval", "0")


def sizes_in(run: Path) -> tuple[int, ...]:
    """The shares of the newest checkpoint."""
    workers = read_checkpoint(checkpoints_in(run / CHECKPOINTS)[0]).workers
    return tuple(one.batch_size for _, one in sorted(workers.items()))


def lines(run: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "metrics.jsonl") if line["event"] == event]


def merged(run: Path) -> list[dict[str, Any]]:
    """Others have no version and no samples."""
    return [line for line in lines(run, "result") if line["decision"] == "merged"]


@pytest.mark.parametrize("team", ["host", pytest.param("off", marks=pytest.mark.matrix)])
def test_a_worker_at_a_tenth_of_its_speed_gets_fewer_records(
    speedo: Commands, tmp_path: Path, team: str
) -> None:
    net, run = Bench.make("lenet", tmp_path / "lenet"), tmp_path / "run"
    options = ("--mode", "sync", "--team", team, "--run-dir", "run", *ENDLESS)
    process = speedo.start("train", str(net.solver(64)), *options)
    wait_for_line(run / "metrics.jsonl", '"version":3,', WAIT_S, process)
    over = threading.Event()
    slow = threading.Thread(target=throttle, args=({speedo.workers()[1].pid: 0.1}, over))
    slow.start()
    try:
        wait_for_line(run / "metrics.jsonl", '"event":"divided"', WAIT_S, process)
        version = merged(run)[-1]["version"]
        wait_for_line(run / "metrics.jsonl", f'"version":{version + 4},', WAIT_S, process)
    finally:
        over.set()
        slow.join()
    interrupt(process)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, errors
    divided = lines(run, "divided")[-1]
    fast, less = divided["records"]
    assert fast + less == 64
    assert less < 28  # a loaded machine lets it compute for more than a tenth of the time
    assert divided["reason"] in errors
    last = [line for line in merged(run) if line["version"] == version + 4]
    assert {line["worker"]: line["samples"] // line["steps"] for line in last} == {0: fast, 1: less}
    assert len(lines(run, "joined")) == 2, "no process began again"
    assert sizes_in(run) == (fast, less)

    begun = len(merged(run))
    process = speedo.start("train", "--resume", "run", "--max-iter", "1000000")
    wait_for_line(run / "metrics.jsonl", '"event":"resumed"', WAIT_S, process)
    version = lines(run, "resumed")[0]["version"]
    wait_for_line(run / "metrics.jsonl", f'"version":{version + 2},', WAIT_S, process)
    interrupt(process)
    _, errors = process.communicate(timeout=WAIT_S)
    assert "lost" not in errors, "momentum began at 0"
    shares = [line["samples"] // line["steps"] for line in merged(run)[begun:][:2]]
    assert sorted(shares) == sorted((fast, less))
