"""`speedo master --redis-tls`: a whole run over TLS, and no secret of Redis where others can see it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.commands import Commands, free_port, wait_for_line
from tests.support.processes import words_of

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]


def test_a_run_over_tls_trains_and_shows_no_secret(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    port = free_port()
    chief = speedo.start(
        "master", str(tested_problem), "--port", str(port), "--mode", "async", "--workers", "1",
        "--max-iter", "40", "--test-interval", "20", "--redis-tls", "--run-dir", "run",
    )  # fmt: skip
    worker = speedo.start("worker", "--master", f"127.0.0.1:{port}")
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    shown = [" ".join(words_of(process)) for process in speedo.left()]
    assert any("redis-server" in line for line in shown)
    for left in (chief, worker):
        _, errors = left.communicate(timeout=120)
        assert left.returncode == 0, errors
        shown.append(errors)
    shown += [path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.*")]
    assert not [text for text in shown if re.search(r"rediss?://|\b[0-9a-f]{48}\b", text)]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["iteration"], result["complete"]) == (40, True)
    assert result["accuracy"] is not None
