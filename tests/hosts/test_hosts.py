"""A master and workers on hosts of their own: they train together, and survive one another."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.commands import Commands, how_loaded, wait_for_line, wait_until
from tests.support.nets import write_data
from tests.support.network import Host, limit
from tests.support.sabotaged_net import slow_down, write_problem
from tests.whole_runs.local import model_made_here

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


def master(host: Host, run: str, iterations: int, mode: str = "sync") -> tuple[str, ...]:
    return (
        "master", "--host", host.address, "--mode", mode, "--workers", "2", "--max-iter",
        str(iterations), "--test-interval", "0", "--timeout", "300", "--run-dir", run,
    )  # fmt: skip


def endless(host: Host, run: str, problem: Path) -> tuple[str, ...]:
    """With turns that overlap, and a rate at which their stale results do not diverge."""
    options = ("--overlap", "far", "--lr", "0.0002", str(problem))
    return (*master(host, run, 1_000_000, "async"), *options)


def worker(chief: Host, *options: str) -> tuple[str, ...]:
    return ("worker", "--master", chief.address, "--timeout", "300", *options)


def nothing_outlives_a_killed_worker_command(
    worker_command: subprocess.Popen[str], host: Host
) -> None:
    worker_command.kill()
    worker_command.wait()
    deadline = time.monotonic() + 120 * how_loaded()
    while left := host.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def a_host_whose_network_breaks_ends_its_workers_and_says_so(
    members: subprocess.Popen[str], host: Host, chief: Host
) -> None:
    """Nobody refuses a connection then: silence alone must do."""
    host.pull_the_cable()
    pulled = time.monotonic()
    assert members.stderr is not None
    for line in members.stderr:
        if "is gone (no answer for" in line:
            break
    else:
        pytest.fail("the loss was not told")
    assert time.monotonic() - pulled < 30 * how_loaded()
    _, errors = members.communicate(timeout=WAIT_S)
    assert members.returncode == 1, errors
    assert errors.splitlines()[-1] == (
        f"speedo: the master did not come back at {chief.address}:56126 within 5 s: start it again there "
        "with --resume, and this command too"
    )


def a_host_with_other_records_is_refused_with_both_numbers_and_the_remedy(
    wrong: subprocess.Popen[str],
) -> None:
    _, errors = wrong.communicate(timeout=WAIT_S)
    assert wrong.returncode == 1, errors
    assert "has 100 training records, but the master 256, and with --data-share shard" in errors
    assert (
        "copy the master's data to this host, or start the master with --data-share own" in errors
    )
    assert "Traceback" not in errors


def test_worker_hosts_are_refused_killed_and_cut_off_and_another_joins_the_next_master(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    chief, other, third = hosts
    log = tmp_path / "first" / "metrics.jsonl"
    problem = write_problem(tmp_path / "problem", data="mine", tested=False)
    slow_down(problem, 5)
    for folder in ("whole", "part"):
        (tmp_path / folder).mkdir()
    (problem.parent / "mine").rename(tmp_path / "whole" / "mine")
    (tmp_path / "part" / "mine").mkdir()
    write_data(tmp_path / "part" / "mine", train=100, test=40)
    whole, part = ("--data-root", "whole"), ("--data-root", "part")
    first = speedo.start(*endless(chief, "first", problem), *whole, inside=chief.inside)
    wrong = speedo.start(*worker(chief, *part), inside=third.inside)
    a_host_with_other_records_is_refused_with_both_numbers_and_the_remedy(wrong)
    members = speedo.start(*worker(chief, "--workers", "2", *whole), inside=other.inside)
    victims = speedo.start(*worker(chief, *whole), inside=third.inside)
    wait_for_line(log, '"joined","worker":2,', 90)
    wait_for_line(log, '"version":10,', 90)
    nothing_outlives_a_killed_worker_command(victims, third)
    cut_off = speedo.start(
        *worker(chief, "--workers", "2", "--timeout", "5", *whole), inside=third.inside
    )
    wait_until(lambda: log.read_text().count('"event":"joined"') == 5, 90)
    a_host_whose_network_breaks_ends_its_workers_and_says_so(cut_off, third, chief)
    assert (first.poll(), members.poll()) == (None, None)
    first.kill()
    second = speedo.start(*master(chief, "second", 40), *whole, str(problem), inside=chief.inside)
    for process in (second, members):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    assert f"the master at {chief.address}:56126 is gone" in errors
    assert errors.rindex("joined the master") > errors.index("is gone")
    assert json.loads((tmp_path / "second" / "result.json").read_text())["iteration"] == 40


def test_workers_that_share_a_cable_fetch_one_after_another_and_make_the_same_model(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    """A transfer takes 33 ms here; two at once, as at first, twice as long."""
    for host in hosts:
        limit(host, 300)
    chief, *others = hosts
    started = [
        speedo.start(
            *master(chief, "run", 50),
            str(problem),
            "--seed",
            "1",
            "--team",
            "off",
            inside=chief.inside,
        )
    ]
    started += [speedo.start(*worker(chief), inside=host.inside) for host in others]
    for process in started:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    assert "fetch one after another" in (tmp_path / "run" / "logs" / "master.log").read_text()
    here = model_made_here(problem, tmp_path / "here", workers=2, max_iter=50, seed=1, team="off")
    assert (tmp_path / "run" / "model.caffemodel").read_bytes() == here


@pytest.mark.matrix  # that the bits are those of one host, above, says the same
def test_three_hosts_train_lenet_to_its_accuracy_in_one_epoch(
    speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    """Sequential Caffe reaches 0.849 there."""
    chief, *others = hosts
    started = [speedo.start(*master(chief, "run", 938), inside=chief.inside)]
    started += [speedo.start(*worker(chief), inside=host.inside) for host in others]
    for process in started:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["mode"], result["workers"], result["iteration"]) == ("sync", 2, 938)
    assert result["accuracy"] >= 0.84
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    merged = [line for line in lines if line.get("decision") == "merged"]
    for slot in (0, 1):
        assert sum(line["steps"] for line in merged if line["worker"] == slot) == 938
