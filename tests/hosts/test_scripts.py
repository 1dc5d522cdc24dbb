"""Scripts of the user's on hosts of their own: `speedo master --own`, and `speedo worker ... -- COMMAND` on each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.faults.rows import Finding, row
from tests.faults.scripts import EACH_ONCE, SCRIPT_MODES, options_of, trained
from tests.support.commands import Commands, commands, wait_for_line, wait_until
from tests.support.invariants import Line, read_lines
from tests.support.network import Host, network
from tests.support.ray_cluster import users_cluster

pytestmark = [pytest.mark.ray, pytest.mark.redis]
SCRIPTS = Path(__file__).parents[1] / "run" / "script" / "scripts"
WAIT_S = 240
LEFT = '"event":"left"'


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


def test_collectives_are_of_all_workers_wherever_they_are(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    """Also where what hosts exchange is encrypted."""
    chief, other, third = hosts
    words = master(chief, "--workers", "4", "--mode", "async", "--redis", "tls=yes")
    first = speedo.start(*words, inside=chief.inside)
    some = (
        speedo.start(*worker(chief, 1, "collect.py"), inside=chief.inside),
        speedo.start(*worker(chief, 2, "collect.py"), inside=other.inside),
        speedo.start(*worker(chief, 1, "collect.py"), inside=third.inside),
    )
    errors = ended(first)
    for process in some:
        ended(process)
    assert "collected [0, 1, 2, 3] [10.0, 10.0, 10.0] [3.0] [7.0]" in errors


def tells_hosts_that_do_not_fit_why(speedo: Commands, chief: Host, other: Host) -> None:
    """No command for a master of scripts; a program that is not there; a script that fails."""
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


@row(8, "the host of users' scripts killed; another joins", SCRIPT_MODES, usual="sync")
def test_hosts_that_do_not_fit_are_told_why_one_that_is_killed_loses_no_record_and_one_more_joins(
    speedo: Commands, hosts: list[Host], tmp_path: Path, mode: str, finding: Finding
) -> None:
    """One of them is on the machine of its master: its weights travel another way."""
    chief, other, third = hosts
    log = tmp_path / "run" / "metrics.jsonl"
    words = master(chief, "--workers", "4", *options_of(mode))
    first = speedo.start(*words, inside=chief.inside)
    tells_hosts_that_do_not_fit_why(speedo, chief, other)
    assert first.poll() is None, "the master does not go on"
    near = speedo.start(*worker(chief, 1, "fit.py", "none", "0.7"), inside=chief.inside)
    wait_for_line(log, '"event":"joined"', 60, first)
    far = speedo.start(*worker(chief, 1, "fit.py", "none", "0.7"), inside=other.inside)
    speedo.start(*worker(chief, 2, "fit.py", "none", "0.7"), inside=third.inside)
    wait_for_line(log, '"version":3,', 90, first)
    status = speedo.start("status", "--json", inside=chief.inside)
    out, _ = status.communicate(timeout=WAIT_S)
    (found,) = json.loads(out)["runs"]
    assert (found["address"], len(found["workers"])) == (f"{chief.address}:56126", 4)
    assert log.read_text().count(LEFT) == 1, "others are gone than the one that failed"
    third.kill_all()
    wait_until(lambda: log.read_text().count(LEFT) > 1)
    comes = speedo.start(*worker(chief, 2, "fit.py", "none", "0.3"), inside=third.inside)
    errors = ended(first)
    for process in (near, far, comes):
        ended(process)
    lines = lines_of(tmp_path)
    assert trained(lines) == EACH_ONCE
    causes = Counter(line["cause"] for line in lines if line["event"] == "left")
    assert causes.pop("its script has ended") in (2, 4)  # the new host may come when all is trained
    assert causes.pop("it did not start") == 1  # the script that failed
    assert causes.total() == 2, causes
    assert {line["worker"] for line in lines if line["event"] == "result"} >= {0, 1, 2, 3}
    model = np.load(tmp_path / "run" / "model.npz")["w"]
    np.testing.assert_allclose(model, [1.0, -2.0, 3.0], atol=0.1)
    assert f"fitted 0 {model.round(3).tolist()}" in errors  # worker 0 is shown by the master
    assert errors.count("fitted ") == 1, "others are shown too"
    left = [line["time"] for line in lines if line["event"] == "left"][1]
    after = (line["time"] for line in lines if line.get("decision") == "merged")
    finding.recovered(next(time for time in after if time > left) - left)


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


TORCH_RECORDS, WHOLE = 1190, 48  # of fit_torch.py; records of a step of all workers


def torch_worker(chief: Host, count: int, *arguments: str) -> tuple[str, ...]:
    return worker(chief, count, "fit_torch.py", *arguments)


@pytest.mark.torch
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param((1, 1), marks=pytest.mark.matrix),
        pytest.param((2, 1), marks=pytest.mark.matrix),
        (1, 2),
    ],
    ids=str,
)
def test_gradients_between_hosts_make_the_model_of_one_process(
    speedo: Commands, hosts: list[Host], tmp_path: Path, counts: tuple[int, int]
) -> None:
    """50 steps of Adam, within 1e-6 of the largest weight; the first host is that of the master."""
    chief, other, _ = hosts
    workers = sum(counts)
    words = (str(WHOLE // workers), "adam")
    first = speedo.start(*master(chief, "--workers", str(workers)), inside=chief.inside)
    near = speedo.start(*torch_worker(chief, counts[0], *words), inside=chief.inside)
    far = speedo.start(*torch_worker(chief, counts[1], *words), inside=other.inside)
    for process in (first, near, far):
        ended(process)
    file = tmp_path / "alone.npz"
    alone = [sys.executable, str(SCRIPTS / "fit_torch.py"), str(WHOLE), "adam", "", "0", str(file)]
    assert "steps 50" in subprocess.run(alone, check=True, capture_output=True, text=True).stdout
    ours, theirs = np.load(tmp_path / "run" / "model.npz"), np.load(file)
    largest = max(float(np.abs(theirs[name]).max()) for name in theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6 * largest)
    merged = [line for line in lines_of(tmp_path) if line.get("decision") == "merged"]
    assert {line["worker"] for line in merged} == set(range(workers))
    # the master hears of a stretch, not of a step
    assert max(line["steps"] for line in merged) > 1


@pytest.mark.torch
def test_a_worker_that_tests_ends_the_turn_of_all_hosts_with_the_step_and_nothing_is_lost(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    """No batch is trained twice: a team that breaks would leave discarded results."""
    chief, *others = hosts
    first = speedo.start(*master(chief, "--workers", "3"), inside=chief.inside)
    some = [
        speedo.start(*worker(chief, count, "tested_torch.py", "one"), inside=host.inside)
        for count, host in zip((1, 2), others, strict=True)
    ]
    for process in (first, *some):
        ended(process)
    lines = lines_of(tmp_path)
    assert [line for line in lines if line.get("decision") == "discarded"] == []
    assert trained(lines) == Counter({(e, r): 1 for e in range(2) for r in range(600)})
    assert [line["problem"] for line in lines if line["event"] == "test"] == [None] * 2
    assert max(line["steps"] for line in lines if line.get("decision") == "merged") > 1


@pytest.mark.torch
@pytest.mark.parametrize("leads", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_host_that_is_killed_breaks_the_step_of_the_others_which_train_its_records(
    speedo: Commands, hosts: list[Host], tmp_path: Path, leads: bool
) -> None:
    """`leads`: the host that is killed has worker 0."""
    chief, *others = hosts
    words = ("6", "adam", "gradients", "0.1")
    first = speedo.start(*master(chief, "--workers", "4"), inside=chief.inside)
    processes = {
        host: speedo.start(*torch_worker(chief, 2, *words), inside=host.inside) for host in others
    }
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":2,', 90, first)
    leader = next(
        line["process"]
        for line in lines_of(tmp_path)
        if line["event"] == "joined" and line["worker"] == 0
    )
    killed, stays = others
    if (leader in killed.processes()) != leads:
        killed, stays = stays, killed
    killed.kill_all()
    for process in (first, processes[stays]):
        ended(process)
    lines = lines_of(tmp_path)
    each_once = {(epoch, position): 1 for epoch in range(2) for position in range(TORCH_RECORDS)}
    assert trained(lines) == Counter(each_once)
    left = [line for line in lines if line["event"] == "left"]
    dead = [line["worker"] for line in left if line["cause"] != "its script has ended"]
    assert len(dead) == 2
    assert (0 in dead) == leads
    assert max(line["steps"] for line in lines if line.get("decision") == "merged") > 1


@pytest.mark.torch
def test_one_that_exchanges_something_else_is_refused_and_stop_ends_the_scripts_on_all_hosts(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    """The scripts would train for many minutes; the model so far is exported."""
    chief, *others = hosts
    words = ("6", "adam", "", "2")
    first = speedo.start(*master(chief, "--workers", "2"), inside=chief.inside)
    some = [speedo.start(*torch_worker(chief, 1, *words), inside=one.inside) for one in others]
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":1,', 90, first)
    wrong = speedo.start(*torch_worker(chief, 1, "6", "adam", "deltas"), inside=chief.inside)
    told = (
        r"worker 2 exchanges deltas, worker [01] gradients: give speedo.join the same exchange= in"
    )
    assert re.search(told, ended(wrong, 1))
    ended(speedo.start("stop", inside=chief.inside))
    errors = ended(first, 3)
    for process in some:
        ended(process)
    assert "stopped by `speedo stop`" in errors
    shapes = sorted(one.shape for one in np.load(tmp_path / "run" / "model.npz").values())
    assert shapes == [(1,), (1, 8), (8,), (8, 4)]
