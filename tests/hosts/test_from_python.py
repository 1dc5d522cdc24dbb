"""`speedo.Cluster` on hosts with a real sshd, and on a Ray cluster that its users started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.forked.commands import virtualenv
from tests.support.network import network
from tests.support.ray_cluster import users_cluster
from tests.support.sabotaged_net import write_problem
from tests.support.ssh_hosts import site

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
OVER_SSH = """
import json, sys
import speedo

solver, virtualenv, *hosts = sys.argv[1:]
with speedo.Cluster(hosts=[f"{hosts[0]}:1", f"{hosts[1]}:2", "192.0.2.1"], virtualenv=virtualenv) as cluster:
    cluster.launch_workers(4)
    report = cluster.await_workers(60)
    runs = [
        cluster.run(solver, max_iter=4, test_interval=0, run_dir="run1"),
        cluster.run(solver, workers=2, servers=1, max_iter=4, test_interval=0, run_dir="run2"),
    ]
print(json.dumps({
    "workers": [[one.id, one.host, one.address] for one in report.workers],
    "failures": [[one.host, one.cause] for one in report.failures],
    "runs": [[one.workers, one.iteration, one.complete] for one in runs],
}))
"""
ON_RAY = """
import json, os, time
import speedo

with speedo.Cluster(ray={address!r}) as cluster:
    cluster.launch_workers(3, cpus=1)
    report = cluster.await_workers(60)
    result = cluster.run({solver!r}, max_iter=4, test_interval=0, run_dir={run!r})
    again = cluster.await_workers(60)
    try:
        cluster.run({solver!r}, resources="cpu=2")
    except speedo.errors.ConfigError as error:
        refused = str(error)
import ray
ray.init(address={address!r}, logging_level="ERROR")
from ray.util.placement_group import placement_group_table
deadline = time.monotonic() + 120
left = [1]
while left and time.monotonic() < deadline:
    left = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
print(json.dumps({{
    "workers": [[one.address, one.pid] for one in report.workers],
    "failures": [[one.host, one.cause, one.workers] for one in report.failures],
    "run": [result.workers, result.iteration, result.complete],
    "again": len(again.workers),
    "refused": refused,
    "left": len(left),
}}))
"""


def test_two_runs_over_ssh_while_a_host_is_not_there(tmp_path: Path) -> None:
    solver = write_problem(tmp_path / "problem", tested=False)
    with network(3) as members, site(members, tmp_path / "site") as hosts:
        program = hosts.python(
            ["-c", OVER_SSH, str(solver), str(virtualenv()), *hosts.addresses], tmp_path
        )
        out, errors = program.communicate(timeout=240)
        assert program.returncode == 0, errors
        said = json.loads(out.splitlines()[-1])
        first, second = hosts.addresses
        assert said["workers"] == [[0, first, first], [1, second, second], [2, second, second]]
        ((host, cause),) = said["failures"]
        assert host == "192.0.2.1"
        assert "cannot be reached" in cause or "host key is not known" in cause
        assert said["runs"] == [[3, 4, True], [2, 4, True]]
        for run in ("run1", "run2"):
            for one in (first, second):
                log = (tmp_path / run / "hosts" / one / "worker.log").read_text()
                assert "joined the master" in log
        assert hosts.nothing_left_within(20) == []


@pytest.mark.slow
def test_a_run_on_a_ray_cluster_takes_the_places_that_were_held(tmp_path: Path) -> None:
    solver = write_problem(tmp_path / "problem", tested=False)
    with network(1) as hosts, users_cluster(hosts) as cluster:
        cluster.add(hosts[0], 2)
        program = ON_RAY.format(
            address=cluster.address, solver=str(solver), run=str(tmp_path / "run")
        )
        said = json.loads(cluster.run(program).splitlines()[-1])
    assert [address for address, _ in said["workers"]] == [hosts[0].address] * 2
    assert len({pid for _, pid in said["workers"]} - {os.getpid()}) == 2
    ((host, cause, workers),) = said["failures"]
    assert (host, workers) == ("the Ray cluster", 1)
    assert "no room for a worker with cpu=1" in cause
    assert said["run"] == [2, 4, True]
    assert said["again"] == 2
    assert "give cpus, memory_gb and device to launch_workers" in said["refused"]
    assert said["left"] == 0
