"""`speedo launch` against four hosts with a real sshd each: they train, are named if they cannot, and end with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from speedo.system.cores import list_of, this_machine
from tests.support.cluster_forms import as_poseidons, as_rank_file, as_words, as_yaml, core_of
from tests.support.commands import how_loaded
from tests.support.forked.commands import virtualenv
from tests.support.nets import write_data
from tests.support.network import network
from tests.support.processes import name_of, words_of
from tests.support.sabotaged_net import slow_down, write_problem
from tests.support.ssh_hosts import Site, running, site

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
NAMED_S = 20.0
ENDLESS = ("--max-iter", "1000000", "--test-interval", "0")
SHORT = ("--max-iter", "20", "--test-interval", "0")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with network(5) as members, site(members, tmp_path_factory.mktemp("site") / "site") as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a test net: no tester starts."""
    made = write_problem(tmp_path_factory.mktemp("small") / "problem", tested=False)
    slow_down(made, 4)
    return made


@pytest.fixture(autouse=True)
def nothing_stays(hosts: Site) -> Iterator[None]:
    yield
    assert hosts.nothing_left_within(30) == []


def the_folder(cwd: Path) -> Path:
    (found,) = (cwd / "runs").iterdir()
    return found / "hosts"


def until_it_trains(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        print(line, end="")
        if re.match(r"iteration [1-9]", line):
            return
    pytest.fail("it ended without an iteration")


def test_a_yaml_file_with_a_server_of_its_own_trains_and_the_logs_of_every_host_come_back(
    hosts: Site, small: Path, tmp_path: Path
) -> None:
    process = hosts.launch([*as_yaml(hosts, tmp_path), str(small), *SHORT], tmp_path)
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert "after 20 iterations" in out
    assert Path(out.splitlines()[-1]).is_relative_to(hosts.hosts[0].home), (
        "the model is on the master's host"
    )
    folder = the_folder(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == hosts.addresses
    first, second, third, fourth = (folder / one for one in hosts.addresses)
    assert json.loads((first / "master" / "result.json").read_text())["workers"] == 3
    assert "iteration 20/20" in (first / "master.log").read_text()
    for place in (first, second, third):
        assert "joined the master" in (place / "worker.log").read_text()
        assert list((place / "worker" / "logs" / "stay-1").glob("worker-*.log"))
    assert "joined the master" in (fourth / "server.log").read_text()
    assert not (second / "master.log").exists()


def test_ctrl_c_stops_the_master_that_tests_and_exports_and_a_host_that_failed_has_its_logs_here(
    hosts: Site, tested_problem: Path, tmp_path: Path
) -> None:
    slow_down(tested_problem, 3)
    words = [*as_poseidons(hosts, tmp_path), str(tested_problem), *ENDLESS]
    process = hosts.launch(words, tmp_path)
    until_it_trains(process)
    lost = hosts.hosts[3]
    command = next(one for one in running(lost.host) if "worker" in words_of(one))
    token = command.environ()["SPEEDO_TOKEN"]
    seen = [word for one in psutil.process_iter() for word in words_of(one)]
    assert any("launch-host" in word for word in seen)
    assert not [word for word in seen if token in word], "the token is in a command line"
    command.kill()
    assert process.stderr is not None
    while f"{lost.address}: worker was killed by SIGKILL" not in process.stderr.readline():
        assert process.poll() is None
    for one in running(hosts.hosts[2].host):
        if name_of(one) == "sshd":
            one.kill()
    while f"{hosts.hosts[2].address}: lost: " not in process.stderr.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, errors
    assert "model.caffemodel" in out
    assert hosts.nothing_left_within(10) == []
    logs = the_folder(tmp_path) / lost.address
    assert "joined the master" in (logs / "worker.log").read_text()
    assert list((logs / "worker").rglob("host.log"))
    cut = tmp_path / "runs" / logs.parents[1].name / "hosts" / hosts.hosts[2].address
    assert list((cut / "worker").rglob("host.log")), "its ssh was killed, its logs were fetched"


def test_a_killed_launcher_leaves_no_process_on_any_host(
    hosts: Site, small: Path, tmp_path: Path
) -> None:
    process = hosts.launch([*as_words(hosts, tmp_path, 2), str(small), *ENDLESS], tmp_path)
    until_it_trains(process)
    assert len(hosts.left()) > 12
    process.kill()  # not its children: they have to notice
    assert hosts.nothing_left_within(30) == []


def test_a_rank_file_trains_with_the_master_on_this_machine_and_its_own_run_directory(
    hosts: Site, small: Path, tmp_path: Path
) -> None:
    words = [*as_rank_file(hosts, tmp_path, 2), str(small), *SHORT, "--master", "localhost"]
    process = hosts.launch([*words, "--run-dir", "here"], tmp_path)
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert out.splitlines()[-1] == str(tmp_path / "here" / "model.caffemodel")
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    assert (result["workers"], result["mode"]) == (4, "sync")
    events = map(json.loads, (tmp_path / "here" / "metrics.jsonl").read_text().splitlines())
    cores = [one["cores"] for one in events if one["event"] == "joined"]
    machine = this_machine()
    assert sorted(cores) == sorted(list_of(machine.cpus([core_of(rank)])) for rank in range(4))
    made = sorted(path.name for path in (tmp_path / "here" / "hosts").iterdir())
    assert made == [*hosts.addresses[:2], "localhost"]


def test_ctrl_c_while_the_hosts_are_examined_ends_at_once(
    hosts: Site, small: Path, tmp_path: Path
) -> None:
    process = hosts.launch([*as_words(hosts, tmp_path, 2), str(small)], tmp_path)
    deadline = time.monotonic() + 120 * how_loaded()
    while not any("doctor" in one for one in hosts.left()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.strip()) == (130, "speedo: stopped by Ctrl-C")
    assert hosts.nothing_left_within(10) == []


def refused(hosts: Site, values: object, words: list[str], cwd: Path) -> str:
    """What a launch says in the end that cannot begin; it is over in time and has left nothing."""
    (cwd / "cluster.yaml").write_text(yaml.safe_dump(values))
    began = time.monotonic()
    process = hosts.launch(["cluster.yaml", *words], cwd)
    _, errors = process.communicate(timeout=WAIT_S)
    took = time.monotonic() - began
    assert process.returncode == 1, errors
    # All hosts share the cores of this machine; beside many others they take their time.
    assert took < NAMED_S * how_loaded(), f"{took:.1f} s\n{errors}"
    assert hosts.nothing_left_within(5) == []
    assert not (cwd / "runs").exists()
    # A busy machine is slow enough for notes of who has failed already.
    return "".join(line for line in errors.splitlines(keepends=True) if line.startswith("speedo: "))


def test_each_host_that_ssh_cannot_reach_is_named_with_its_cause_in_time(
    hosts: Site, small: Path, tmp_path: Path
) -> None:
    lost, locked, changed, unknown = hosts.hosts
    strange = [
        hosts.add(one.host, name, port=2222)
        for one, name in ((locked, "locked"), (changed, "changed"), (unknown, "unknown"))
    ]
    hosts.welcome(strange[0], key=False)
    hosts.welcome(strange[1], known=False)
    hosts.welcome(strange[2], known=False)
    with (hosts.home / ".ssh" / "known_hosts").open("a") as file:
        file.write(strange[0].host_key.replace(locked.address, changed.address))
    for one in strange:
        one.start()
    values = {
        "master": "localhost",
        "virtualenv": str(virtualenv()),
        "ssh_port": 2222,
        "workers": [
            "10.79.0.99",
            *({"host": one.address} for one in (locked, changed, unknown)),
            {"host": lost.address, "ssh_port": 22, "virtualenv": "~/nowhere"},
        ],
    }
    said = refused(hosts, values, [str(small)], tmp_path)
    causes: dict[str, str] = {
        "10.79.0.99": "it cannot be reached",
        locked.address: "it refuses the key",
        changed.address: "it has another host key than known_hosts says",
        unknown.address: "its host key is not known here",
        lost.address: "SpeeDO is not in ~/nowhere there",
    }
    lines = {line.split(": ")[1]: line for line in said.splitlines()}
    assert set(lines) == set(causes), said
    for address, cause in causes.items():
        assert cause in lines[address], said


def test_a_host_without_pycaffe_and_one_with_other_data_are_named_in_time_each_with_its_cause(
    hosts: Site, small: Path, tmp_path: Path
) -> None:
    first, bare, other, _ = hosts.hosts
    without, with_less = (
        hosts.add(one.host, name, port=2223) for one, name in ((bare, "bare"), (other, "other"))
    )
    hosts.welcome(without)
    hosts.welcome(with_less)
    (tmp_path / "empty").mkdir()
    (caffe,) = Path(sys.prefix).glob("lib/python3*/site-packages/caffe")
    without.start((tmp_path / "empty", caffe))
    (tmp_path / "less").mkdir()
    write_data(tmp_path / "less", train=100, test=40)
    with_less.start((tmp_path / "less" / "train", small.parent / "train"))
    values = {
        "master": first.address,
        "virtualenv": str(virtualenv()),
        "workers": [
            first.address,
            {"host": bare.address, "ssh_port": without.port, "virtualenv": sys.prefix},
            {"host": other.address, "ssh_port": with_less.port},
        ],
    }
    said = refused(hosts, values, [str(small)], tmp_path)
    lines = {line.split(": ")[1]: line for line in said.splitlines()}
    assert set(lines) == {bare.address, other.address}, said
    assert said.count("speedo: ") == 2, said
    cause = f"speedo: {bare.address}: pycaffe: pycaffe cannot be imported"
    assert lines[bare.address].startswith(cause), said
    cause = f"speedo: {other.address}: data: "
    assert lines[other.address].startswith(cause), said
    both = "100 training records, but the master has 256"
    assert both in lines[other.address], said


def test_a_command_after_two_dashes_is_what_every_worker_runs(hosts: Site, tmp_path: Path) -> None:
    """No host needs a solver; `python` is the one that has SpeeDO there."""
    script = Path(__file__).parents[1] / "run" / "script" / "scripts" / "fit.py"
    words = ("--mode", "async", "--", "python", str(script), "none", "0.02")
    process = hosts.launch([*as_words(hosts, tmp_path, 2), *words], tmp_path)
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert "model.npz" in out
    assert "fitted 0 " in errors
    logs = list(the_folder(tmp_path).glob("*/worker/logs/stay-1/worker-*.log"))
    ranks = {
        line.split()[1]
        for log in logs
        for line in log.read_text().splitlines()
        if line.startswith("fitted")
    }
    assert len(ranks) == len(logs) > 1
