"""Rows 31 and 32: the master's machine is gone or cut off, and a standby on another one goes on with the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.late_redis import LateRedis
from tests.faults.rows import Finding, row
from tests.faults.running import GAP_S, HANG_S, Run, Watched
from tests.faults.scripts import EACH_ONCE, FIT, ScriptRun, kept, trained
from tests.support.commands import Commands, interrupt
from tests.support.invariants import Line, check_run, read_lines
from tests.support.network import Host, network
from tests.support.store_server import OwnRedis

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
TIMEOUT = ("--timeout", "300")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(4) as made:
        yield made


class Standby(Watched):
    """`speedo master --standby` on a host, with a directory of its own."""

    def __init__(self, speedo: Commands, mode: str, host: Host, master: Host, name: str) -> None:
        super().__init__(speedo, mode, name)
        self.process = speedo.start(
            *("master", "--standby", master.address, "--run-dir", name, *TIMEOUT),
            inside=host.inside,
            environment={"SPEEDO_RUNTIME_DIR": str(speedo.folder / f"runtime-{name}")},
        )

    def leaves(self) -> None:
        """As Ctrl-C ends it."""
        interrupt(self.process)
        _, errors = self.process.communicate(timeout=HANG_S)
        assert self.process.returncode == 130, errors


class Pair:
    """A master on the first host, its standby on the second, a worker on the third, Redis on the last."""

    def __init__(
        self, speedo: Commands, solver: Path, mode: str, hosts: list[Host], redis: OwnRedis
    ) -> None:
        self.speedo, self.solver, self.mode = speedo, solver, mode
        self.chief, self.spare, self.member, _ = hosts
        self.run = Run(
            speedo, solver, mode, *redis.options, *TIMEOUT, "--host", self.chief.address,
            "--checkpoint-interval", "1", command="master", environment=redis.environment,
            inside=self.chief.inside,
        )  # fmt: skip
        self.worker = speedo.start(
            *("worker", "--workers", "2", "--master", self.chief.address, *TIMEOUT),
            inside=self.member.inside,
        )
        self.run.has_begun()

    def followed(self, name: str = "standby") -> Standby:
        """A standby that has followed for some checkpoints."""
        run, standby = self.run, Standby(self.speedo, self.mode, self.spare, self.chief, name)
        before = run.log().count(f"a standby at {self.spare.address}:56126 follows")
        standby.wait_for(lambda: run.log().count("follows this run") > before)
        standby.wait_for(lambda: standby.version > 0)
        # Its address is with the hosts: they hear the status twice a second, and a checkpoint comes each second.
        there = len(run.lines("checkpoint"))
        standby.wait_for(lambda: len(run.lines("checkpoint")) > there + 3)
        return standby

    def taken_over(
        self,
        standby: Standby,
        finding: Finding,
        since: float,
        cause: str = "has not been heard of",
    ) -> Line:
        """The standby trains: its line in the log that says where it goes on."""
        standby.wait_for(lambda: standby.lines("resumed"))
        (resumed,) = standby.lines("resumed")
        assert cause in resumed["cause"]
        standby.wait_for(lambda: standby.merged_after(resumed))
        finding.recovered(time.monotonic() - since)
        standby.goes_on(5)
        return resumed

    def ends_and_is_whole(self, standby: Standby, resumed: Line) -> list[Line]:
        """End the run at the standby: its directory has the former master's part, each result once, and the model."""
        standby.leaves()
        _, errors = self.worker.communicate(timeout=HANG_S)
        assert self.worker.returncode == 0, errors
        lines = check_run(standby.dir, self.solver.with_name("net.prototxt"), gap_s=GAP_S)
        here = [line for line in lines if line.get("decision") == "merged"]
        there = self.run.merged()
        before = [one for one in here if one["version"] <= resumed["version"]]
        wanted = [one for one in there if one["version"] <= resumed["version"]]
        said = "worker", "incarnation", "ticket", "version", "samples"
        assert [[one[name] for name in said] for one in before[: len(wanted)]] == [
            [one[name] for name in said] for one in wanted
        ]
        assert sorted({one["version"] for one in before}) == list(range(1, resumed["version"] + 1))
        assert {one["version"] for one in there} <= {one["version"] for one in before}
        for name in ("config.yaml", "result.json", "model.caffemodel", "train.log"):
            assert (standby.dir / name).stat().st_size, name
        return lines


@pytest.fixture
def pair(speedo: Commands, problem: Path, mode: str, hosts: list[Host]) -> Iterator[Pair]:
    with OwnRedis(hosts[3].address, hosts[3].inside) as redis:
        yield Pair(speedo, problem, mode, hosts, redis)


@row(31, "the master's machine gone; a standby goes on", ("async", "sync", "easgd"), usual="async")
def test_a_standby_goes_on_when_the_masters_machine_is_gone(
    pair: Pair, mode: str, finding: Finding
) -> None:
    standby = pair.followed()
    since = time.monotonic()
    pair.chief.kill_all()
    resumed = pair.taken_over(standby, finding, since)
    assert resumed["version"] >= pair.run.version
    pair.ends_and_is_whole(standby, resumed)


@row(31, "the master's machine gone, users' scripts", ("async", "sync", "easgd"), usual="sync")
def test_a_standby_goes_on_with_users_scripts(
    speedo: Commands, mode: str, hosts: list[Host], finding: Finding
) -> None:
    chief, spare, member, third = hosts
    with OwnRedis(third.address, third.inside) as redis:
        run = ScriptRun(
            *(speedo, mode, "--own", "--workers", "2", "--host", chief.address, *redis.options),
            *(*TIMEOUT, "--checkpoint-interval", "1"),
            command="master",
            environment=redis.environment,
            inside=chief.inside,
        )
        worker = speedo.start(
            *("worker", "--workers", "2", "--master", chief.address, *TIMEOUT),
            *("--", "python", str(FIT), "none", "0.6"),
            inside=member.inside,
        )
        run.has_begun(3)
        standby = Standby(speedo, mode, spare, chief, "standby")
        standby.wait_for(lambda: standby.version > 0)
        there = len(run.lines("checkpoint"))
        standby.wait_for(lambda: len(run.lines("checkpoint")) > there + 3)
        since = time.monotonic()
        chief.kill_all()
        standby.wait_for(lambda: standby.lines("resumed"))
        (resumed,) = standby.lines("resumed")
        assert resumed["version"] >= run.version
        standby.wait_for(lambda: standby.merged_after(resumed))
        finding.recovered(time.monotonic() - since)
        standby.ends(0)
        _, errors = worker.communicate(timeout=HANG_S)
        assert worker.returncode == 0, errors
        lines = kept(read_lines(standby.dir / "metrics.jsonl"))
        assert trained(lines) == EACH_ONCE
        counted = sum(line["samples"] for line in lines if line.get("decision") == "merged")
        assert counted == EACH_ONCE.total()  # also by those that the standby has started
        assert (standby.dir / "model.npz").stat().st_size


@row(31, "the same, and its process before, while Redis answers after 0.7 s", ("async",))
def test_a_redis_that_answers_late_delays_a_takeover_and_loses_nothing(
    speedo: Commands, problem: Path, mode: str, hosts: list[Host], finding: Finding
) -> None:
    """A claim is two answers: more than the second after which a lease's renewal is given up."""
    with LateRedis(hosts[3].address, hosts[3].inside) as redis:
        pair = Pair(speedo, problem, mode, hosts, redis)
        run = pair.run
        pair.followed("first").leaves()
        redis.answers_after(0.7)
        run.the("ray::MasterActor").kill()
        run.wait_for(lambda: run.lines("resumed"))
        run.wait_for(lambda: run.merged_after(run.lines("resumed")[0]))
        redis.answers_after(0.0)
        assert run.process.poll() is None
        standby = pair.followed()
        redis.answers_after(0.7)
        since = time.monotonic()
        pair.chief.kill_all()
        standby.wait_for(lambda: standby.lines("resumed")[1:])
        redis.answers_after(0.0)
        _, resumed = standby.lines("resumed")
        assert "has not been heard of" in resumed["cause"]
        standby.wait_for(lambda: standby.merged_after(resumed))
        finding.recovered(time.monotonic() - since)
        pair.ends_and_is_whole(standby, resumed)


@row(
    32, "the master cut off, its standby goes on, the link healed", ("sync", "async", "easgd"),
    usual="sync",
)  # fmt: skip
def test_a_master_that_was_cut_off_writes_nothing_more_and_ends_in_words(
    pair: Pair, mode: str, finding: Finding
) -> None:
    run = pair.run
    standby = pair.followed()
    pair.chief.pull_the_cable()
    resumed = pair.taken_over(standby, finding, time.monotonic())
    before = run.merged()
    pair.chief.plug_in_again()
    healed = time.monotonic()
    _, errors = run.process.communicate(timeout=HANG_S)
    assert run.process.returncode == 3, errors
    assert "another master has taken this run over" in errors
    assert "Traceback" not in errors
    finding.note = f"the old master ended {time.monotonic() - healed:.1f} s after the healing"
    standby.goes_on(5)
    assert run.merged() == before
    assert resumed["version"] - run.version in (0, 1)  # one was published, and not in its log yet
    assert not (run.dir / "model.caffemodel").exists()
    assert not (run.dir / "result.json").exists()
    pair.ends_and_is_whole(standby, resumed)


@row(
    33, "a standby that leaves, one whose machine is gone, and one that was not needed", ("async",)
)
def test_a_standby_that_is_never_needed_ends_with_the_whole_directory(
    pair: Pair, mode: str, finding: Finding
) -> None:
    run = pair.run
    pair.followed("left").leaves()
    run.wait_for(lambda: "has left; the run goes on without one" in run.log())
    lost = pair.followed("lost")
    pair.spare.kill_all()
    run.wait_for(lambda: "has not been heard of for 10 s; the run goes on" in run.log())
    lost.process.communicate()
    standby = pair.followed()
    run.stop()
    output, errors = standby.process.communicate(timeout=HANG_S)
    assert standby.process.returncode == 0, errors
    assert str(standby.dir) in output
    for name in ("config.yaml", "result.json", "model.caffemodel", "metrics.jsonl"):
        assert (standby.dir / name).read_bytes() == (run.dir / name).read_bytes(), name
    assert [one.name for one in sorted((standby.dir / "checkpoints").iterdir())] == [
        one.name for one in sorted((run.dir / "checkpoints").iterdir())
    ]


@row(34, "the master is told by SIGTERM; its standby goes on", ("async", "sync"))
def test_a_master_that_is_told_to_end_hands_over(pair: Pair, mode: str, finding: Finding) -> None:
    run = pair.run
    standby = pair.followed()
    since = time.monotonic()
    run.process.terminate()
    _, errors = run.process.communicate(timeout=HANG_S)
    assert run.process.returncode == 3, errors
    assert "SIGTERM: the standby at" in errors
    assert "Traceback" not in errors
    resumed = pair.taken_over(standby, finding, since, "has handed the run over")
    assert resumed["version"] == run.version
    pair.ends_and_is_whole(standby, resumed)
