"""Threads and cores of the workers of a real run, as the kernel and `speedo status` show them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from speedo.system.cores import list_of, slots_of, this_machine
from tests.support.commands import Commands, free_port, wait_for_line
from tests.support.processes import words_of

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
HERE = list_of(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(
    len(this_machine().cores) < 2, reason="two workers are bound to a core each"
)


def allowed(process: int) -> set[str]:
    """Cpus_allowed_list of every thread of a process."""
    return {
        line.split()[1]
        for status in Path(f"/proc/{process}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("Cpus_allowed_list")
    }


def joined(run: Path) -> list[dict[str, object]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "joined"]


def core(number: int) -> str:
    machine = this_machine()
    return list_of(machine.cpus([machine.cores[number]]))


@needs_two_cores
def test_workers_are_bound_to_a_core_each_and_shown_with_it(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    process = speedo.start(
        "train", str(problem), "--mode", "async", "--workers", "2", "--threads", "bind=core", "--max-iter", "1000000",
        "--test-interval", "0", "--run-dir", "run",
    )  # fmt: skip
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    lines = joined(tmp_path / "run")
    assert sorted((line["host"], line["threads"], line["cores"]) for line in lines) == sorted(
        [("here", 1, core(0)), ("here", 1, core(1))]
    )
    for line in lines:
        assert "ray::WorkerActor" in " ".join(words_of(psutil.Process(line["process"])))
        assert allowed(int(str(line["process"]))) == {line["cores"]}
        assert psutil.Process(line["process"]).nice() == psutil.Process(process.pid).nice()

    out, _ = speedo.start("status", "--json").communicate(timeout=WAIT_S)
    (run,) = json.loads(out)["runs"]
    assert {(one["process"], one["threads"], one["cores"]) for one in run["workers"]} == {
        (line["process"], line["threads"], line["cores"]) for line in lines
    }
    examined, _ = speedo.start("doctor", str(problem), "--json").communicate(timeout=WAIT_S)
    (shown,) = [one for one in json.loads(examined)["checks"] if one["name"] == "running"]
    for line in lines:
        assert f"process {line['process']}, 1 thread, cores {line['cores']}" in shown["text"]

    victim = lines[0]
    said = f"process {victim['process']}, 1 thread, cores {victim['cores']}"
    wait_for_line(tmp_path / "run" / "train.log", said, 30)  # a line a second
    psutil.Process(victim["process"]).kill()  # the one in its place gets its core
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"incarnation":2', 60)
    process.terminate()
    _, errors = process.communicate(timeout=WAIT_S)
    *_, last = joined(tmp_path / "run")
    assert (last["cores"], last["process"] != victim["process"]) == (victim["cores"], True)
    assert said in errors


@needs_two_cores
def test_a_host_has_its_own_threads_and_binding_before_the_masters(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    port = free_port()
    chief = speedo.start(
        "master", str(problem), "--port", str(port), "--mode", "async", "--workers", "2", "--max-iter", "1000000",
        "--test-interval", "0", "--timeout", "300", "--run-dir", "run", "--threads", "2",
    )  # fmt: skip
    to = ("worker", "--master", f"127.0.0.1:{port}", "--timeout", "300")
    usual = speedo.start(*to)
    exact = slots_of([this_machine().cores[1]])
    own = speedo.start(*to, "--threads", "1", "--cores", exact)
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    eventually = time.monotonic() + 120
    while len(lines := joined(tmp_path / "run")) < 2:
        assert time.monotonic() < eventually
        time.sleep(0.1)
    assert sorted((line["threads"], line["cores"]) for line in lines) == sorted(
        [(1, core(1)), (2, HERE)]
    )
    for line in lines:
        assert allowed(int(str(line["process"]))) == {line["cores"]}
    chief.terminate()
    for process, status in ((usual, 0), (own, 0), (chief, 143)):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == status, errors


def test_cores_that_cannot_be_are_refused_before_the_master_is_asked(speedo: Commands) -> None:
    for cores, why in (
        (("0:0", "0:0"), "--cores is there 2 times for 1 workers: give it once for each worker"),
        (("0:x",), "--cores '0:x' is not SOCKET:CORES"),
        (("7:0",), "worker 0 of this host is to be bound to 7:0, but the host has"),
    ):
        words = [word for one in cores for word in ("--cores", one)]
        process = speedo.start("worker", "--master", "127.0.0.1:9", *words)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2
        assert errors.startswith(f"speedo: {why}")
