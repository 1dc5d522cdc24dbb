"""Cluster files in each form, and what is said of a bad one: file, line, key, value, remedy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.errors import ConfigError
from speedo.launch.cluster import ClusterFile, variables
from speedo.launch.read_cluster import cluster_of, read_cluster, read_host_file

YAML = """\
master: node1
username: ml
ssh_port: 2222
virtualenv: ~/speedo/.venv
env: [CUDA_HOME=/opt/cuda]
servers: [node3, node2]
workers:
  - node1
  - host: node2
    workers: 2
    threads: auto
    bind: core
    data_root: /data
    ssh_port: 22
    env: [LANG=C]
"""
POSEIDON = """\
{
  "master_node": "node1",
  "worker_nodes": ["node1", "node2", "node2"],
  "server_nodes": ["node3"],
  "username": "ml",
  "virtualenv": "/opt/venv"
}
"""
NO_KEY = "is no key of a cluster file; the keys here are username, ssh_key, ssh_port, virtualenv, directory, env"


def read(folder: Path, text: str, **given: object) -> ClusterFile:
    file = folder / "cluster"
    file.write_text(text)
    return read_cluster(file, given)


def problems(folder: Path, text: str, **given: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, **given)
    return [one.replace(str(folder), "DIR") for one in caught.value.problems]


def test_a_yaml_file_says_how_each_host_is_reached_and_what_runs_there(tmp_path: Path) -> None:
    found = read(tmp_path, YAML)
    assert (found.leader, found.count, found.server_hosts) == ("node1", 3, ("node3",))
    assert found.server_count == "2"
    two = found.trains("node2")
    assert two is not None
    assert (two.workers, two.threads, two.bind, two.data_root) == (2, "auto", "core", "/data")
    ways = found.access()
    assert list(ways) == ["node1", "node3", "node2"]
    assert [way.ssh_port for way in ways.values()] == [2222, 2222, 22]
    assert {way.username for way in ways.values()} == {"ml"}
    assert ways["node2"].env == ("CUDA_HOME=/opt/cuda", "LANG=C")


def test_poseidons_file_counts_a_node_for_each_time_that_it_is_there(tmp_path: Path) -> None:
    found = read(tmp_path, POSEIDON)
    assert {one.host: one.workers for one in found.workers} == {"node1": 1, "node2": 2}
    assert (found.leader, found.server_hosts, found.server_count) == ("node1", ("node3",), "1")
    assert found.access()["node3"].virtualenv == "/opt/venv"


def test_a_rank_file_has_a_worker_for_each_rank(tmp_path: Path) -> None:
    text = "rank 0=node1 slot=0:0-1\nrank 1=node1 slot=0:2-3\nrank 2=node2 slot=0:0\n"
    found = read(tmp_path, text)
    assert [(one.host, one.workers, one.threads, one.bind, one.cores) for one in found.workers] == [
        ("node1", 2, "2", "core", ("0:0-1", "0:2-3")),
        ("node2", 1, "1", "core", ("0:0",)),
    ]
    assert found.leader == "node1"


def test_a_host_has_cores_for_each_of_its_workers(tmp_path: Path) -> None:
    for cores, why in (
        ("[0:0-1]", "cores: 1 are listed for 2 workers; list one for each worker"),
        ("[0:0, x]", "use a list with SOCKET:CORES for each worker"),
    ):
        text = f"workers: [{{host: node1, workers: 2, cores: {cores}}}]"
        with pytest.raises(ConfigError, match=re.escape(why)):
            read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "node1 slots=2\nnode2 slots=4 max_slots=8\n",
        "# ours\nnode1:2\nnode2:4  # big\n",
        "node1\nnode1\nnode2 slots = 4\n",
    ],
)
def test_a_host_file_of_mpirun_or_horovodrun_gives_each_host_its_workers(
    text: str, tmp_path: Path
) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    found = read_host_file(file, {"username": "ml"})
    assert {one.host: one.workers for one in found.workers} == {"node1": 2, "node2": 4}
    assert cluster_of("node1:2,node2:4", {"username": "ml"}) == found


def test_an_option_overrides_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, YAML, master="localhost", ssh_port=7, env=())
    assert found.leader == "localhost"
    assert found.access()["node1"].ssh_port == 7
    assert found.access()["node2"].ssh_port == 22
    assert "CUDA_HOME=/opt/cuda" in found.access()["node1"].env


def test_every_bad_field_is_named_with_its_line_its_value_and_the_remedy(tmp_path: Path) -> None:
    text = """\
master: -oX=y
ssh_key: /no/such/key
colour: red
workers:
  - host: node1
    workers: 0
    threads: many
  - host: node2
    slots: 3
"""
    assert problems(tmp_path, text) == [
        "DIR/cluster, line 2: ssh_key is '/no/such/key': there is no such file on this machine; correct the name",
        "DIR/cluster, line 1: master.host is '-oX=y': use a host name, an IPv4 address or a Host of ssh_config",
        "DIR/cluster, line 6: workers[1].workers is 0: use a whole number from 1 to 10000",
        "DIR/cluster, line 7: workers[1].threads is 'many': use a whole number from 1 on, or auto",
        f"DIR/cluster, line 9: workers[2].slots {NO_KEY}, host, workers, threads, bind, cores, device, data_root",
        f"DIR/cluster, line 3: colour {NO_KEY}, ssh_config, master, servers, workers",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers: [a, a]", "DIR/cluster: workers: host a is there twice; keep one entry"),
        ("master: a", "DIR/cluster: workers is missing; list the hosts with workers"),
        ("workers: []", "line 1: workers names no host"),
        ("workers: [a, 3]", "line 1: workers[2] is 3: use the name of a host"),
        ("workers: a", "line 1: workers is 'a': use a list"),
        ("workers: [a\n", "line 2 is not YAML"),
        ("- a\n- b\n", "a list of hosts is read with --hostfile"),
        ("workers: [a]\nservers: -1", "line 2: servers is -1: use a list of hosts, a whole number, or auto"),
        ("workers: [a]\nenv: [3]", "line 2: env[1] is 3: use the name of a variable, or NAME=VALUE"),
        ('{"worker_nodes": ["a"],\n "pem_file": "/no"}', "line 2: pem_file is '/no': there is no such file"),
        ('{"worker_nodes": ["a"], "port": 3}', "'port' is no key of Poseidon's that is read here"),
        ('{"worker_nodes": ["a"]', "it is not JSON"),
        ("rank 0=a slot=0:0\nrank 2=b slot=0:0\n", "ranks are not 0 to 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, said: str, tmp_path: Path) -> None:
    assert any(said in one for one in problems(tmp_path, text)), problems(tmp_path, text)


def test_a_bad_line_of_a_host_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("node1:2\nnode2:x\nnode3 cores=4\n")
    with pytest.raises(ConfigError) as caught:
        read_host_file(file, {})
    assert [one.removeprefix(str(file)) for one in caught.value.problems] == [
        ", line 2: 'node2:x' is no host: use HOST, HOST:WORKERS or HOST slots=WORKERS",
        ", line 3: 'node3 cores=4' is no host: use HOST, HOST:WORKERS or HOST slots=WORKERS",
    ]


def test_names_of_env_get_their_values_here_and_unset_ones_are_told() -> None:
    assert variables(("A", "B=x=y"), {"A": "1"}) == {"A": "1", "B": "x=y"}
    with pytest.raises(ConfigError, match="env names 'C', which is not set here"):
        variables(("C",), {})


# ---------------------------------------------------------------- the command


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["launch", *words])


def test_a_dry_run_prints_every_command_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(YAML)
    done = run(
        str(tmp_path / "cluster.yaml"), "my net/solver.prototxt", "--mode", "easgd", "--local-steps", "4",
        "--whole-batch", "--host", "10.0.0.5", "--run-dir", "runs/x", "--dry-run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == [
        "node1", "node3", "node2",
    ]  # fmt: skip
    ssh = shlex.split(next(line for line in lines if line.startswith("node1: ")))
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes"} < set(ssh)
    assert ssh[-2:] == ["node1", 'exec "$HOME"/speedo/.venv/bin/speedo launch-host']
    assert (
        "  speedo master 'my net/solver.prototxt' --mode easgd --local-steps 4 --whole-batch --workers 3 "
        "--host 10.0.0.5 --port 56126 --run-dir runs/x --servers 2"
    ) in lines
    assert "  speedo server --master 10.0.0.5:56126" in lines
    assert (
        "  speedo worker --master 10.0.0.5:56126 --data-root /data --workers 2 --threads auto,bind=core"
        in lines
    )
    assert "TOKEN" not in done.output.upper().replace("--TOKEN-FILE", "")


def test_the_words_for_the_master_are_understood_by_the_master() -> None:
    done = run(
        "-H", "localhost:2", "--mode", "hybrid", "--phase", "sync:5", "--phase", "easgd:7,moving_rate=0.3",
        "--redis", "tls=yes", "--device", "cpu", "--lr", "0.5", "--dry-run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  speedo master"))
    words = shlex.split(line)[2:]
    with main.commands["master"].make_context("master", words) as context:
        assert context.params["phases"] == ("sync:5", "easgd:7,moving_rate=0.3")
        assert (context.params["redis_tls"], context.params["device"], context.params["lr"]) == (
            True,
            "cpu",
            0.5,
        )
        assert (context.params["workers"], context.params["host"]) == (2, "127.0.0.1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a cluster file, or -H, or --hostfile"),
        (["-H", "a:2", "one", "two"], "with -H or --hostfile give only a solver"),
        (["-H", "a:2", "--workers", "3"], "leave --workers out"),
        (["-H", "a:2", "--token-file", "t"], "leave --token-file out"),
        (["-H", "a:2", "--max-iter", "0"], "max_iter is 0"),
        (["-H", "a:2", "--env", "A B"], "use the name of a variable, or NAME=VALUE"),
        (["-H", "a:2", "--env", "NO_SUCH_VARIABLE_1"], "env names 'NO_SUCH_VARIABLE_1', which is not set here"),
        (["no-such.yaml"], "the cluster file no-such.yaml cannot be read"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_any_host_is_asked(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_folder_with_the_logs_of_another_launch_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "old" / "hosts").mkdir(parents=True)
    done = run("-H", "localhost", "--directory", "here", "--run-dir", "old")
    assert (done.exit_code, done.stderr) == (
        2,
        "speedo: here/old/hosts has logs of another launch; give another --run-dir, or move it away\n",
    )
