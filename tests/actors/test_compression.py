"""`speedo train --compress`: master, workers and tester of a real run agree on how vectors are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Commands

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]


def test_a_compressed_run_tells_its_sizes_and_ends_well(speedo: Commands, tmp_path: Path) -> None:
    process = speedo.start(
        "train", "--mode", "easgd", "--max-iter", "20", "--test-interval", "10", "--run-dir", "run",
        "--compress", "int8", "--compress-center", "bfloat16", "--same-node", "redis",
    )  # fmt: skip
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert (
        "1.7 MB per exchange; payloads 0.43 MB with int8; centers 0.86 MB with bfloat16" in errors
    )
    run = tmp_path / "run"
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    decisions = [line["decision"] for line in lines if line["event"] == "result"]
    assert decisions == ["merged"] * 20
    assert [line["problem"] for line in lines if line["event"] == "test"] == [None] * 3
    assert result["bytes_pushed"] == 20 * (60 + 4 * 421 + 431_080)
    assert result["bytes_pulled"] == 20 * (60 + 2 * 431_080)
