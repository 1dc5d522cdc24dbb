"""Topologies: planned for hosts, written in both forms, read back equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from speedo.cli.main import main
from speedo.errors import ConfigError
from speedo.run.config.topology import (
    HostTopology,
    from_rank_file,
    from_yaml,
    plan,
    read_topology,
    to_rank_file,
    to_yaml,
)
from speedo.system.cores import Bind, CoreOptions, Machine, this_machine

RANK_FILE = """\
# Rank file of Open MPI, written by speedo topology; the comments are for reading it back.
# host node1: sockets 2+2, threads 2, bind core
rank 0=node1 slot=0:0-1
rank 1=node1 slot=1:0-1
# host node2: sockets 2, threads 2, bind core
rank 2=node2 slot=0:0-1
"""
YAML = """\
hosts:
- host: node1
  workers: 2
  threads: 2
  bind: core
  sockets: [2, 2]
  cores: ['0:0-1', '1:0-1']
- host: node2
  workers: 1
  threads: 2
  bind: core
  sockets: [2]
  cores: ['0:0-1']
"""
PLANNED = (
    HostTopology("node1", (2, 2), 2, "core", (((0, 0), (0, 1)), ((1, 0), (1, 1)))),
    HostTopology("node2", (2,), 2, "core", (((0, 0), (0, 1)),)),
)


def elsewhere(name: str) -> Machine | None:
    """No host is this one."""
    return None


def refused(text: str, tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_topology(file, None, elsewhere)
    return tuple(problem.removeprefix(f"{file}: ") for problem in caught.value.problems)


def typed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["topology", *map(str, arguments)])


def test_hosts_are_planned_by_threads_and_bind() -> None:
    assert plan(["node1:2:2x2", "node2:1:2"], CoreOptions("auto", "core"), elsewhere) == PLANNED


def test_both_forms_are_written_and_read_back_equal() -> None:
    assert to_rank_file(PLANNED) == RANK_FILE
    assert to_yaml(PLANNED) == YAML
    assert from_rank_file(RANK_FILE) == from_yaml(YAML) == PLANNED


def test_workers_that_are_not_bound_have_all_cores_in_a_rank_file_and_come_back_without() -> None:
    topology = plan(["node1:2:2x2"], CoreOptions("2"), elsewhere)
    assert "rank 1=node1 slot=0:0-1,1:0-1\n" in to_rank_file(topology)
    assert from_rank_file(to_rank_file(topology)) == topology
    assert topology[0].cores == ((), ())


@given(
    hosts=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=4
    ),
    threads=st.sampled_from(["auto", "1", "3", "64"]),
    bind=st.sampled_from(["core", "socket", "none"]),
)
def test_any_plan_is_read_back_equal(
    hosts: list[tuple[int, int, int]], threads: str, bind: Bind
) -> None:
    named = [
        f"node-{number}.example:{workers}:{sockets}x{cores}"
        for number, (workers, sockets, cores) in enumerate(hosts)
    ]
    topology = plan(named, CoreOptions(threads, bind), elsewhere)
    assert from_rank_file(to_rank_file(topology)) == topology
    assert from_yaml(to_yaml(topology)) == topology


def test_a_host_without_cores_has_as_many_as_its_workers_have_threads() -> None:
    topology = plan(["node1", "node2:3"], CoreOptions("2", "core"), elsewhere)
    assert [host.sockets for host in topology] == [(2,), (6,)]
    assert topology[1].cores == (((0, 0), (0, 1)), ((0, 2), (0, 3)), ((0, 4), (0, 5)))
    with pytest.raises(ConfigError, match="the cores of host node2 are not known here: give them"):
        plan(["node2:3"], CoreOptions("auto"), elsewhere)


def test_a_rank_file_of_others_is_read_with_its_cores_as_threads() -> None:
    text = "rank 1=b slot=0-1\nrank 0=a slots=1:0,2  // two cores\n\nrank 2 = b slot=1:1\n"
    assert from_rank_file(text) == (
        HostTopology("a", (1, 3), 2, "core", (((1, 0), (1, 2)),)),
        HostTopology("b", (2, 2), 2, "core", (((0, 0), (0, 1)), ((1, 1),))),
    )


def test_a_list_of_hosts_is_planned_mpis_too(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nnode1:2:2x2\n\nrank7 slots=3\n")
    first, second = read_topology(file, CoreOptions("1", "core"), elsewhere)
    assert (first.name, first.cores) == ("node1", (((0, 0),), ((1, 0),)))
    assert (second.name, len(second.cores), second.sockets) == ("rank7", 3, (3,))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rank 0=a slot=0:0\nrank 0=a slot=0:1\n", "line 2: rank 0 is there twice"),
        ("rank 0=a slot=0:0\nrank 2=a slot=0:1\n", "ranks are not 0 to 1: each worker has one"),
        ("rank 0=a slot=0:0\nrank 1 a\n", "line 2 is no line of a rank file: use rank 0=HOST slot=0:0-1"),
        ("rank 0=a slot=0:*\n", "host a: the cores '0:*' are not SOCKET:CORES, as in 0:0-3 or 0:0-3,1:0-3"),
        ("rank 0=a slot=0:3\n# host a: sockets 2, threads 1, bind core\n",
         "host a: worker 0 is bound to 0:3, but its sockets have 2 cores"),
        ("rank 0=a slot=0:0\n# host a: sockets 2, threads 9999, bind core\n",
         "host a: threads is '9999': use 1 to 1024, or auto"),
        ("hosts: 3\n", "it holds no list of hosts; write one with `speedo topology`"),
        ("hosts: [\n", "line 2 is not YAML: expected the node content, but found '<stream end>'"),
        (YAML.replace("  workers: 1\n", ""), "host 'node2': workers is missing; give it"),
        (YAML.replace("workers: 1", "workers: true"), "host 'node2': workers is True; use a whole number"),
        (YAML.replace("workers: 1", "workers: 0"), "host 'node2': workers is 0; use 1 or more"),
        (YAML.replace("workers: 1", "workers: 99999"), "host 'node2': workers is 99999; use at most 10000"),
        (YAML.replace("host: node2", "host: a b"), "host 'a b': host is 'a b'; use letters, digits, dots and dashes"),
        ("hosts: [node1]\n", "host None: it is 'node1'; use a mapping, as in host: node1"),
        (YAML.replace("bind: core", "bind: chip", 1),
         "host 'node1': bind is 'chip'; use one of 'core', 'socket' or 'none'"),
        (YAML.replace("node2", "node1"), "host node1 is there twice"),
        (YAML.replace("workers: 1", "workers: 2"), "host node2: cores is no list for 2 workers"),
        ("node1:0\n", ("'node1:0' is not HOST, HOST:WORKERS or HOST:WORKERS:CORES; for example node1:4:16, or "
         "node1:4:2x8 for two sockets with 8 cores each")),
        ("", "there is no host: name one, as in node1:4:16"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    assert refused(text, tmp_path) == (problem,)


# ---------------------------------------------------------------- the command


def test_a_rank_file_that_the_command_wrote_is_read_back_equal(tmp_path: Path) -> None:
    planned = typed("node1:2:2x2", "node2:1:2", "--threads", "auto", "--threads", "bind=core")
    assert (planned.exit_code, planned.output) == (0, YAML)
    (tmp_path / "ours.yaml").write_text(planned.output)
    written = typed("--file", tmp_path / "ours.yaml", "--form", "rankfile")
    assert written.output == RANK_FILE
    (tmp_path / "ranks").write_text(written.output)
    assert typed("--file", tmp_path / "ranks").output == YAML


def test_the_cores_of_this_machine_are_those_of_sys() -> None:
    (host,) = from_yaml(typed("localhost:2", "--threads", "bind=socket").output)
    machine = this_machine()
    assert host.sockets == tuple(len(cores) for cores in machine.sockets)
    assert host.cores[0] == tuple((0, core) for core in range(host.sockets[0]))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give HOSTS or --file FILE, and not both"),
        (("a", "--file", "x"), "give HOSTS or --file FILE, and not both"),
        (("a", "--threads", "0"), "threads is '0': use 1 to 1024, or auto"),
        (("a b",), "'a b' is not HOST, HOST:WORKERS or HOST:WORKERS:CORES"),
        (("--file", "nowhere"), "nowhere cannot be read (No such file or directory); correct --file"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(arguments: tuple[str, ...], told: str) -> None:
    ended = typed(*arguments)
    assert ended.exit_code == 2
    assert told in ended.stderr


def test_a_topology_that_says_all_takes_no_options(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text(RANK_FILE)
    ended = typed("--file", tmp_path / "ranks", "--threads", "bind=core")
    assert (ended.exit_code, "leave --threads out" in ended.stderr) == (2, True)
