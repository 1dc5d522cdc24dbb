"""Rows 8 and 17: a network that breaks between hosts, and Ray's own processes that die."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.rows import EVERY, Finding, row
from tests.faults.running import HANG_S, Run
from tests.support.commands import Commands, how_loaded
from tests.support.invariants import Line
from tests.support.network import Host, ip, network
from tests.support.store_server import OwnRedis

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
TIMEOUT = ("--timeout", "300")
SERVED_S = 10.0


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(4) as made:
        yield made


@contextmanager
def one_way(sender: Host, receiver: Host) -> Iterator[None]:
    """What `sender` says does not reach `receiver`, and nobody is told; the other way is open."""
    route = ("route", "add", "blackhole", f"{receiver.address}/32")
    ip("-n", sender.name, *route)
    try:
        yield
    finally:
        ip("-n", sender.name, "route", "del", *route[2:])


class Spread:
    """A master on the first host, a worker on each of the next two, Redis on the last."""

    def __init__(
        self, speedo: Commands, solver: Path, mode: str, hosts: list[Host], redis: OwnRedis
    ) -> None:
        self.chief, *self.members, _ = hosts
        self.run = Run(
            speedo, solver, mode, *redis.options, *TIMEOUT, "--host", self.chief.address,
            command="master", environment=redis.environment, inside=self.chief.inside,
        )  # fmt: skip
        self.hosts = [
            speedo.start("worker", "--master", self.chief.address, *TIMEOUT, inside=member.inside)
            for member in self.members
        ]
        self.run.has_begun()

    @property
    def far_host(self) -> str:
        """The name that the log has for the second host, when its worker first joined."""
        return next(one["host"] for one in self.run.lines("joined") if one["worker"] == self._far)

    @property
    def far(self) -> int:
        """The slot of the worker on the second host."""
        self._far = next(
            slot for slot, place in self.places().items() if place == self.members[1].name
        )
        return self._far

    def places(self) -> dict[int, str]:
        """The namespace of each worker's process."""
        inside = {number: host.name for host in self.members for number in host.processes()}
        return {slot: inside[worker.pid] for slot, worker in self.run.workers().items()}

    def stop_and_check(self, gap_s: float = 60.0) -> list[Line]:
        self.run.stop()
        for host in self.hosts:
            _, errors = host.communicate(timeout=HANG_S)
            assert host.returncode == 0, errors
        return self.run.check(gap_s=gap_s)


@pytest.fixture
def spread(speedo: Commands, problem: Path, mode: str, hosts: list[Host]) -> Iterator[Spread]:
    with OwnRedis(hosts[3].address, hosts[3].inside) as redis:
        yield Spread(speedo, problem, mode, hosts, redis)


def set_aside_and_back(spread: Spread, finding: Finding, since: float) -> int:
    """Wait until the far worker is given up, and the other goes on; its slot."""
    run = spread.run
    run.wait_for(lambda: run.lines("left"))
    gone = time.monotonic() - since
    finding.recovered(gone + run.recovery(time.monotonic()))
    finding.note = f"set aside after {gone:.1f} s"
    run.goes_on(20)
    return int(run.lines("left")[0]["worker"])


def comes_back(spread: Spread, slot: int, finding: Finding) -> None:
    """After the healing a worker trains there again, and nothing of the old one is merged.

    It has the old one's place, unless its host was there before the old one was missed.
    """
    run = spread.run
    healed = time.monotonic()
    run.wait_for(
        lambda: any(line["incarnation"] > 1 or line["worker"] > 1 for line in run.merged())
    )
    finding.note += f", back {time.monotonic() - healed:.1f} s after the healing"
    run.goes_on(20)
    lines = spread.stop_and_check()
    left = next(index for index, line in enumerate(lines) if line["event"] == "left")
    own = [line for line in lines[left:] if line["event"] == "result" and line["worker"] == slot]
    assert not [one for one in own if one["incarnation"] == 1 and one["decision"] == "merged"]


@row(8, "worker's host cut off from everybody, then healed", usual="async")
def test_a_host_that_is_cut_off_is_set_aside_and_returns(
    spread: Spread, mode: str, finding: Finding
) -> None:
    far = spread.far
    spread.members[1].pull_the_cable()
    slot = set_aside_and_back(spread, finding, time.monotonic())
    assert slot == far
    spread.members[1].plug_in_again()
    comes_back(spread, slot, finding)
    failed = spread.run.failed_first(f"host {spread.far_host}")
    assert f"worker {far}" in [one.process for one in failed.followed]


@row(8, "Redis's answers do not reach one worker, then healed")
def test_a_worker_cut_off_from_redis_is_set_aside_and_returns(
    spread: Spread, hosts: list[Host], mode: str, finding: Finding
) -> None:
    far = spread.far
    with one_way(hosts[3], spread.members[1]):
        slot = set_aside_and_back(spread, finding, time.monotonic())
        assert slot == far
    comes_back(spread, slot, finding)


@row(8, "the master's messages do not reach one worker, then healed")
def test_a_worker_that_does_not_hear_the_master_is_set_aside_and_returns(
    spread: Spread, mode: str, finding: Finding
) -> None:
    far = spread.far
    with one_way(spread.chief, spread.members[1]):
        slot = set_aside_and_back(spread, finding, time.monotonic())
        assert slot == far
    comes_back(spread, slot, finding)


@row(17, "Ray's node process on a worker's host killed", usual="async")
def test_a_node_process_that_dies_costs_its_workers_and_its_host_returns(
    spread: Spread, mode: str, finding: Finding
) -> None:
    run, far = spread.run, spread.far
    inside = spread.members[1].processes()
    (node,) = [one for one in run.speedo.named("raylet/raylet") if one.pid in inside]
    node.kill()
    slot = set_aside_and_back(spread, finding, time.monotonic())
    assert slot == far
    comes_back(spread, slot, finding)
    failed = spread.run.failed_first(f"host {spread.far_host}", "Ray")
    assert f"worker {far}" in [one.process for one in failed.followed]


@row(8, "worker's host killed and started again at once, many times", ("async",), "async")
def test_a_host_that_comes_back_at_once_is_served_each_time(
    speedo: Commands, problem: Path, mode: str, finding: Finding, hosts: list[Host]
) -> None:
    """It has the same address and ports, and Ray calls its former node alive for some seconds more."""
    times = 30 if os.environ.get(EVERY) == "all" else 3
    chief, *members, _ = hosts
    run = Run(
        speedo, problem, mode, *TIMEOUT, "--host", chief.address,
        command="master", inside=chief.inside,
    )  # fmt: skip

    def join(host: Host) -> subprocess.Popen[str]:
        return speedo.start("worker", "--master", chief.address, *TIMEOUT, inside=host.inside)

    other, returning = map(join, members)
    run.has_begun()
    took, keepers = [], []
    for _ in range(times):
        members[1].kill_all()
        returning.wait(HANG_S)
        joined, began, loaded = len(run.lines("joined")), time.monotonic(), how_loaded()
        returning = join(members[1])
        run.wait_for(lambda joined=joined: len(run.lines("joined")) > joined)
        now = run.lines("joined")[-1]
        run.wait_for(lambda now=now: run.merged(now["worker"], now["incarnation"]))
        took.append(time.monotonic() - began)
        keepers.append(len(speedo.named("NodeKeeper")))
        finding.recovered(took[-1])
        assert took[-1] < SERVED_S * max(loaded, how_loaded()), took
    finding.note = f"{times} times; half of them within {statistics.median(took):.1f} s"
    assert set(keepers) == {2}, keepers
    run.stop()
    for host in (other, returning):
        _, errors = host.communicate(timeout=HANG_S)
        assert host.returncode == 0, errors
    run.check()


def begins_again(
    run: Run, cause: str, finding: Finding, since: float, *, undone: bool = False
) -> Line:
    """Wait until the same command trains again, because of this cause; the line of the log that says so.

    Unless what was merged last may be `undone`, the run goes on from there.
    """
    run.wait_for(lambda: run.lines("resumed"))
    (*_, resumed) = run.lines("resumed")
    assert cause in resumed["cause"]
    run.wait_for(lambda: run.merged_after(resumed))
    finding.recovered(time.monotonic() - since)
    lines = run.lines()
    before = [one for one in lines[: lines.index(resumed)] if one.get("decision") == "merged"]
    assert undone or before[-1]["version"] == resumed["version"] > 0
    return resumed


@row(17, "Ray's node process on the master's machine killed", usual="sync")
def test_a_run_begins_again_in_the_same_command_after_the_death_of_its_head(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, "--checkpoint-interval", "1")
    run.has_begun()
    run.wait_for(lambda: run.lines("checkpoint"))
    (victim,) = speedo.programs("raylet")
    victim.kill()
    cause = "Ray's raylet process on this machine died"
    resumed = begins_again(run, cause, finding, time.monotonic())
    assert resumed["epoch"] == 1
    run.goes_on()
    run.stop_and_check()
    result = json.loads((run.dir / "result.json").read_text())
    assert result["master_restarts"] == [resumed["cause"]]


@row(17, "Ray's node process on the master's machine killed before a checkpoint", ("async",))
def test_a_run_without_a_checkpoint_goes_on_all_the_same(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, "--checkpoint-interval", "0")
    run.has_begun()
    (victim,) = speedo.programs("raylet")
    victim.kill()
    resumed = begins_again(run, "Ray's raylet", finding, time.monotonic())
    assert resumed["samples"] > 0
    assert resumed["epoch"] == 1
    run.goes_on()
    run.stop_and_check()


@row(
    17,
    "Ray's control service and its node process, on the machine of `speedo master`, killed",
    ("sync", "async"),
)
def test_hosts_join_a_master_that_begins_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding, hosts: list[Host]
) -> None:
    chief, *members, _ = hosts
    run = Run(
        speedo, problem, mode, *TIMEOUT, "--host", chief.address, "--checkpoint-interval", "1",
        command="master", inside=chief.inside,
    )  # fmt: skip
    commands = [
        speedo.start("worker", "--master", chief.address, *TIMEOUT, inside=member.inside)
        for member in members
    ]
    run.has_begun()
    run.wait_for(lambda: run.lines("checkpoint"))
    here = chief.processes()
    victims = {
        name: next(one for one in speedo.programs(name) if one.pid in here)
        for name in ("gcs_server", "raylet")
    }
    victims["gcs_server"].kill()
    finding.recovered(run.recovery(time.monotonic()))
    run.wait_for(lambda: "(GCS) died; it was started again" in run.log())
    run.goes_on()
    assert not run.lines("resumed", "left")
    victims["raylet"].kill()
    begins_again(run, "Ray's raylet", finding, time.monotonic())
    run.goes_on()
    run.stop()
    for command in commands:
        _, errors = command.communicate(timeout=HANG_S)
        assert command.returncode == 0, errors
        assert errors.count("joined the master") == 2
    run.check()


@row(17, "the master of a run with servers killed", ("async",))
def test_a_run_with_servers_begins_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, "--servers", "1", "--checkpoint-interval", "1")
    run.has_begun()
    run.wait_for(lambda: run.lines("checkpoint"))
    run.the("ray::MasterActor").kill()
    begins_again(run, "the master's process died", finding, time.monotonic(), undone=True)
    run.goes_on()
    run.stop_and_check()
