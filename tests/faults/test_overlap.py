"""Turns that overlap, under the faults that meet them in the middle; `make faults` has the other rows without."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.commands import Commands
from tests.faults.rows import Finding, row
from tests.faults.running import BY_REDIS, Run

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
# Stale results of two workers with momentum, added whole, let this net diverge at its own rate.
ALL = ("--overlap", "all", "--lr", "0.0002")
MODES = ("async", "easgd")


@row(1, "worker killed in the middle of a push, with its next turn under way", MODES, "easgd")
def test_a_worker_killed_between_two_turns_that_overlap(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """What it was computing is lost with what it was sending, and neither is merged."""
    done = speedo.folder / "done"
    run = Run(
        speedo, problem, mode, *ALL,
        environment={"SPEEDO_FAILPOINT": "worker-pushing:1@20", "SPEEDO_FAILPOINT_DONE": str(done)},
    )  # fmt: skip
    run.wait_for(done.exists)
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: len(run.merged(1, 2)) > 5)
    lines = run.stop_and_check()
    (left,) = [line for line in lines if line["event"] == "left"]
    assert (left["worker"], left["incarnation"]) == (1, 1)
    own = [line for line in lines if line["event"] == "result" and line["worker"] == 1]
    assert len([line for line in own if line["incarnation"] == 1]) == 19
    assert not [line for line in own if line["decision"] == "refused"]


@row(5, "the run's own Redis killed under turns that overlap; the run resumed", MODES, "async")
def test_a_redis_that_is_killed_under_turns_that_overlap(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, *ALL, *BY_REDIS, "--checkpoint-interval", "2")
    run.has_begun()
    for _ in range(2):
        (server,) = [one for one in run.processes("redis-server") if one.name() == "redis-server"]
        server.kill()
        finding.recovered(run.recovery(time.monotonic()))
        run.goes_on(30)
    run.wait_for(lambda: run.lines("checkpoint"))
    # Of two workers that wait for the master, each result meets one of the other's at most times; ahead, it meets two.
    assert sum(line["staleness"] for line in run.merged()) > 1.2 * len(run.merged())
    lines = run.stop_and_check()
    assert not [line for line in lines if line["event"] in ("left", "set-aside")]
    assert not [line for line in lines if line["event"] == "checkpoint" and line["problem"]]
    run.resume()
    run.wait_for(lambda: run.lines("resumed"))
    run.goes_on(30)
    run.stop_and_check()


@row(19, "shards dealt out anew under turns that overlap", MODES, "async")
def test_workers_that_take_other_shards_between_turns_that_overlap(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(
        speedo, problem, mode, *ALL, "--workers", "3", "--restarts", "0", "--reshard-after", "1"
    )
    run.has_begun()
    run.workers()[1].kill()
    finding.recovered(run.recovery(time.monotonic()))
    run.wait_for(lambda: run.merged(0, 2) or run.merged(2, 2))
    run.goes_on(20)
    run.stop_and_check()
