"""A Redis of the user's: used as it is, with the password from the environment, and left as it was."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.support.commands import Commands

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]


def test_a_run_on_an_own_redis_leaves_nothing_there(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    with PrivateRedis() as server:
        store = RedisStore(server.url)
        store.write("somebody:else", b"head", memoryview(b"body"))
        parts = urlsplit(server.url)
        process = speedo.start(
            "train", str(problem), "--mode", "easgd", "--max-iter", "10", "--test-interval", "0",
            "--redis", f"redis://{parts.username}@{parts.hostname}:{parts.port}/0", "--run-dir", "run",
            environment={"SPEEDO_REDIS_PASSWORD": parts.password or ""},
        )  # fmt: skip
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert store.keys("") == ["somebody:else"]
        assert store.administer("ACL", "USERS") == [b"default", b"master"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 10
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.*"))
    assert (parts.password or "?") not in kept
    assert not list((tmp_path / "run" / "logs").glob("speedo-engine-*"))
