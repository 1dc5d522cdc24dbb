"""Rows 27 to 30: a team over three hosts that loses a member, a link or a host in the middle of a stretch."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from speedo.actors.death_causes import SILENT
from speedo.actors.worker_process import STOPPED
from tests.faults.rows import Finding, row
from tests.faults.running import HANG_S, Run, stand_still
from tests.support.commands import Commands
from tests.support.invariants import Line
from tests.support.network import Host, network
from tests.support.sabotaged_net import order

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
TIMEOUT = ("--timeout", "300")
ALL = {0, 1, 2, 3}
# After so many: in the middle of a stretch, and of a sum of 3 pieces or more.
ROUND, PIECE = 60, 400


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(3) as made:
        yield made


class Spread:
    """A master with worker 0, the leader, on the first host; workers 1 and 2 on the second; worker 3 on the third."""

    def __init__(
        self, speedo: Commands, solver: Path, hosts: list[Host], failpoint: str = ""
    ) -> None:
        self.speedo, self.all, self.solver = speedo, hosts, solver
        self.done = speedo.folder / "done"
        self._environment = {"SPEEDO_FAILPOINT": failpoint, "SPEEDO_FAILPOINT_DONE": str(self.done)}
        self.run = Run(
            speedo, solver, "sync", "--team", "host,stretch=5" if failpoint else "host", "--workers", "4",
            "--host", hosts[0].address, *TIMEOUT,
            command="master", inside=hosts[0].inside,
        )  # fmt: skip
        self.commands: list[subprocess.Popen[str]] = []
        for host, workers, there in zip(hosts, (1, 2, 1), (1, 3, 4), strict=True):
            self.start(host, workers)
            self.run.wait_for(lambda count=there: len(self.run.lines("joined")) == count)
        if not failpoint:
            self.has_begun()

    def start(self, host: Host, workers: int) -> None:
        options = ("--master", self.all[0].address, "--workers", str(workers), *TIMEOUT)
        self.commands.append(
            self.speedo.start("worker", *options, inside=host.inside, environment=self._environment)
        )

    def has_begun(self) -> None:
        """All are a team, and have done a stretch of several rounds."""
        self.run.wait_for(
            lambda: any(len(line.get("losses", ())) > 1 for line in self.run.merged(3))
        )

    def recovered(self, finding: Finding, since: float, gone: set[int]) -> None:
        """The others go on without those, which come back: a team of all again."""
        run = self.run
        if gone:
            run.wait_for(lambda: {line["worker"] for line in run.lines("left")} >= gone)
        finding.recovered(run.recovery(since))

    def are_all_back(self, finding: Finding, since: float, gone: set[int]) -> None:
        run = self.run
        run.wait_for(lambda: all(run.merged(one, 2) for one in gone))
        finding.note = f"a team of all again after {time.monotonic() - since:.1f} s"
        run.goes_on(5)

    def stop_and_check(
        self, gone: set[int], lost: tuple[subprocess.Popen[str], ...] = ()
    ) -> list[Line]:
        self.run.stop()
        for command in self.commands:
            if command not in lost:
                _, errors = command.communicate(timeout=HANG_S)
                assert command.returncode == 0, errors
        lines = self.run.check()
        assert {line["worker"] for line in lines if line["event"] == "left"} == gone
        assert not [line for line in lines if line["event"] == "team-given-up"]
        merged: dict[int, set[int]] = {}
        for line in lines:
            if line.get("decision") == "merged":
                merged.setdefault(line["version"], set()).add(line["worker"])
        assert all(together >= ALL - gone for together in merged.values()), "one team, or none"
        assert merged[max(merged)] == ALL
        return lines


def killed(
    speedo: Commands, solver: Path, hosts: list[Host], finding: Finding, point: str, victim: int
) -> None:
    spread = Spread(speedo, solver, hosts, point)
    spread.run.wait_for(spread.done.exists)
    since = time.monotonic()
    spread.recovered(finding, since, {victim})
    spread.are_all_back(finding, since, {victim})
    lines = spread.stop_and_check({victim})
    # At the end a turn of each may be under way.
    back = max(
        at
        for at, line in enumerate(lines)
        if line["event"] == "joined" and line["worker"] == victim
    )
    rounds = spread.run.rounds_before_death(victim, back)
    finding.note += f"; the {rounds} rounds before stay"
    spread.run.failed_first(f"worker {victim}", SILENT)


@row(27, "first member of a host killed while hosts add up", ("sync",), usual="sync")
def test_who_acts_for_a_host_killed_while_hosts_add_up(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    killed(speedo, problem, hosts, finding, f"ring-adds:1@{PIECE}", 1)


@row(27, "first member of a host killed while the sum goes round", ("sync",))
def test_who_acts_for_a_host_killed_while_the_sum_goes_round(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    killed(speedo, problem, hosts, finding, f"ring-has:3@{PIECE}", 3)


@row(27, "leader of a team over hosts killed while hosts add up", ("sync",))
def test_the_leader_killed_while_hosts_add_up(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    killed(speedo, problem, hosts, finding, f"ring-adds:0@{PIECE}", 0)


@row(27, "another member of a team over hosts killed in a stretch", ("sync",))
def test_a_member_that_acts_for_no_host_killed(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    killed(speedo, problem, hosts, finding, f"team-summed:2@{ROUND}", 2)


@row(28, "link of a host in a team down, then up again", ("sync",), usual="sync")
def test_a_host_whose_link_is_down_is_left_out_until_it_is_up(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    spread = Spread(speedo, problem, hosts)
    hosts[1].pull_the_cable()
    spread.recovered(finding, time.monotonic(), {1, 2})
    spread.run.goes_on(3)
    hosts[1].plug_in_again()
    spread.are_all_back(finding, time.monotonic(), {1, 2})
    spread.stop_and_check({1, 2})
    name = next(one["host"] for one in spread.run.lines("joined") if one["worker"] == 1)
    found = spread.run.failed_first(f"host {name}")
    # Ray may miss its node before the master misses its words.
    causes = ("nothing was heard", "its node is gone")
    assert any(one in found.cause for one in causes), found


@row(28, "host of a team lost, another started in its place", ("sync",))
def test_a_host_that_is_lost_is_left_out_until_another_is_there(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    spread = Spread(speedo, problem, hosts)
    hosts[1].kill_all()
    since = time.monotonic()
    spread.recovered(finding, since, {1, 2})
    spread.start(hosts[1], 2)
    spread.are_all_back(finding, since, {1, 2})
    spread.stop_and_check({1, 2}, (spread.commands[1],))


@row(29, "member of a team over hosts hangs (SIGSTOP)", ("sync",))
def test_who_acts_for_a_host_and_hangs_is_replaced(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    spread = Spread(speedo, problem, hosts)
    stand_still(spread.run.workers()[3])
    since = time.monotonic()
    spread.recovered(finding, since, {3})
    spread.are_all_back(finding, since, {3})
    spread.stop_and_check({3})
    spread.run.failed_first("worker 3", STOPPED)


@row(29, "every process of a host in a team hangs for 20 s", ("sync",))
def test_a_host_that_hangs_is_left_out_until_it_goes_on(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    spread = Spread(speedo, problem, hosts)
    processes = [psutil.Process(one) for one in hosts[2].processes()]
    for one in processes:
        one.suspend()
    since = time.monotonic()
    spread.recovered(finding, since, {3})
    while time.monotonic() < since + 20:
        time.sleep(0.1)
    for one in processes:
        if one.is_running():
            one.send_signal(signal.SIGCONT)
    spread.are_all_back(finding, since, {3})
    spread.stop_and_check({3})


@row(30, "member of a team over hosts sends numbers that are not finite", ("sync",))
def test_a_member_that_is_not_finite_is_set_aside_alone(
    speedo: Commands, problem: Path, hosts: list[Host], mode: str, finding: Finding
) -> None:
    spread = Spread(speedo, problem, hosts)
    run = spread.run
    order(problem, "3 scale nan")
    since = time.monotonic()
    run.wait_for(lambda: run.lines("set-aside"))
    finding.recovered(run.recovery(since))
    run.goes_on()
    run.stop()
    lines = run.check()
    assert [line["worker"] for line in lines if line["event"] == "set-aside"] == [3]
    refused = [line for line in lines if line.get("decision") == "refused"]
    assert len([line for line in refused if line["worker"] == 3]) == 3
    assert {line["worker"] for line in refused} == ALL
    reasons = {line["reason"] for line in refused if line["worker"] == 0}
    assert any("worker 3" in reason and "not finite" in reason for reason in reasons), reasons
