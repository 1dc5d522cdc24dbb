"""The tester is nobody's single point of failure."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Commands, wait_for_line, wait_until

pytestmark = [pytest.mark.caffe, pytest.mark.redis, pytest.mark.ray, pytest.mark.slow]


def test_a_tester_that_is_killed_is_replaced_and_the_last_version_is_tested(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = speedo.start(
        "train", str(tested_problem), "--max-iter", "1000000", "--test-interval", "50", "--run-dir", str(run),
        "--testers", "2", "--workers", "1",
    )  # fmt: skip
    wait_for_line(run / "metrics.jsonl", '"event":"test"', 60)
    testers = speedo.named("TesterActor")
    assert len(testers) == 2  # who share each test
    testers[0].kill()
    psutil.wait_procs(testers[:1], 10)
    wait_until(lambda: len(set(speedo.named("TesterActor")) | set(testers)) == 3)
    process.terminate()
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    result = json.loads((run / "result.json").read_text())
    assert result["test_problem"] == ""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    (last,) = [
        one for one in lines if one["event"] == "test" and one["iteration"] == result["iteration"]
    ]
    assert (last["problem"], last["metrics"]["accuracy"]) == (None, result["accuracy"])
    assert "test accuracy" in out


def test_a_tester_that_cannot_start_ends_the_run_with_the_cause(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    """Not hours later, when its first test is due."""
    process = speedo.start(
        "train", str(tested_problem), "--max-iter", "1000000", "--test-interval", "1000000",
        "--run-dir", "run", "--workers", "1", environment={"SPEEDO_FAILPOINT": "tester-starting"},
    )  # fmt: skip
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    log = tmp_path / "run" / "logs" / "tester.log"
    last = errors.splitlines()[-1]
    assert last.startswith("speedo: the tester could not start: "), errors
    assert last.endswith(f"; see {log}")
    assert "Traceback" not in errors
