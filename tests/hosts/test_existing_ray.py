"""`speedo train --ray`: workers on the nodes of a Ray cluster that its users started, each node a host of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import KEEPERS, Commands, commands
from tests.support.network import Host, ip, network
from tests.support.ray_cluster import UsersCluster, oldest_ray, users_cluster

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe, pytest.mark.slow]
WAIT_S = 120
GROUPS = """
import ray
ray.init(address="{}", logging_level="ERROR")
from ray.util.placement_group import placement_group_table
print(*[one["state"] for one in placement_group_table().values()], sum(one["Alive"] for one in ray.nodes()))
"""


def start(
    speedo: Commands,
    cluster: UsersCluster,
    *options: str,
    address: str = "auto",
    others: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """A run on the cluster, started on the host that has its head."""
    return speedo.start(
        *("train", "--ray", address, "--timeout", "90", "--test-interval", "0", *options),
        inside=cluster.hosts[0].inside,
        environment={**cluster.environment, "RAY_ADDRESS": cluster.address, **(others or {})},
    )


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    """What a command said on standard error, once it has ended with this status."""
    printed, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert "raylet" not in printed
    return errors


def lines(run: Path, text: str) -> list[dict[str, object]]:
    """Whole lines of the run's metrics that hold this text."""
    file = run / "metrics.jsonl"
    written = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in written.splitlines() if text in line]


def joined(run: Path) -> list[dict[str, object]]:
    return lines(run, '"event":"joined"')


def wait_until(there: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def ours_at(host: Host) -> list[str]:
    """What of SpeeDO runs on a host: its actors, Redis, and the shells that tidy up; no idle process of Ray."""
    found = []
    for process in ip("netns", "pids", host.name).split():
        try:
            words = Path("/proc", process, "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        actor = "Actor" in words[0] or "NodeKeeper" in words[0]
        if actor or "redis-server" in words[0] or KEEPERS & set(words):
            found.append(" ".join(words)[:100])
    return found


def gone_within(seconds: float, *hosts: Host) -> list[str]:
    """What is left of a run on these hosts after so long."""
    deadline = time.monotonic() + seconds
    while left := [one for host in hosts for one in ours_at(host)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.2)
    return []


@contextmanager
def two_nodes(tmp_path: Path, *first: Path, head: tuple[str, ...] = ()) -> Iterator[UsersCluster]:
    """A cluster whose head trains nothing, with two nodes of two cores; its fourth host has no node yet."""
    with network(4) as hosts, users_cluster(hosts, *first) as cluster:
        cluster.add(hosts[0], 0, *head)
        for host in hosts[1:3]:
            cluster.begin(host, 2)
        for host in hosts[1:3]:
            cluster.wait_for(host)
        yield cluster


def trains_and_leaves_nothing(speedo: Commands, cluster: UsersCluster, problem: Path) -> None:
    """A run with servers and TLS, 4 workers on 2 nodes."""
    run = start(
        speedo, cluster, "--workers", "4", "--max-iter", "40", "--run-dir", "run",
        "--servers", "auto", "--redis-tls", "--seed", "1", str(problem),
    )  # fmt: skip
    assert "4 workers on 2 nodes" in ended(run)
    result = json.loads((speedo.folder / "run" / "result.json").read_text())
    assert (result["complete"], result["workers"], result["iteration"]) == (True, 4, 40)
    assert len({line["host"] for line in joined(speedo.folder / "run")}) == 2
    leaves_nothing(cluster)


def leaves_nothing(cluster: UsersCluster) -> None:
    """No process and no file of a run is left, no place is held, and all nodes live."""
    nodes = [host for host in cluster.hosts if host.name in cluster.nodes]
    assert gone_within(30, *nodes) == []
    *states, count = cluster.run(GROUPS.format(cluster.address)).split()
    assert set(states) == {"REMOVED"}
    assert int(count) == len(nodes)
    sockets = f"speedo-{os.getuid()}"  # of `speedo status`, for all runs of a user
    wait_until(lambda: {one.name for one in cluster.temporary.glob("speedo-*")} <= {sockets}, 15)


@pytest.mark.timeout(400)
def test_a_run_survives_the_death_of_a_node_and_uses_one_that_is_added(
    tmp_path: Path, problem: Path
) -> None:
    with two_nodes(tmp_path) as cluster, commands(tmp_path) as speedo:
        trains_and_leaves_nothing(speedo, cluster, problem)
        stranger = start(
            speedo, cluster, "--run-dir", "none", str(problem), others={"RAY_AUTH_TOKEN": "0" * 64}
        )
        assert "refuses this command's token" in ended(stranger, 1)
        assert not (tmp_path / "none").exists()
        _, _, other, spare = cluster.hosts
        # Five are wanted where four fit.
        run = start(
            speedo, cluster, "--workers", "5", "--mode", "async", "--max-iter", "1000000", "--lr", "0.0001",
            "--run-dir", "long", str(problem), address=cluster.address,
        )  # fmt: skip
        folder = tmp_path / "long"
        wait_until(lambda: len(joined(folder)) == 4, 90)
        cluster.kill(other)
        wait_until(lambda: len(lines(folder, '"event":"left"')) == 2, 60)
        merged = len(lines(folder, '"decision":"merged"'))
        wait_until(lambda: len(lines(folder, '"decision":"merged"')) > merged + 20, 60)
        cluster.add(spare, 3)
        wait_until(lambda: len(joined(folder)) == 7, 90)
        assert len({line["host"] for line in joined(folder)[4:]}) == 1
        run.terminate()
        said = ended(run, 143)
        assert "4 workers on 2 nodes; no room yet for 1 more, which start once there is" in said
        assert "the node is gone" in said
        del cluster.nodes[other.name]
        leaves_nothing(cluster)
        # A command that is killed leaves nothing, and the cluster lives on.
        endless = start(
            speedo, cluster, "--workers", "3", "--max-iter", "1000000", "--placement", "pack",
            "--run-dir", "killed", str(problem), address=cluster.address,
        )  # fmt: skip
        wait_until(lambda: bool(lines(tmp_path / "killed", '"decision":"merged"')), 90)
        endless.kill()
        endless.communicate()
        leaves_nothing(cluster)


@pytest.mark.timeout(400)
def test_the_oldest_ray_will_do_and_a_run_may_be_a_job(tmp_path: Path, problem: Path) -> None:
    head = ("--include-dashboard=true", "--dashboard-host=10.79.0.1", "--dashboard-port=8265")
    with (
        two_nodes(tmp_path, oldest_ray(), head=head) as cluster,
        commands(tmp_path) as speedo,
    ):
        trains_and_leaves_nothing(speedo, cluster, problem)
        chief = cluster.hosts[0]
        job = subprocess.run(
            [
                *chief.inside, sys.executable, "-m", "ray.scripts.scripts", "job", "submit",
                "--address", f"http://{chief.address}:8265", "--",
                sys.executable, "-m", "speedo", "train", "--ray", "auto", "--workers", "2", "--max-iter", "20",
                "--test-interval", "0", "--resources", "cpu=2", "--run-dir", str(tmp_path / "job"), str(problem),
            ],
            cwd=tmp_path,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )  # fmt: skip
        assert job.returncode == 0, job.stdout + job.stderr
        assert str(tmp_path / "job" / "model.caffemodel") in job.stdout
        assert json.loads((tmp_path / "job" / "result.json").read_text())["complete"]
        leaves_nothing(cluster)
