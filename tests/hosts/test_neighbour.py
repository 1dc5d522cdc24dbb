"""What another user of the machine, and another host, get of runs that train there: nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands, commands, wait_for_line
from tests.support.left_behind import short_folder
from tests.support.network import ROOT, Host, network
from tests.support.sabotaged_net import slow_down, write_problem

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe, pytest.mark.slow]
# What would have Ray take everybody, were it heeded.
CARELESS = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": "/dev/null"}
NOBODY = "65533"
TOKEN = "fedcba9876543210" * 4
LONG = ("--mode", "async", "--workers", "1", "--max-iter", "1000000", "--test-interval", "0")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    made = short_folder("o-")
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def open_folder(folder: Path) -> Path:
    """As /tmp: everybody may write, and only owners may rename and remove."""
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def as_nobody(*places: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
            *(shutil.which("python3", path="/usr/bin") or sys.executable, "-m", "neighbour"),
            *map(str, places),
        ],
        cwd=places[0],
        env={"PYTHONPATH": str(places[0]), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_another_user_gets_nothing_of_a_run_a_master_and_a_worker_host_and_other_hosts_reach_no_run(
    place: Path,
) -> None:
    """All the time, while they start, train and end; and an open door, left on purpose, is found."""
    temporary, work, tools = open_folder(place / "t"), place / "work", place / "tools"
    work.mkdir()
    tools.mkdir()
    shutil.copy(ROOT / "tests" / "hosts" / "neighbour.py", tools)
    door = open_folder(temporary / "door")
    door.chmod(0o777)
    (door / "key").write_text("x")
    (door / "key").chmod(0o666)
    solver = write_problem(place / "problem")
    slow_down(solver, 1)
    problem = str(solver)
    (place / "problem").chmod(0o700)
    hidden = {"TMPDIR": str(temporary), "SPEEDO_RUNTIME_DIR": "", "SPEEDO_TOKEN": TOKEN}
    with (
        network(3) as (chief, member, alone),
        commands(work) as speedo,
        as_nobody(tools, temporary, work, Path("/dev/shm")) as neighbour,
    ):
        one = speedo.start(
            *("train", problem, *LONG, "--run-dir", "runs/one"),
            environment={**hidden, **CARELESS},
            inside=alone.inside,
        )
        two = speedo.start(
            *("master", problem, *LONG, "--host", chief.address, "--run-dir", "runs/two"),
            environment=hidden,
            inside=chief.inside,
        )
        three = speedo.start(
            *("worker", "--master", chief.address), environment=hidden, inside=member.inside
        )
        for run in ("one", "two"):
            wait_for_line(work / "runs" / run / "metrics.jsonl", '"version":3,', 90)
        listens_on_loopback_alone(alone, chief)
        assert neighbour.poll() is None
        seen_folders = sorted(folder.name.rsplit("-", 1)[0] for folder in temporary.iterdir())
        speedo_stops(speedo, work, hidden)
        for process in (one, two, three):
            _, errors = process.communicate(timeout=120)
            assert "Traceback" not in errors
        assert neighbour.poll() is None
        out, _ = neighbour.communicate(timeout=120)  # which closes its standard input
        for run in ("one", "two"):
            assert (work / "runs" / run / "model.caffemodel").exists()
    assert seen_folders.count("speedo-ray") == 3, seen_folders  # they did lie where was looked
    found = json.loads(out)
    doors = [(what, path) for what, path in found["taken"] if str(door) in path]
    assert {what for what, _ in doors} == {"list", "read", "overwrite", "replace", "link"}
    ours = (str(tools), str(door))
    assert [one for one in found["taken"] if not one[1].startswith(ours)] == []
    assert TOKEN not in "".join(found["seen"])


def listens_on_loopback_alone(host: Host, other: Host) -> None:
    # Three of Ray's head, Redis, command, master and worker; the tester's may be still to come.
    assert len(json.loads(host.python("tests.hosts.scan", "127.0.0.1"))) >= 7
    assert json.loads(other.python("tests.hosts.scan", host.address)) == []


def speedo_stops(speedo: Commands, work: Path, environment: dict[str, str]) -> None:
    for run in ("one", "two"):
        stop = speedo.start("stop", "--no-wait", str(work / "runs" / run), environment=environment)
        _, errors = stop.communicate(timeout=120)
        assert stop.returncode == 0, errors


def test_nothing_is_imported_from_a_working_directory_that_others_may_write_to(place: Path) -> None:
    """Modules named as ours, our libraries' and Python's, each of which tells if it is imported."""
    work = open_folder(place / "work")
    problem = str(write_problem(place / "problem", tested=False))
    trap = f"open({str(place / 'sprung')!r}, 'a').write(__name__ + '\\n')\n"
    libraries = ("caffe", "lmdb", "numpy", "psutil", "pydantic", "ray", "redis", "six", "yaml")
    for name in (*libraries, "speedo", "sitecustomize", "usercustomize", "json", "struct"):
        (work / f"{name}.py").write_text(trap)
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("speedo")), "train", problem),
            *("--workers", "1", "--max-iter", "3", "--run-dir", "../run"),
        ],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    sprung = place / "sprung"
    assert not sprung.exists(), sprung.read_text()
    assert done.returncode == 0, done.stderr
