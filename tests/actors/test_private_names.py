"""Every name of Ray's private modules that is used is there, in the newest Ray and the oldest; without one, the public
way works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from speedo.actors.ray_node import session
from speedo.actors.ray_node.private import NAMES, lacking
from speedo.errors import ClusterError
from tests.support.network import ROOT
from tests.support.ray_cluster import oldest_ray

pytestmark = pytest.mark.ray
ASK = """
import json
from speedo.actors.ray_node.private import NAMES, find
print(json.dumps([name for name in NAMES if find(name) is not None]))
"""
WITHOUT_ONE = """
import sys
import ray._private.services as services
del services._build_python_executable_command_memory_profileable
from speedo.cli.main import main
main(sys.argv[1:])
"""


@cache
def there(version: str) -> list[str]:
    first = [str(oldest_ray())] if version == "oldest" else []
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("version", ["oldest", "newest"])
@pytest.mark.parametrize("name", NAMES)
def test_ray_has_what_is_taken_from_its_private_modules(name: str, version: str) -> None:
    assert name in there(version)


def test_what_a_ray_has_not_is_named_as_ray_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "Node", ("ray._private.node", "Node.none"))
    monkeypatch.setitem(NAMES, "worker", ("ray._private.none", ""))
    assert lacking() == ["ray._private.node.Node.none", "ray._private.none"]


@pytest.mark.parametrize("name", ["authentication_mode", "AuthenticationMode"])
def test_a_ray_that_does_not_say_whether_it_asks_for_the_token_serves_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NAMES, name, ("ray._raylet", "none"))
    with pytest.raises(ClusterError, match="would serve node1 only with the token cannot be seen"):
        session._require_authentication("node1")


@pytest.mark.redis
@pytest.mark.caffe
@pytest.mark.slow
def test_a_ray_that_lacks_a_name_starts_its_node_by_its_command_and_the_run_says_so(
    tmp_path: Path, problem: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable, "-c", WITHOUT_ONE, "train", "--workers", "1", "--max-iter", "5", "--test-interval", "0",
            "--run-dir", "run", str(problem),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPEEDO_RUNTIME_DIR": str(tmp_path / "runtime")},
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name = "ray._private.services._build_python_executable_command_memory_profileable"
    assert f"note: this Ray has no {name}: its node is started by `ray start`" in done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 5
