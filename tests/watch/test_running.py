"""The commands against a real `speedo train`: looked at, scaled, left alone by Ctrl-C, stopped."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import fields_of_status
from tests.support.commands import Commands, how_loaded, interrupt, wait_for_line

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
LONG = ("--mode", "async", "--max-iter", "1000000", "--test-interval", "0", "--run-dir", "run")


def answered(speedo: Commands, *arguments: str) -> tuple[int, str, str]:
    process = speedo.start(*arguments)
    out, errors = process.communicate(timeout=WAIT_S)
    assert "Traceback" not in errors
    return process.returncode, out, errors


def only_run(speedo: Commands) -> dict[str, Any]:
    status, out, errors = answered(speedo, "status", "--json")
    assert status == 0, errors
    (run,) = json.loads(out)["runs"]
    return dict(run)


def test_a_run_is_looked_at_scaled_left_alone_by_ctrl_c_and_stopped_with_its_model(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    process = speedo.start("train", str(tested_problem), *LONG)
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    run = only_run(speedo)
    assert run["run_dir"] == str(tmp_path / "run")
    assert (run["mode"], run["state"], run["pid"]) == ("async", "training", process.pid)
    assert run["iteration"] >= 10
    assert run["remaining_s"] > 0
    assert (run["address"], run["over"], len(run["workers"])) == (None, False, 2)
    assert (set(run), set(run["workers"][0])) == fields_of_status()

    status, why, errors = answered(speedo, "status", "--why")
    assert status == 0, errors
    assert "  master     training; " in why
    assert re.search(
        r"^  worker 1: owes (?:a turn for \d+\.\d s|no turn)|worker 1: \w+, owes no turn", why, re.M
    ), why
    assert re.search(r"^  master, process \d+: ", why, re.M), why
    done = re.findall(
        r"^  worker \d, process \d+: .*?; (computing|fetching|publishing|waiting for .*)$",
        why,
        re.M,
    )
    assert len(done) == 2, why
    assert process.poll() is None
    status, logs, errors = answered(speedo, "logs", "--host", "here")
    assert status == 0, errors
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d command: .*run directory", logs, re.M), (
        logs[:2000]
    )
    assert re.search(r" worker 0: Thread 0x", logs), "the stacks that were just asked for"

    watching = speedo.start("status", "--watch", "--interval", "0.2")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("run ")
    interrupt(watching)
    watching.communicate(timeout=120)
    assert watching.returncode == 130
    before = only_run(speedo)["iteration"]
    deadline = time.monotonic() + 120 * how_loaded()
    while only_run(speedo)["iteration"] <= before:
        assert time.monotonic() < deadline, "the run stands still"
    assert process.poll() is None

    status, out, errors = answered(speedo, "scale", "3")
    assert status == 0, errors
    assert "3" in out
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"merged","worker":2,', 60)
    assert sum(worker["merged"] > 0 for worker in only_run(speedo)["workers"]) == 3

    status, out, errors = answered(speedo, "stop", "--json", "run")
    assert (status, errors) == (0, "")
    result = json.loads(out)["result"]
    assert (result["complete"], result["reason"]) == (False, "stopped by `speedo stop`")
    assert Path(result["model"]).stat().st_size > 1_000_000
    assert process.poll() is not None, "stop returned before the run had ended"
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert "test accuracy" in out
    assert answered(speedo, "status")[0] == 1
