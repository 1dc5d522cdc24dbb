"""The node that a run starts by Ray's command: the one private name that is used, and who is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.literal_addresses import MODULE, NAME
from speedo.actors.ray_node.node import Node, ray_node
from speedo.actors.ray_node.ports import Ports
from speedo.actors.ray_node.session import Head, clean_environment
from speedo.actors.token import new_token
from speedo.errors import ClusterError
from tests.support.commands import wait_until
from tests.support.network import ROOT
from tests.support.processes import listening, words_of
from tests.support.ray_cluster import oldest_ray

pytestmark = [pytest.mark.ray, pytest.mark.slow]
# In every Python of the run: the module that takes the name looks for another one.
ANOTHER_NAME = f"""
import importlib.util, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if not name.endswith(".literal_addresses"):
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def execute_and_rename(module):
            execute(module)
            module.NAME = "{NAME}_of_old"
        spec.loader.exec_module = execute_and_rename
        return spec
sys.meta_path.insert(0, Finder())
"""
ASK = f"from {MODULE} import {NAME}; import ray; print(ray.__version__)"


@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_ray_has_the_one_private_name_that_is_used(version: str) -> None:
    first = [str(oldest_ray())] if version == "oldest" else []
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.redis
@pytest.mark.caffe
def test_a_ray_without_it_trains_with_the_token_and_says_where_it_listens(
    tmp_path: Path, problem: Path
) -> None:
    """As a Ray that has the function under another name."""
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_NAME)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [
            sys.executable, "-m", "speedo", "train", "--workers", "1", "--max-iter", "5", "--test-interval", "0",
            "--run-dir", "run", str(problem),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "SPEEDO_RUNTIME_DIR": str(tmp_path / "runtime")},
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        f"note: this Ray has no {MODULE}.{NAME}_of_old, which keeps it on 127.0.0.1" in done.stderr
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 5


def test_a_head_that_serves_who_has_no_token_ends_the_start() -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    others |= {"RAY_AUTH_MODE": "disabled"}
    with ExitStack() as stack:
        token = clean_environment(new_token())
        kept = ray_node("127.0.0.1", Ports(), ray_folder(stack), token)
        Head(stack.enter_context(kept)).require_token()
    with ExitStack() as stack:
        open_to_all = ray_node("127.0.0.1", Ports(), ray_folder(stack), others)
        node = stack.enter_context(open_to_all)
        with pytest.raises(ClusterError, match="to programs without the token, so no run starts"):
            Head(node).require_token()


def test_a_head_for_this_machine_alone_listens_on_loopback_alone_and_has_no_dashboard() -> None:
    with ExitStack() as stack:
        token = clean_environment(new_token())
        node = stack.enter_context(ray_node("127.0.0.1", Ports(), ray_folder(stack), token))
        processes = psutil.Process(node.command.pid).children(recursive=True)
        addresses = {address for one in processes for address, _ in listening(one)}
        commands = [" ".join(words_of(one)) for one in processes]
        assert any("gcs_server" in words for words in commands)
        assert not any("dashboard.py" in words for words in commands)
        assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_what_has_died_first_is_named_also_when_all_is_gone(tmp_path: Path) -> None:
    names, log = ("gcs_server", "raylet"), tmp_path / "start.log"
    children = [subprocess.Popen(["sleep", "60"]) for _ in names]
    command = subprocess.Popen(["sleep", "60"])
    node = Node(
        "",
        "",
        command,
        "",
        log,
        {name: psutil.Process(child.pid) for name, child in zip(names, children, strict=True)},
    )
    assert node.dead() is None
    children[1].kill()
    wait_until(lambda: node.dead() == "raylet")
    for process in (children[0], command):
        process.kill()
        process.wait()
    assert node.dead() == "node"
    stamp = "2026-11-26 18:54:01,123 ERR scripts.py:1305 --"
    log.write_text(
        f"{stamp} Some Ray subprocesses exited unexpectedly:\n{stamp}   raylet [exit code=-9]\n"
        f"{stamp} Remaining processes will be killed: gcs_server\n"
    )
    assert node.dead() == "raylet"
    children[1].wait()
