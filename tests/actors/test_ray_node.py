"""The node that a run starts by Ray's command: the private names that are used, who is served, and what may die."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.kept_gcs import DEATHS, GCS, KeptGcs
from speedo.actors.ray_node.node import Node, starting_node
from speedo.actors.ray_node.ports import Ports
from speedo.actors.ray_node.private_names import ADDONS, APPLY, MODULE, RESOLVE, START
from speedo.actors.ray_node.session import Head, clean_environment
from speedo.actors.token import new_token
from speedo.errors import ClusterError
from tests.support.commands import wait_until
from tests.support.network import ROOT
from tests.support.processes import listening, name_of, words_of
from tests.support.ray_cluster import oldest_ray

pytestmark = [pytest.mark.ray, pytest.mark.slow]
# In every Python of the run: the module that takes the name looks for another one.
ANOTHER_NAME = """
import importlib.util, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if not name.endswith(".private_names"):
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def execute_and_rename(module):
            execute(module)
            for name in ("RESOLVE", "START", "APPLY"):
                setattr(module, name, getattr(module, name) + "_of_old")
        spec.loader.exec_module = execute_and_rename
        return spec
sys.meta_path.insert(0, Finder())
"""
ASK = f"from {MODULE} import {RESOLVE}, {START}; from {ADDONS} import {APPLY}"


@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_ray_has_the_private_names_that_are_used(version: str) -> None:
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
def test_a_ray_without_them_trains_with_the_token_and_says_where_it_listens(
    tmp_path: Path, problem: Path
) -> None:
    """As a Ray that has the functions under other names; its agents run, too, and its actors import all."""
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
        f"note: this Ray has no {MODULE}.{RESOLVE}_of_old, which keeps it on 127.0.0.1"
        in done.stderr
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 5


def test_a_head_that_serves_who_has_no_token_ends_the_start() -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    others |= {"RAY_AUTH_MODE": "disabled"}
    with ExitStack() as stack:
        open_to_all = starting_node("127.0.0.1", Ports(), ray_folder(stack), others)
        node = stack.enter_context(open_to_all)()
        with pytest.raises(ClusterError, match="to programs without the token, so no run starts"):
            Head(node).require_token()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("ray.py", "raise ImportError('no Ray here')", "ImportError: no Ray here"),
        ("sitecustomize.py", "import os; os.abort()", "its test ended with -6"),
        ("sitecustomize.py", "import time; time.sleep(600)", "no answer within 1 s"),
    ],
)
def test_a_start_ends_where_it_cannot_be_seen_whether_ray_wants_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, words: str
) -> None:
    (tmp_path / file).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setattr("speedo.actors.ray_node.probe.PROBE_S", 1.0 if "sleep" in text else 60.0)
    with pytest.raises(ClusterError, match=f"could not be checked, so no run starts: {words}"):
        Head(Node("", "127.0.0.1:1", "", {})).require_token()


def of_node(folder: str) -> list[psutil.Process]:
    """The processes of Ray's services there, and what they have started."""
    services = [one for one in psutil.process_iter() if folder in " ".join(words_of(one))]
    services = [one for one in services if name_of(one) in (GCS, "raylet")]
    return [*services, *(child for one in services for child in one.children(recursive=True))]


COUNT = """
import ray, sys
from speedo.actors.ray_node.private_names import take_addresses_literally
take_addresses_literally()
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0)
class Counter:
    count = 0
    def add(self):
        self.count += 1
        return self.count
    def needless(self, packages):
        return sorted(set(packages) & set(sys.modules))

first = Counter.remote()
print(ray.get(first.needless.remote(sys.argv[2:])), flush=True)
print(ray.get(first.add.remote()), flush=True)
for line in sys.stdin:
    print(ray.get(first.add.remote()), flush=True)
second = Counter.remote()
print(ray.get(second.add.remote()), flush=True)
"""


# What Ray imports at once, or with its first message, and no actor uses.
NEEDLESS = ("grpc", "jsonschema", "pydantic.v1", "requests", "starlette")


def is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def listens_on_loopback_alone_without_dashboard_and_agents(folder: str) -> None:
    processes = of_node(folder)
    addresses = {address for one in processes for address, _ in listening(one)}
    assert {GCS, "raylet"} <= {name_of(one) for one in processes}
    others = [" ".join(words_of(one)) for one in processes if name_of(one) not in (GCS, "raylet")]
    assert not any("agent.py" in words or "Agent" in words for words in others)
    assert not any("dashboard.py" in words for words in others)
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def starts_its_dead_gcs_again(
    folder: str, gcs: str, token: Mapping[str, str], told: list[str]
) -> None:
    """Lean actors work on meanwhile, and others start afterwards."""
    path = os.pathsep.join([str(ROOT), token.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", COUNT, gcs, *NEEDLESS],
        env={**token, "PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program, ExitStack() as stack:  # fmt: skip
        stack.callback(program.kill)
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "[]\n"
        assert program.stdout.readline() == "1\n"
        (service,) = [one for one in of_node(folder) if name_of(one) == GCS]
        service.kill()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "2\n"
        wait_until(lambda: told)
        program.stdin.close()
        assert program.stdout.readline() == "1\n", "no other actor starts"
        assert program.wait(60) == 0


def test_a_head_takes_a_free_port_wants_the_token_on_loopback_alone_and_starts_its_dead_gcs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its port is free when it is chosen, and another program's before Ray listens; the next is in Ray's own range."""
    told: list[str] = []
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as other:
        token, folder = clean_environment(new_token()), ray_folder(stack)
        taken = other.getsockname()[1]
        # Unless told otherwise
        for_workers = next(one for one in range(15000, 16000) if is_free(one))
        given = iter([taken, for_workers])
        monkeypatch.setattr("speedo.actors.ray_node.node.free_port", lambda host: next(given))
        start = starting_node("127.0.0.1", Ports(), folder, token, tell=told.append)
        node = stack.enter_context(start)()
        assert node.gcs == f"127.0.0.1:{for_workers}", "the port that was taken is tried again"
        assert node.dead() is None
        Head(node).require_token()
        listens_on_loopback_alone_without_dashboard_and_agents(folder)
        starts_its_dead_gcs_again(folder, node.gcs, token, told)
        assert node.dead() is None
    assert told == ["warning: Ray's control service (GCS) died; it was started again"]
    assert not of_node(folder)


def test_a_control_service_that_dies_again_and_again_is_lost() -> None:
    started = psutil.Popen(["sleep", "600"])
    wait_until(started.cmdline)  # the system sets it a moment after Popen's return
    told: list[str] = []
    kept = KeptGcs(psutil.Process(started.pid), os.environ, told.append)
    node = Node("", "", "", {}, kept)
    for died in range(DEATHS):
        kept.process.kill()
        started.wait()
        wait_until(lambda died=died: len(told) > died)
        assert node.dead() is None
    kept.process.kill()
    wait_until(lambda: node.dead() == GCS)
    kept.close()
    assert len(told) == DEATHS


def test_one_whose_command_is_not_known_is_lost_at_its_first_death() -> None:
    gone = psutil.Popen(["true"])
    process = psutil.Process(gone.pid)
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    kept = KeptGcs(process, os.environ, pytest.fail)
    wait_until(lambda: kept.failed)
    kept.close()
    gone.wait()


def test_what_has_died_is_named() -> None:
    children = {name: psutil.Popen(["sleep", "600"]) for name in (GCS, "raylet")}
    node = Node("", "", "", {name: psutil.Process(one.pid) for name, one in children.items()})
    assert node.dead() is None
    children["raylet"].kill()
    wait_until(lambda: node.dead() == "raylet")
    children[GCS].kill()
    for one in children.values():
        one.wait()
    assert node.dead() is not None
