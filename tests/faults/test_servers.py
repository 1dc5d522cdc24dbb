"""Row 20: a server of the center is killed, before, in or after a merge; its Redis is; its host is cut off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rows import MODES, Finding, row
from tests.faults.running import HANG_S, Run
from tests.support.commands import Commands
from tests.support.network import Host, network

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
SERVERS = ("--servers", "2", "--checkpoint-interval", "2")
CUT_OFF_S = 20.0


def resumed_with_others(run: Run) -> None:
    """The run goes on from its checkpoint with another number of servers and of workers."""
    run.wait_for(lambda: run.lines("checkpoint"))
    run.stop_and_check()
    run.resume("--servers", "3", "--workers", "3", "--min-workers", "1")
    run.wait_for(lambda: run.lines("resumed"))
    run.goes_on(30)
    run.stop_and_check()


@row(20, "a server of the center killed before a merge, in it, and after it; the run begins again")
def test_a_run_whose_server_is_killed_in_a_merge_begins_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding, tmp_path: Path
) -> None:
    begins_again(speedo, problem, mode, finding, tmp_path)


@row(20, "the same where servers apply the solver's update", MODES[:-1])
def test_a_run_with_the_solvers_history_on_a_server_begins_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding, tmp_path: Path
) -> None:
    begins_again(speedo, problem, mode, finding, tmp_path, "--server-gradient")


def begins_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding, tmp_path: Path, *options: str
) -> None:
    """Once in each attempt; in `make test` tests/actors/test_servers.py tries it."""
    points = ("server-merging", "server-merged", "server-published")
    done = [tmp_path / name for name in ("done", "done.1", "done.2")]
    run = Run(
        speedo, problem, mode, *SERVERS, *options,
        environment={
            "SPEEDO_FAILPOINT": " ".join(f"{point}:1@200" for point in points),
            "SPEEDO_FAILPOINT_DONE": str(done[0]),
        },
    )  # fmt: skip
    for number, mark in enumerate(done, start=1):
        run.wait_for(mark.exists)
        since = time.monotonic()
        run.wait_for(lambda number=number: run.log().count("server 1 at here is lost: ") >= number)
        finding.recovered(run.recovery(since))
    run.goes_on(20)
    run.stop_and_check()


@row(20, "the Redis of every server killed; they come back empty; resumed with others")
def test_the_redis_of_a_server_that_is_killed_is_filled_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, *SERVERS)
    run.has_begun()
    all_of_them = run.speedo.programs("redis-server")
    for victim in sorted(all_of_them, key=lambda one: one.create_time())[-2:]:
        victim.kill()
    finding.recovered(run.recovery(time.monotonic()))
    run.goes_on(30)
    resumed_with_others(run)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(3) as made:
        yield made


@row(20, "the host of a server cut off for 20 s")
def test_a_run_with_a_server_whose_host_is_cut_off_begins_again(
    speedo: Commands, problem: Path, mode: str, hosts: list[Host], finding: Finding
) -> None:
    chief, *others = hosts
    run = Run(
        speedo, problem, mode, *SERVERS, "--timeout", "300", "--host", chief.address,
        command="master", inside=chief.inside,
    )  # fmt: skip
    members = [
        speedo.start("worker", "--master", chief.address, "--timeout", "300", inside=host.inside)
        for host in others
    ]
    run.has_begun()
    run.wait_for(lambda: run.lines("checkpoint"))
    cut = time.monotonic()
    others[0].pull_the_cable()
    time.sleep(CUT_OFF_S)
    others[0].plug_in_again()
    run.recovery(time.monotonic())
    finding.recovered(time.monotonic() - cut)
    run.goes_on(20)
    run.stop()
    for member in members:
        _, errors = member.communicate(timeout=HANG_S)
        assert member.returncode == 0, errors
    run.check(gap_s=120.0)
