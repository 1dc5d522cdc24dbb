"""Rows 5, 6 and 7: Redis is killed, full, stands still or is slow."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.rows import Finding, Findings, row, scenario
from tests.faults.running import BY_REDIS, OVERLAP, OVERLAPPING, Run, stand_still
from tests.support.commands import Commands
from tests.support.store_server import OwnRedis, Proxy

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
STALL_S = 20.0


def troubles(run: Run) -> list[str]:
    return [line["problem"] for line in run.lines("store") if line["problem"]]


def check_store_was_blamed(run: Run, gap_s: float = 60.0) -> None:
    """Nobody else paid for it: no worker left or was set aside."""
    lines = run.stop_and_check(gap_s=gap_s)
    assert not [line for line in lines if line["event"] in ("left", "set-aside")]


PRIVATE = "the run's own Redis killed; it comes back empty"
KEEPER = "the keeper of the run's own Redis killed, and the server with it"
STOPPED = "Redis stopped for 20 s (SIGSTOP)"


@scenario({PRIVATE: 5, KEEPER: 5, STOPPED: 7}, usual="weed-out")
def test_a_run_outlives_what_happens_to_its_own_redis(
    speedo: Commands, problem: Path, mode: str, findings: Findings
) -> None:
    run = Run(speedo, problem, mode, *BY_REDIS)
    with findings.tries(PRIVATE) as finding:
        kill_redis_twice(run, finding)
        waited = any("waiting:" in one.read_text() for one in run.dir.glob("logs/worker-*.log"))
        assert waited or troubles(run) or run.results("refused"), "nothing was told"
    with findings.tries(KEEPER) as finding:
        for _ in range(2):
            (server,) = speedo.programs("redis-server")
            keeper = server.parent()
            assert keeper is not None
            keeper.kill()
            finding.recovered(run.recovery(time.monotonic()))
            run.goes_on(30)
        assert run.lines("resumed") == []
    with findings.tries(STOPPED) as finding:
        told = len(troubles(run))
        (server,) = speedo.programs("redis-server")
        stand_still(server)
        since = time.monotonic()
        run.wait_for(lambda: len(troubles(run)) > told, 20)
        finding.note = f"reported after {time.monotonic() - since:.1f} s"
        time.sleep(max(0.0, STALL_S - (time.monotonic() - since)))
        server.resume()
        finding.recovered(run.recovery(since))
        run.goes_on(30)
    check_store_was_blamed(run, gap_s=60.0 + STALL_S)


def kill_redis_twice(run: Run, finding: Finding) -> None:
    run.has_begun()
    for _ in range(2):
        (server,) = run.speedo.programs("redis-server")
        server.kill()
        finding.recovered(run.recovery(time.monotonic()))
        run.goes_on(30)
    finding.note = "killed twice"


USERS_EMPTY = "a user's Redis killed, and started again empty"
USERS_DATA = "a user's Redis ended, and started again with its data"
NO_MEMORY = "Redis out of memory"


@scenario({USERS_EMPTY: 5, USERS_DATA: 5, NO_MEMORY: 6}, usual="sync")
def test_a_run_outlives_what_happens_to_its_users_redis(
    speedo: Commands, problem: Path, mode: str, findings: Findings
) -> None:
    with OwnRedis() as server:
        run = Run(speedo, problem, mode, *server.options, environment=server.environment)
        run.has_begun()
        for fault, end in ((USERS_EMPTY, server.kill), (USERS_DATA, server.end_with_data)):
            with findings.tries(fault) as finding:
                end()
                since = time.monotonic()
                time.sleep(2.0)
                server.start()
                finding.recovered(run.recovery(since))
                finding.note = "away for 2 s"
                run.goes_on(30)
        with findings.tries(NO_MEMORY) as finding:
            server.admin().config_set("maxmemory", "1mb")
            since = time.monotonic()
            run.wait_for(lambda: any("memory" in one for one in troubles(run)))
            told = time.monotonic() - since
            run.wait_for(lambda: "memory" in run.log(), 20)
            server.admin().config_set("maxmemory", "0")
            finding.recovered(run.recovery(time.monotonic()))
            finding.note = f"reported after {told:.1f} s; counted from when there was room"
            run.goes_on(30)
            assert int(server.admin().info("stats")["evicted_keys"]) == 0
        check_store_was_blamed(run)


@row(
    5, "the run's own Redis killed under turns that overlap; the run resumed", OVERLAPPING, "async"
)
def test_a_redis_that_is_killed_under_turns_that_overlap(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, *OVERLAP, *BY_REDIS, "--checkpoint-interval", "2")
    kill_redis_twice(run, finding)
    finding.note = "killed twice"
    killed = len(run.lines("checkpoint"))
    run.wait_for(lambda: run.lines("checkpoint")[killed + 1 :])  # one that began after both
    # Of two workers that wait for the master, a result meets one of the other's at most times; ahead, it meets two.
    assert sum(line["staleness"] for line in run.merged()) > 1.2 * len(run.merged())
    check_store_was_blamed(run)
    assert not [line for line in run.lines("checkpoint")[killed + 1 :] if line["problem"]]
    run.resume()
    run.wait_for(lambda: run.lines("resumed"))
    run.goes_on(30)
    run.stop_and_check()


@row(7, "a slow way to Redis: 0.2 s for every 64 KiB")
def test_a_slow_way_to_redis_only_takes_longer(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    with OwnRedis() as server, Proxy(server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        run = Run(speedo, problem, mode, "--redis", url, environment=server.environment)
        run.has_begun()
        proxy.delay_s = 0.2
        finding.recovered(run.recovery(time.monotonic()))
        run.goes_on(3)
        proxy.delay_s = 0.0
        run.goes_on(30)
        check_store_was_blamed(run)
