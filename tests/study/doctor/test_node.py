"""`speedo doctor` on a node of its own: what is well, what is not, and that it leaves everything as it was."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import speedo
from speedo.cli.main import main
from speedo.data.mnist import FASHION_MNIST_SOURCE
from speedo.engines.step_memory import LayerMemory, StepMemory
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import Patience
from speedo.study.doctor import Finding, NodeRequest, examine
from speedo.study.doctor.base import BuiltNet, size
from speedo.study.doctor.checks.cores import cores
from speedo.study.doctor.checks.machine import redis, temporary
from speedo.study.doctor.checks.resources import disk, exchange, memory, run_dir
from speedo.study.doctor.cluster import free_ports, own_redis, token
from speedo.study.doctor.engines import pycaffe, torch
from speedo.system.cores import Machine
from tests.support.commands import free_port
from tests.support.nets import net_text, write_data, write_solver

STEP = StepMemory((LayerMemory("ip", "InnerProduct", 12_000, 10_000),), 0, 10)
TINY = BuiltNet(nbytes=4000, step=STEP, snapshots=0)
pycaffe_once, torch_once = cache(pycaffe), cache(torch)  # each imports its own in a child


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a tiny solver and its data, and no token."""
    write_data(tmp_path)
    write_solver(tmp_path, net_text())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SPEEDO_DATA", str(tmp_path / "data-root"))
    monkeypatch.setenv("SPEEDO_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setattr("speedo.study.doctor.examination.pycaffe", pycaffe_once)
    monkeypatch.setattr("speedo.study.doctor.examination.torch", torch_once)
    for name in ("SPEEDO_TOKEN", "SPEEDO_SOLVER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def checks(result: Result) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(result.output)["checks"]:
        found.setdefault(one["name"], []).append(one)
    return found


def files(folder: Path) -> set[Path]:
    """All but LMDB's own lock files."""
    return {path for path in folder.rglob("*") if path.name != "lock.mdb"}


def levels(*findings: Finding) -> list[tuple[str, str]]:
    return [(one.name, one.level) for one in findings]


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
def test_a_good_node_is_ready_and_stays_as_it_was(home: Path) -> None:
    before = files(home)
    result = typed("../solver.prototxt", "--json")
    assert result.exit_code == 0, result.output
    found = checks(result)
    assert {"python", "ray", "redis", "pycaffe", "token", "solver", "data", "net"} <= set(found)
    assert {"cores", "temporary", "memory", "exchange", "disk"} <= set(found)
    assert found["data"][0]["text"].endswith("/train: 64 training records")
    assert found["net"][0]["text"].startswith("280 parameters in 4 blobs, 1.1 kB per exchange")
    assert files(home) == before


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
def test_data_that_a_run_would_prepare_is_not_prepared(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.study.doctor.solver.FASHION_MNIST_SOURCE", home)
    result = typed("--json")
    assert result.exit_code == 0, result.output
    assert "would be prepared on first use" in checks(result)["data"][0]["text"]
    assert not (home / "data-root").exists()
    monkeypatch.setattr("speedo.study.doctor.solver.FASHION_MNIST_SOURCE", home / "nowhere")
    result = typed("--json")
    assert result.exit_code == 1
    assert "apt-get install dataset-fashion-mnist" in checks(result)["data"][0]["remedy"]
    assert FASHION_MNIST_SOURCE.is_absolute()


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
def test_every_mistake_in_a_solver_is_told(home: Path) -> None:
    text = net_text(train="nowhere").replace('"Sigmoid"', '"Sigmiod"')
    write_solver(home, text)
    result = typed("../solver.prototxt")
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith("FAIL  solver")]
    assert len(lines) == 2
    assert "unknown type 'Sigmiod'" in lines[1] + lines[0]
    assert "2 to fix before a run" in result.output


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
def test_what_only_caffe_can_tell_is_told_in_its_words(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caffe aborts there, in a child; nothing of that child is left either."""
    write_solver(home, net_text().replace("kernel_size: 3", "kernel_size: 30"))
    (home / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(home / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(home / "tmp"))
    result = typed("../solver.prototxt", "--json")
    assert result.exit_code == 1
    assert "layer 'conv' cannot be built" in checks(result)["net"][0]["text"]
    assert not list((home / "tmp").iterdir())


@pytest.mark.processes
def test_a_pycaffe_that_ends_the_process_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.study.doctor.examination.pycaffe", pycaffe)
    (home / "broken" / "caffe").mkdir(parents=True)
    (home / "broken" / "caffe" / "__init__.py").write_text("import os\nos.abort()\n")
    path = os.pathsep.join([str(home / "broken"), str(Path(speedo.__file__).parents[1])])
    monkeypatch.setattr(
        "speedo.study.doctor.engines.with_our_path", lambda given: {**given, "PYTHONPATH": path}
    )
    found = examine(NodeRequest(home / "solver.prototxt"))
    (caffe,) = [one for one in found if one.name == "pycaffe"]
    assert caffe.level == "fail"
    assert "its import ends the process: killed by SIGABRT" in caffe.text
    assert "make setup" in caffe.remedy
    assert "solver" not in [one.name for one in found]  # not read without Caffe's definitions


def test_a_token_that_others_can_read_is_told_and_never_shown(home: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    file = home / "token"
    file.write_text(secret)
    file.chmod(0o644)
    found, loaded = token(NodeRequest())
    assert levels(*found) == [("token", "fail")]
    assert loaded is None
    assert f"chmod 600 {file}" in found[0].text
    file.chmod(0o600)
    found, loaded = token(NodeRequest())
    assert levels(*found) == [("token", "ok")]
    assert loaded == secret
    assert secret not in found[0].text


def test_without_a_token_only_a_node_of_workers_fails(home: Path) -> None:
    assert levels(*token(NodeRequest())[0]) == [("token", "ok")]
    assert levels(*token(NodeRequest(master="10.0.0.5:56126"))[0]) == [("token", "fail")]


def test_redis_is_needed_where_a_master_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    without = redis(NodeRequest(host="10.0.0.5"))
    assert (without.level, "apt-get install redis-server" in without.remedy) == ("fail", True)
    alone = redis(NodeRequest())  # shared memory is enough
    assert (alone.level, "`speedo train` goes without it" in alone.text) == ("warn", True)
    assert redis(NodeRequest(master="10.0.0.5:1")).level == "ok"
    assert redis(NodeRequest(redis="redis://10.0.0.7")).level == "ok"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "level", "remedy"),
    [
        ("5.0.14", "fail", "install Redis 6.0 or later"),
        ("6.2.7", "warn", "install Redis 7.0 or later, for a user per worker"),
        ("7.0.15", "ok", ""),
    ],
)
def test_a_server_without_users_per_worker_is_told_apart_from_one_that_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, level: str, remedy: str
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho Redis server v={version} sha=0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = redis(NodeRequest())
    assert (found.level, found.remedy) == (level, remedy)


RAISE = (
    "raise the limit: ulimit -n 1024, for which root must raise the hard limit of 512, "
    "as in /etc/security/limits.conf"
)
# A doctor under a limit of its own: soft, hard and workers are its arguments.
LIMITED = """
import os, resource, sys
from speedo.study.doctor.base import NodeRequest
from speedo.study.doctor.checks.limits import open_files
soft, hard, workers = map(int, sys.argv[1:4])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
os.geteuid() or os.setuid(65533)
for request in (NodeRequest(workers=workers), NodeRequest(workers=workers, master="10.0.0.5:56126")):
    found = open_files(request)
    print(found.level, found.text, found.remedy, sep="|")
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("limit", "workers", "lines"),
    [
        ((1024, 4096), 2, ["ok|1024 open files allowed|"] * 2),
        (
            (1024, 4096),
            100,
            ["warn|1024 open files allowed|raise the limit: ulimit -n 3200"] * 2,
        ),
        (
            (512, 512),
            2,
            [
                f"warn|512 open files allowed; the master's Redis would take 480 connections|{RAISE}",
                f"warn|512 open files allowed|{RAISE}",
            ],
        ),
    ],
)  # fmt: skip
def test_a_low_limit_of_open_files_is_told_with_what_redis_makes_of_it(
    limit: tuple[int, int], workers: int, lines: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, limit), str(workers)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == lines


@pytest.mark.redis
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as another user")
def test_redis_takes_as_many_connections_as_the_doctor_says() -> None:
    """The figure above, of a real server under the same limit; as root it would raise that by itself."""
    port = free_port()
    other = "exec setpriv --reuid=65533 --regid=65533 --clear-groups"
    server = subprocess.Popen(
        ["sh", "-c", f"ulimit -n 512; {other} redis-server --port {port} --bind 127.0.0.1 --save ''"],
        stdout=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    try:
        said = Patience(20.0).call(
            lambda: RedisStore(f"redis://127.0.0.1:{port}").administer("INFO", "clients")
        )
        assert isinstance(said, bytes)
        assert b"maxclients:480" in said.split()
    finally:
        server.kill()
        server.wait()


@pytest.mark.redis
def test_an_own_redis_with_too_little_room_for_the_workers_is_told() -> None:
    with PrivateRedis(max_clients=20) as server:
        few, many = (
            NodeRequest(redis=server.url, workers=2),
            NodeRequest(redis=server.url, workers=50),
        )
        assert levels(*own_redis(few)) == [("store", "ok")]
        warning, _ = own_redis(many)
        assert warning.level == "warn"
        assert "takes 20 clients at once" in warning.text
        assert "this run may want 158: set maxclients" in warning.text


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
def test_a_port_in_use_matters_to_a_master_alone(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        (found,) = free_ports(NodeRequest(port=int(port)))
    assert found.level == "warn"
    result = typed("../solver.prototxt", "--host", "192.0.2.1", "--json")
    assert result.exit_code == 1
    assert "give a --host that is an address of this machine" in checks(result)["ports"][0]["text"]


def test_a_temporary_folder_with_a_long_name_is_too_long_for_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("t" * 80)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert ("temporary", "fail") in levels(*temporary(NodeRequest()))


def test_the_cores_of_bound_workers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine((((0,), (2,)), ((1,), (3,))))
    monkeypatch.setattr("speedo.study.doctor.checks.cores.this_machine", lambda: machine)
    monkeypatch.setattr("speedo.study.doctor.checks.cores.quota_of", lambda: None)
    monkeypatch.setattr("speedo.study.doctor.checks.cores.socket.gethostname", lambda: "alpha")
    assert [*cores(NodeRequest(workers=2))] == [
        Finding("cores", "ok", "4 for 2 workers; alpha has 0-3, 2 sockets")
    ]
    (bound,) = cores(NodeRequest(workers=2, threads="auto", bind="core"))
    assert bound.text == (
        "4 for 2 workers with 2 threads each; alpha has 0-3, 2 sockets: worker 0 on 0,2, worker 1 on 1,3"
    )
    (many,) = cores(NodeRequest(workers=3, threads="2", bind="socket"))
    assert (many.level, many.remedy) == ("warn", "use --workers 2, or fewer --threads")


def test_more_workers_than_there_is_room_for_are_told() -> None:
    assert levels(*cores(NodeRequest(workers=100_000))) == [("cores", "warn")]
    (found,) = memory(NodeRequest(workers=100_000, net=TINY))
    assert (found.level, "fewer --workers" in found.remedy) == ("fail", True)
    (found,) = memory(NodeRequest(workers=1, net=TINY))
    assert found.level == "ok"


def test_a_run_directory_needs_room_for_the_model(tmp_path: Path) -> None:
    (found,) = disk(NodeRequest(run_dir=tmp_path / "a" / "b", net=TINY))
    assert (found.level, str(tmp_path) in found.text) == ("ok", True)
    (found,) = disk(NodeRequest(run_dir=tmp_path, net=BuiltNet(10**18, STEP, 3)))
    assert (found.level, "make room" in found.remedy) == ("fail", True)
    (tmp_path / "file").touch()
    (found,) = run_dir(NodeRequest(run_dir=tmp_path / "file" / "run", net=TINY))
    assert found.level == "fail"
    assert not list(disk(NodeRequest(master="10.0.0.5:1", net=TINY)))
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "arguments", [("--master", ":x"), ("--master", "host:99999"), ("--workers", "0")]
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...]) -> None:
    result = typed(*arguments)
    assert result.exit_code == 2
    assert result.output.startswith("speedo: ")
    assert len(result.output.splitlines()) == 1


def test_sizes_are_written_as_people_do() -> None:
    assert [size(n) for n in (500, 1_724_320, 53_500_000_000)] == ["0.5 kB", "1.7 MB", "53.5 GB"]


def test_a_model_too_big_for_shared_memory_is_told_to_take_redis() -> None:
    (found,) = exchange(NodeRequest(workers=2, net=BuiltNet(1 << 50, STEP, 0)))
    assert found.level == "warn"
    assert "go through Redis" in found.remedy
    (found,) = exchange(NodeRequest(workers=2, net=TINY))
    assert found.level == "ok"
    assert list(exchange(NodeRequest(master="10.0.0.5:56126", net=TINY))) == []
