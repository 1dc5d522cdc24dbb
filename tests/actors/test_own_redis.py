"""A whole run of `speedo train`: what it leaves, and nothing in a Redis of the user's, which it uses as it is."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.support.commands import Commands

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]


def test_a_compressed_run_leaves_its_directory_and_nothing_on_an_own_redis_and_tells_its_sizes(
    speedo: Commands, tmp_path: Path
) -> None:
    """Master, workers and tester agree on how vectors are written. The password comes from the environment."""
    with PrivateRedis() as server:
        store = RedisStore(server.url)
        store.write("somebody:else", b"head", memoryview(b"body"))
        parts = urlsplit(server.url)
        process = speedo.start(
            "train", "--mode", "easgd", "--workers", "2", "--max-iter", "20", "--test-interval", "15", "--seed", "5",
            "--compress", "int8", "--compress", "center=bfloat16", "--redis", "same_node=redis",
            "--redis", f"redis://{parts.username}@{parts.hostname}:{parts.port}/0", "--run-dir", "run",
            environment={"SPEEDO_REDIS_PASSWORD": parts.password or ""},
        )  # fmt: skip
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert store.keys("") == ["somebody:else"]
        assert store.administer("ACL", "USERS") == [b"default", b"master"]
    told = "1.7 MB per exchange; payloads 0.43 MB with int8; centers 0.86 MB with bfloat16"
    assert told in errors
    run = tmp_path / "run"
    result = json.loads((run / "result.json").read_text())
    assert (result["iteration"], result["version"], result["complete"]) == (20, 20, True)
    assert {"mode", "workers", "images_per_s", "seconds"} <= set(result)
    assert out.splitlines()[-1] == result["model"] == str(run / "model.caffemodel")
    assert f"test accuracy {result['accuracy']:.4f} after 20 iterations" in out
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["mode"], config["max_iter"], config["seed"]) == ("easgd", 20, 5)
    assert "effective" in errors or "batch 64 per worker" in errors
    assert "learning rate 0.02 (inv, 2 times the solver's" in errors
    assert "iteration 20/20" in (run / "train.log").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    decisions = [line["decision"] for line in lines if line["event"] == "result"]
    assert decisions == ["merged"] * 20
    tests = [line for line in lines if line["event"] == "test"]
    assert [line["problem"] for line in tests] == [None] * 3
    assert [(line["version"], line["iteration"]) for line in tests] == [(0, 0), (15, 15), (20, 20)]
    assert result["bytes_pushed"] == 20 * (60 + 4 * 421 + 431_080)
    assert result["bytes_pulled"] == 20 * (60 + 2 * 431_080)
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.*"))
    assert (parts.password or "?") not in kept
    assert not list((tmp_path / "run" / "logs").glob("speedo-engine-*"))
