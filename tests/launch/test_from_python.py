"""`speedo.Cluster` on this machine: several runs, workers that die, wrong arguments; nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import speedo
from speedo.errors import ClusterError, ConfigError, DataError, SpeedoError
from tests.support.commands import MARK, Commands, commands, how_loaded
from tests.support.sabotaged_net import write_problem

TWO_RUNS = """
import json, os, signal, sys
import speedo

with speedo.Cluster() as cluster:
    cluster.launch_workers(2)
    cluster.launch_workers(1, cpus=1)
    first = cluster.await_workers(60)
    runs = [cluster.run(sys.argv[1], workers=2, max_iter=4, test_interval=0, run_dir="run1")]
    os.kill(first.workers[0].pid, signal.SIGKILL)
    while not (second := cluster.await_workers(60)).failures:
        pass
    try:
        cluster.run(sys.argv[1], workers=2, max_iter=4)
    except speedo.errors.ClusterError as error:
        refused = str(error)
    runs.append(cluster.run(sys.argv[1], mode="async", max_iter=4, test_interval=0, run_dir="run2"))
    os.kill(cluster.await_workers().workers[0].pid, 0)
alive = 0
try:
    os.kill(first.workers[2].pid, 0)
    alive = 1
except ProcessLookupError:
    pass
print(json.dumps({
    "first": [[one.id, one.host, one.address] for one in first.workers],
    "keepers": len({one.pid for one in first.workers}),
    "second": [one.id for one in second.workers],
    "failures": [[one.host, one.cause, one.workers] for one in second.failures],
    "runs": [[one.workers, one.iteration, one.complete] for one in runs],
    "refused": refused,
    "alive": alive,
}))
"""
ENDLESS = """
import sys
import speedo

with speedo.Cluster() as cluster:
    cluster.launch_workers(1)
    cluster.await_workers(60)
    result = cluster.run(sys.argv[1], max_iter=10**6, test_interval=0, run_dir="run")
    print(result.complete, result.reason)
    raise ValueError("a mistake of the program's own")
"""


@pytest.fixture
def programs(tmp_path: Path, forked_python: str) -> Iterator[Commands]:
    with commands(tmp_path) as made:
        yield made


def start(programs: Commands, text: str, solver: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, str(solver)],
        cwd=programs.folder,
        env={**os.environ, MARK: programs.mark, "TMPDIR": str(programs.temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_training(program: subprocess.Popen[str], run_dir: Path) -> None:
    deadline = time.monotonic() + 120 * how_loaded()
    metrics = run_dir / "metrics.jsonl"
    while not (metrics.exists() and '"merged"' in metrics.read_text()):
        assert program.poll() is None, program.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
def test_two_runs_one_after_the_other_and_a_worker_killed_between(
    programs: Commands, tmp_path: Path
) -> None:
    program = start(programs, TWO_RUNS, write_problem(tmp_path / "problem", tested=False))
    out, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    said = json.loads(out.splitlines()[-1])
    assert said["first"] == [[number, "localhost", "127.0.0.1"] for number in range(3)]
    assert said["keepers"] == 2, "one process for the workers of a call"
    assert said["second"] == [2]
    killed = "SpeeDO's process here was killed by SIGKILL"
    assert said["failures"] == [["localhost", killed, 2]]
    assert said["runs"] == [[2, 4, True], [1, 4, True]]
    assert said["refused"] == (
        f"2 workers were asked for, and 1 are ready: ask for fewer, or launch more; localhost: {killed}"
    )
    assert said["alive"] == 0
    assert "joined the master" in (tmp_path / "run1/hosts/localhost/worker.log").read_text()
    assert "joined the master" in (tmp_path / "run2/hosts/localhost-2/worker.log").read_text()
    assert programs.all_gone_within(10)


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_a_program_that_is_ended_or_fails_leaves_no_process(
    programs: Commands, tmp_path: Path, number: signal.Signals
) -> None:
    program = start(programs, ENDLESS, write_problem(tmp_path / "problem", tested=False))
    wait_for_training(program, tmp_path / "run")
    program.send_signal(number)
    out, errors = program.communicate(timeout=120)
    if number == signal.SIGINT:
        assert out == "False stopped by Ctrl-C\n", "the model is exported, and the program goes on"
        assert errors.rstrip().endswith("ValueError: a mistake of the program's own")
        assert (tmp_path / "run" / "model.caffemodel").exists()
    assert programs.all_gone_within(30)


@pytest.mark.ray
@pytest.mark.caffe
def test_wrong_options_and_what_a_kind_cannot_do_are_refused_in_words(tmp_path: Path) -> None:
    with speedo.Cluster() as cluster:
        with pytest.raises(ClusterError, match="no worker is ready: call launch_workers first"):
            cluster.run(tmp_path / "solver.prototxt")
        with pytest.raises(ConfigError, match="n is 0; use a whole number from 1"):
            cluster.launch_workers(0)
        with pytest.raises(ConfigError) as refused:
            cluster.launch_workers(1, cpus=0.5, memory_gb=2, device="gpu")
        assert [text.partition(",")[0] for text in refused.value.problems] == [
            "memory_gb is 2", "cpus is 0.5; on hosts use a whole number: it is --threads", "device is gpu",
        ]  # fmt: skip
        with pytest.raises(ConfigError, match="device is 'tpu'; use cpu or gpu"):
            cluster.launch_workers(1, device="tpu")  # type: ignore[arg-type]
        cluster.launch_workers(1)
        with pytest.raises(ConfigError, match="device differs"):
            cluster.launch_workers(1, device="cpu")
        with pytest.raises(ConfigError, match="max_itre is no option; did you mean max_iter"):
            cluster.run(tmp_path / "solver.prototxt", max_itre=4)
        with pytest.raises(SpeedoError, match=r"no-such\.prototxt"):
            cluster.run(tmp_path / "no-such.prototxt", run_dir=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9/run cannot be read"):
            cluster.run(resume="http://127.0.0.1:9/run", run_dir=tmp_path / "run")
    with pytest.raises(ClusterError, match="this cluster is closed"):
        cluster.launch_workers(1)


def test_a_cluster_is_one_of_three_and_its_master_is_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hosts and ray name two clusters"):
        speedo.Cluster(hosts=["a"], ray="auto")
    with pytest.raises(ConfigError, match='use a list, as in \\["node1:2"'):
        speedo.Cluster(hosts="a:2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="user is no option of a cluster"):
        speedo.Cluster(hosts=["a"], user="me")
    with pytest.raises(ConfigError, match="username: only for hosts over ssh"):
        speedo.Cluster(username="me")
    with pytest.raises(ConfigError, match="which only Ray's clients understand"):
        speedo.Cluster(ray="ray://head:10001")
    file = tmp_path / "cluster.yaml"
    file.write_text("master: node1\nworkers: [node1, node2]\n")
    with pytest.raises(ConfigError, match="from Python the master is on this machine"):
        speedo.Cluster(file=file)
    file.write_text("workers:\n  - host: node1\n    worker: 2\n")
    with pytest.raises(ConfigError, match=r"line 3: workers\[1\]\.worker is no key"):
        speedo.Cluster(file=file)


def test_hosts_have_as_many_places_as_they_say() -> None:
    with (
        speedo.Cluster(hosts=["localhost:2"]) as cluster,
        pytest.raises(ConfigError, match="3 workers were asked for, but the hosts have room for 2"),
    ):
        cluster.launch_workers(3)
