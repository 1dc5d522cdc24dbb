"""`speedo train --ray`: workers on the nodes of a Ray cluster that its users started, each node a host of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.running import Watched
from tests.support.commands import (
    Commands,
    commands,
    how_loaded,
    interrupt,
    wait_for_line,
)
from tests.support.invariants import Line, read_lines
from tests.support.labelled import RECORDS, write_problem, write_records
from tests.support.left_behind import KEEPERS
from tests.support.network import Host, network
from tests.support.processes import words_of
from tests.support.ray_cluster import UsersCluster, oldest_ray, users_cluster
from tests.support.sabotaged_net import write_problem as write_sabotaged

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe, pytest.mark.slow]
WAIT_S = 300
NO_SPEEDO = (
    "SpeeDO cannot be imported by the Python of Ray there (ModuleNotFoundError: No module named 'speedo'): install "
    "speedo and pycaffe into it, on every node"
)
OTHER_DATA = "has 5 training records, but the master 8, and with --data-share shard all need the same: copy the"
BUCKET = "s3://bucket/here"
S3 = {
    "AWS_ENDPOINT_URL": "http://10.79.0.1:5000",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
GROUPS = """
import ray
ray.init(address="{}", logging_level="ERROR")
from ray.util.placement_group import placement_group_table
print(*[one["state"] for one in placement_group_table().values()], sum(one["Alive"] for one in ray.nodes()))
"""


class ClusterRun(Watched):
    """`speedo train --ray`, started on the host that has the head of the cluster."""

    def __init__(
        self,
        speedo: Commands,
        cluster: UsersCluster,
        name: str,
        *options: str,
        address: str = "auto",
        others: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(speedo, "", name)
        self.process = speedo.start(
            *("train", "--ray", address, "--timeout", "300", "--test-interval", "0"),
            *("--run-dir", name, *options),
            inside=cluster.hosts[0].inside,
            environment={**cluster.environment, "RAY_ADDRESS": cluster.address, **(others or {})},
        )

    def has_joined(self, workers: int) -> list[Line]:
        """Wait for so many lines of workers that have joined, and return them."""
        self.wait_for(lambda: len(self.lines("joined")) >= workers)
        return self.lines("joined")

    def has_lost(self, workers: int) -> None:
        self.wait_for(lambda: len(self.lines("left")) >= workers)


def words_at(host: Host) -> Iterator[list[str]]:
    """The command line of each process on a host."""
    for process in host.processes():
        with suppress(OSError):
            yield Path("/proc", str(process), "cmdline").read_bytes().decode().split("\0")


def ours_at(host: Host) -> list[str]:
    """What of SpeeDO runs on a host: its actors, Redis, and the shells that tidy up; no idle process of Ray."""
    return [
        " ".join(words)[:100]
        for words in words_at(host)
        if "Actor" in words[0]
        or "NodeKeeper" in words[0]
        or "redis-server" in words[0]
        or KEEPERS & set(words)
    ]


def kept_at(host: Host) -> list[Path]:
    """The folders that those shells remove in the end."""
    return [Path(words[4]) for words in words_at(host) if KEEPERS & set(words)]


def left_after(seconds: float, look: Callable[[], list[str]]) -> list[str]:
    """What is still found after so long; nothing as soon as there is nothing."""
    began = time.monotonic()
    while (left := look()) and time.monotonic() < began + seconds * how_loaded():
        time.sleep(0.2)
    return left


@contextmanager
def two_nodes(
    tmp_path: Path, *first: Path, head: tuple[str, ...], variables: Mapping[str, str]
) -> Iterator[UsersCluster]:
    """A cluster whose head trains nothing, with two nodes of two cores and 1 GiB; each has a cache of its own."""
    with network(3) as hosts, users_cluster(hosts, *first) as cluster:
        cluster.environment.update(variables)
        caches = [{"SPEEDO_CACHE": str(tmp_path / f"cache-{number}")} for number in (1, 2, 3)]
        cluster.add(hosts[0], 0, *head, environment=caches[0])
        for host, cache in zip(hosts[1:], caches[1:], strict=True):
            cluster.begin(host, 2, f"--memory={1 << 30}", environment=cache)
        for host in hosts[1:]:
            cluster.wait_for(host)
        yield cluster


@contextmanager
def store_at(cluster: UsersCluster, tmp_path: Path) -> Iterator[None]:
    """A store that speaks S3, on the host with the head."""
    head, log = cluster.hosts[0], tmp_path / "store.log"
    words = (*head.inside, sys.executable, "-m", "moto.server", "-H", head.address, "-p", "5000")
    with log.open("wb") as out:
        server = subprocess.Popen(words, stdout=out, stderr=out)
    try:
        wait_for_line(log, "Running on", 60)
        yield
    finally:
        server.kill()
        server.wait()


def write_distant_problem(tmp_path: Path, cluster: UsersCluster) -> Path:
    """The solver of a net whose data are in the store alone."""
    solver = write_sabotaged(tmp_path / "distant", data="mine")
    folder = solver.parent / "mine"
    cluster.run(
        "import fsspec\nfiles = fsspec.filesystem('s3')\nfiles.mkdir('bucket')\n"
        f"files.put({str(folder)!r}, {BUCKET + '/data/mine'!r}, recursive=True)"
    )
    shutil.rmtree(folder)
    return solver


def leaves_nothing(cluster: UsersCluster) -> None:
    """No process and no file of a run is left, no place is held, and all nodes live."""
    nodes = [host for host in cluster.hosts if host.name in cluster.nodes]
    assert left_after(30, lambda: [one for host in nodes for one in ours_at(host)]) == []
    *states, count = cluster.run(GROUPS.format(cluster.address)).split()
    assert set(states) == {"REMOVED"}
    assert int(count) == len(nodes)
    assert left_after(15, lambda: files_of_runs(cluster)) == []


def files_of_runs(cluster: UsersCluster) -> list[str]:
    """What runs have now in the temporary folders of their command and of the nodes that live."""
    sockets = f"speedo-{os.getuid()}"  # of `speedo status`, for all runs of a user
    found = (one for folder in cluster.temporary for one in folder.glob("speedo-*"))
    return sorted(str(one) for one in found if one.name != sockets)


def status(speedo: Commands, cluster: UsersCluster) -> tuple[int, int]:
    """How many workers the one run has, and how many are wanted."""
    asked = speedo.start("status", "--json", inside=cluster.hosts[0].inside)
    printed, errors = asked.communicate(timeout=WAIT_S)
    assert asked.returncode == 0, errors
    (run,) = json.loads(printed)["runs"]
    return sum(not worker["away"] for worker in run["workers"]), run["wanted"]


def scale(speedo: Commands, cluster: UsersCluster, workers: int) -> None:
    asked = speedo.start("scale", str(workers), inside=cluster.hosts[0].inside)
    assert asked.wait(WAIT_S) == 0


@pytest.mark.timeout(900)
def test_a_run_refuses_nodes_scales_survives_the_death_of_a_node_and_uses_one_that_is_added(
    tmp_path: Path,
) -> None:
    solver = write_problem(tmp_path / "problem", with_data=False)
    for name, count in (("whole", RECORDS), ("part", 5)):
        (tmp_path / name).mkdir()
        write_records(tmp_path / name / "train", range(count))
    # As if there were none.
    (tmp_path / "bare" / "speedo").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'speedo'\")\n"
    (tmp_path / "bare" / "speedo" / "__init__.py").write_text(absent)
    whole, part = ({"SPEEDO_DATA": str(tmp_path / name)} for name in ("whole", "part"))
    bare = {**whole, "PYTHONPATH": str(tmp_path / "bare")}
    with network(4) as hosts, users_cluster(hosts) as cluster, commands(tmp_path) as speedo:
        head, good, other, lacking = hosts
        cluster.add(head, 0, environment=whole)
        for host, variables, name in ((good, whole, "g"), (other, part, "o"), (lacking, bare, "l")):
            marked = f'--resources={{"{name}": 1}}'
            cluster.begin(host, 2, marked, environment=variables)
        for host in (good, other, lacking):
            cluster.wait_for(host)
        # Two fit, on the one node of three that is like the head.
        run = ClusterRun(
            speedo, cluster, "long", "--workers", "5", "--mode", "async", "--max-iter", "1000000", str(solver),
            address=cluster.address, others=whole,
        )  # fmt: skip
        stranger = ClusterRun(
            speedo, cluster, "none", str(solver), others={**whole, "RAY_AUTH_TOKEN": "0" * 64}
        )
        # For these only a node that must be refused has room.
        unlike, without = (
            ClusterRun(
                speedo, cluster, name, "--workers", "1", "--ray", f"resources=cpu=0,{name}=1", str(solver), others=whole
            )
            for name in ("o", "l")
        )  # fmt: skip
        assert "refuses this command's token" in stranger.ends(1)
        assert not stranger.dir.exists()
        for refused, cause in ((without, NO_SPEEDO), (unlike, OTHER_DATA)):
            said = refused.ends(1)
            assert "speedo: no node of the Ray cluster can train: node vm:" in said
            assert cause in said
            assert not refused.dir.exists()
        run.has_joined(2)
        assert status(speedo, cluster) == (2, 5)
        scale(speedo, cluster, 1)
        run.has_lost(1)
        assert status(speedo, cluster) == (1, 1)
        scale(speedo, cluster, 5)
        run.has_joined(3)
        assert status(speedo, cluster) == (2, 5)

        cluster.kill(other)
        cluster.begin(other, 3, environment=whole)
        cluster.wait_for(other)
        assert len({line["host"] for line in run.has_joined(6)[3:]}) == 1
        cluster.kill(good)
        run.has_lost(3)
        run.goes_on(20)
        assert status(speedo, cluster) == (3, 5)
        # Else that they are gone would show nothing.
        assert files_of_runs(cluster) != []
        assert ours_at(head) != []
        assert ours_at(other) != []
        folders = kept_at(head)
        assert any(folder.is_relative_to("/dev/shm") for folder in folders)
        run.wait_for(lambda: "the node is gone" in run.log())
        run.process.kill()
        said = run.process.communicate(timeout=WAIT_S)[1]
        assert "2 workers on 1 node; no room yet for 3 more, which start once there is" in said
        assert NO_SPEEDO in said
        assert OTHER_DATA in said
        del cluster.nodes[good.name]
        leaves_nothing(cluster)
        assert [folder for folder in folders if folder.exists()] == []


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_master_that_dies_on_a_users_cluster_is_followed_by_another(
    tmp_path: Path, problem: Path
) -> None:
    with network(2) as hosts, users_cluster(hosts) as cluster, commands(tmp_path) as speedo:
        cluster.add(hosts[0], 0)
        cluster.add(hosts[1], 2)
        run = ClusterRun(
            speedo, cluster, "run", "--workers", "2", "--max-iter", "1000000",
            "--checkpoint-interval", "1", str(problem),
        )  # fmt: skip
        run.wait_for(lambda: run.lines("checkpoint"))
        there = map(psutil.Process, hosts[0].processes())
        (master,) = [one for one in there if "ray::MasterActor" in " ".join(words_of(one))]
        master.kill()
        run.wait_for(lambda: run.lines("resumed"))
        run.goes_on(20)
        interrupt(run.process)
        run.ends(130)
        leaves_nothing(cluster)
        result = json.loads((run.dir / "result.json").read_text())
        assert len(result["master_restarts"]) == 1


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_the_oldest_ray_will_do_and_a_run_may_be_a_job(tmp_path: Path, problem: Path) -> None:
    head = ("--include-dashboard=true", "--dashboard-host=10.79.0.1", "--dashboard-port=8265")
    with (
        two_nodes(tmp_path, oldest_ray(), head=head, variables=S3) as cluster,
        commands(tmp_path) as speedo,
        store_at(cluster, tmp_path),
    ):
        chief = cluster.hosts[0]
        solver = write_distant_problem(tmp_path, cluster)
        job = subprocess.run(
            [
                *chief.inside, sys.executable, "-m", "ray.scripts.scripts", "job", "submit",
                "--address", f"http://{chief.address}:8265", "--",
                sys.executable, "-m", "speedo", "train", "--ray", "auto", "--workers", "4", "--max-iter", "40",
                "--test-interval", "0", "--servers", "auto", "--redis", "tls=yes", "--seed", "1",
                "--run-dir", str(tmp_path / "job"), "--data-root", f"{BUCKET}/data", "--copy-to", f"{BUCKET}/job",
                str(solver),
            ],
            cwd=tmp_path,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )  # fmt: skip
        assert job.returncode == 0, job.stdout + job.stderr
        assert str(tmp_path / "job" / "model.caffemodel") in job.stdout
        assert "4 workers on 2 nodes" in job.stdout + job.stderr
        result = json.loads((tmp_path / "job" / "result.json").read_text())
        assert (result["complete"], result["workers"], result["iteration"]) == (True, 4, 40)
        joined = [
            line
            for line in read_lines(tmp_path / "job" / "metrics.jsonl")
            if line["event"] == "joined"
        ]
        assert len({line["host"] for line in joined}) == 2
        cached = [
            one.relative_to(tmp_path).parts[0] for one in tmp_path.glob("cache-*/**/data.mdb")
        ]
        assert sorted(set(cached)) == ["cache-1", "cache-2", "cache-3"]
        copied = cluster.run(
            f"import fsspec\nprint(*fsspec.filesystem('s3').ls({BUCKET + '/job'!r}))"
        )
        assert {"result.json", "model.caffemodel"} <= {
            one.rpartition("/")[2] for one in copied.split()
        }
        leaves_nothing(cluster)
        # By its cores each node has room for four, by its memory for one.
        run = ClusterRun(
            speedo, cluster, "stopped", "--workers", "3", "--max-iter", "1000000",
            "--ray", "resources=cpu=0.5,memory=600000000", str(problem),
        )  # fmt: skip
        run.has_begun(1)
        interrupt(run.process)
        assert "2 workers on 2 nodes; no room yet for 1 more" in run.ends(130)
        assert (run.dir / "model.caffemodel").is_file()
        leaves_nothing(cluster)
