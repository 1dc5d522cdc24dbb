"""Scripts of the user's on hosts of their own: `speedo master --own`, and `speedo worker ... -- COMMAND` on each."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.faults.invariants import Line, read_lines
from tests.faults.rows import Finding, row
from tests.faults.scripts import EACH_ONCE, SCRIPT_MODES, options_of, trained
from tests.support.commands import Commands, commands, wait_for_line
from tests.support.network import Host, network
from tests.support.ray_cluster import users_cluster

pytestmark = [pytest.mark.ray, pytest.mark.redis]
SCRIPTS = Path(__file__).parents[1] / "script" / "scripts"
WAIT_S = 240


def master(chief: Host, *options: str) -> tuple[str, ...]:
    return ("master", "--own", "--host", chief.address, "--timeout", "300", "--run-dir", "run", *options)  # fmt: skip


def worker(chief: Host, count: int, script: str, *arguments: str) -> tuple[str, ...]:
    words = ("worker", "--master", chief.address, "--timeout", "300", "--workers", str(count))
    return (*words, "--", "python", str(SCRIPTS / script), *arguments)


def lines_of(folder: Path) -> list[Line]:
    return read_lines(folder / "run" / "metrics.jsonl")


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    """What a command said on standard error, once it has ended with this status."""
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    return errors


def test_scripts_on_two_hosts_train_each_record_once_and_all_have_the_model(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    """One of them is on the machine of its master: its weights travel another way."""
    chief, other, _ = hosts
    words = master(chief, "--workers", "3", "--mode", "async")
    first = speedo.start(*words, inside=chief.inside)
    near = speedo.start(*worker(chief, 1, "fit.py", "none", "0.05"), inside=chief.inside)
    far = speedo.start(*worker(chief, 2, "fit.py", "none", "0.05"), inside=other.inside)
    errors = ended(first)
    for process in (near, far):
        ended(process)
    lines = lines_of(tmp_path)
    assert trained(lines) == EACH_ONCE
    assert {line["worker"] for line in lines if line["event"] == "result"} == {0, 1, 2}
    model = np.load(tmp_path / "run" / "model.npz")["w"]
    np.testing.assert_allclose(model, [1.0, -2.0, 3.0], atol=0.1)
    assert f"fitted 0 {model.round(3).tolist()}" in errors  # worker 0 is shown by the master
    assert "fitted 1" not in errors
    assert "fitted 2" not in errors


def test_collectives_are_of_all_workers_wherever_they_are(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    chief, other, third = hosts
    first = speedo.start(*master(chief, "--workers", "4", "--mode", "async"), inside=chief.inside)
    some = (
        speedo.start(*worker(chief, 1, "collect.py"), inside=chief.inside),
        speedo.start(*worker(chief, 2, "collect.py"), inside=other.inside),
        speedo.start(*worker(chief, 1, "collect.py"), inside=third.inside),
    )
    errors = ended(first)
    for process in some:
        ended(process)
    assert "collected [0, 1, 2, 3] [10.0, 10.0, 10.0] [3.0] [7.0]" in errors


@row(8, "the host of users' scripts killed; another joins", SCRIPT_MODES, usual="sync")
def test_a_host_that_is_killed_loses_no_record_and_one_more_joins_the_others(
    speedo: Commands, hosts: list[Host], tmp_path: Path, mode: str, finding: Finding
) -> None:
    chief, other, third = hosts
    words = master(chief, "--workers", "4", *options_of(mode))
    first = speedo.start(*words, inside=chief.inside)
    stays = speedo.start(*worker(chief, 2, "fit.py", "none", "0.7"), inside=other.inside)
    speedo.start(*worker(chief, 2, "fit.py", "none", "0.7"), inside=third.inside)
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":3,', 90, first)
    status = speedo.start("status", "--json", inside=chief.inside)
    out, _ = status.communicate(timeout=WAIT_S)
    (found,) = json.loads(out)["runs"]
    assert (found["address"], len(found["workers"])) == (f"{chief.address}:56126", 4)
    third.kill_all()
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"event":"left"', 60, first)
    comes = speedo.start(*worker(chief, 2, "fit.py", "none", "0.3"), inside=third.inside)
    for process in (first, stays, comes):
        ended(process)
    lines = lines_of(tmp_path)
    assert trained(lines) == EACH_ONCE
    causes = Counter(line["cause"] for line in lines if line["event"] == "left")
    assert causes.pop("its script has ended") in (2, 4)  # the new host may come when all is trained
    assert causes.total() == 2, causes
    left = next(line["time"] for line in lines if line["event"] == "left")
    after = (line["time"] for line in lines if line.get("decision") == "merged")
    finding.recovered(next(time for time in after if time > left) - left)


def test_hosts_that_do_not_fit_the_master_are_told_why_and_it_goes_on(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    """No command for a master of scripts; a script that fails; a program that is not there."""
    chief, other, third = hosts
    first = speedo.start(*master(chief, "--workers", "1"), inside=chief.inside)
    at = ("worker", "--master", chief.address, "--timeout", "300")
    bare = speedo.start(*at, inside=other.inside)
    missing = speedo.start(*at, "--", "no-such-program", "x", inside=other.inside)
    assert ended(bare, 2).splitlines()[-1] == (
        f"speedo: the master at {chief.address}:56126 was started with --own, so each host brings its script: "
        f"speedo worker --master {chief.address}:56126 -- python train.py"
    )
    assert ended(missing, 2).splitlines()[-1] == (
        "speedo: no-such-program is not a program on this host: give one of the PATH, as in -- python train.py"
    )
    fails = speedo.start(*worker(chief, 1, "fit.py", "early"), inside=other.inside)
    assert "ValueError: the file of settings is not there" in ended(fails, 1)
    assert first.poll() is None
    right = speedo.start(*worker(chief, 1, "fit.py"), inside=third.inside)
    ended(first)
    ended(right)
    assert trained(lines_of(tmp_path)) == EACH_ONCE


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scripts_train_on_the_nodes_of_a_ray_cluster(tmp_path: Path) -> None:
    """One of them is on the node of its master."""
    with network(3) as members, users_cluster(members, tmp_path) as cluster:
        cluster.add(members[0], 1)
        cluster.add(members[1], 2)
        with commands(tmp_path) as speedo:
            process = speedo.start(
                *("run", "--ray", "auto", "--timeout", "300", "--workers", "3", "--mode", "async"),
                *("--run-dir", "run", str(SCRIPTS / "fit.py"), "none", "0.1"),
                inside=members[0].inside,
                environment={**cluster.environment, "RAY_ADDRESS": cluster.address},
            )
            errors = ended(process)
    lines = lines_of(tmp_path)
    assert trained(lines) == EACH_ONCE
    assert "3 workers on 2 nodes" in errors
    model = np.load(tmp_path / "run" / "model.npz")["w"]
    assert f"fitted 0 {model.round(3).tolist()}" in errors
