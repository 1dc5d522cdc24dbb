"""A Redis of the user's, used as it is by a compressed run, with the password from the environment, and left so."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.support.commands import Commands

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]


def test_a_compressed_run_on_an_own_redis_leaves_nothing_there_and_tells_its_sizes(
    speedo: Commands, tmp_path: Path
) -> None:
    """Master, workers and tester agree on how vectors are written."""
    with PrivateRedis() as server:
        store = RedisStore(server.url)
        store.write("somebody:else", b"head", memoryview(b"body"))
        parts = urlsplit(server.url)
        process = speedo.start(
            "train", "--mode", "easgd", "--max-iter", "20", "--test-interval", "10",
            "--compress", "int8", "--compress-center", "bfloat16", "--same-node", "redis",
            "--redis", f"redis://{parts.username}@{parts.hostname}:{parts.port}/0", "--run-dir", "run",
            environment={"SPEEDO_REDIS_PASSWORD": parts.password or ""},
        )  # fmt: skip
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert store.keys("") == ["somebody:else"]
        assert store.administer("ACL", "USERS") == [b"default", b"master"]
    told = "1.7 MB per exchange; payloads 0.43 MB with int8; centers 0.86 MB with bfloat16"
    assert told in errors
    run = tmp_path / "run"
    result = json.loads((run / "result.json").read_text())
    assert result["iteration"] == 20
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    decisions = [line["decision"] for line in lines if line["event"] == "result"]
    assert decisions == ["merged"] * 20
    assert [line["problem"] for line in lines if line["event"] == "test"] == [None] * 3
    assert result["bytes_pushed"] == 20 * (60 + 4 * 421 + 431_080)
    assert result["bytes_pulled"] == 20 * (60 + 2 * 431_080)
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.*"))
    assert (parts.password or "?") not in kept
    assert not list((tmp_path / "run" / "logs").glob("speedo-engine-*"))
