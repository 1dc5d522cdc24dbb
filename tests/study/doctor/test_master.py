"""`speedo doctor --master` on nodes that fit a running master, and on nodes that do not."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands, free_port
from tests.support.nets import LENET, net_text, records, write_data, write_lmdb, write_solver

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 120
LATE = "import time\nnow = time.time\ntime.time = lambda: now() - 3600\n"


def write_home(folder: Path) -> None:
    """Solvers that find their data only under a data root, and roots with all, fewer and no records."""
    net = net_text(train="tiny/train", test="tiny/test")
    for name, text in (
        ("solver", net),
        ("other", net_text(LENET, train="tiny/train", test="tiny/test")),
    ):
        (folder / name).mkdir()
        write_solver(folder / name, text)
    for name in ("whole", "fewer"):
        (folder / name / "tiny").mkdir(parents=True)
    (folder / "none").mkdir()
    write_data(folder / "whole" / "tiny")
    write_lmdb(folder / "fewer" / "tiny" / "train", *records(60, 1))
    write_lmdb(folder / "fewer" / "tiny" / "test", *records(40, 2))
    (folder / "late").mkdir()
    (folder / "late" / "sitecustomize.py").write_text(LATE)


def test_nodes_are_compared_with_their_master(speedo: Commands, tmp_path: Path) -> None:
    write_home(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    chief = speedo.start(
        "master", "solver/solver.prototxt", "--port", address.rpartition(":")[2], "--mode", "easgd",
        "--data-root", "whole", "--run-dir", "run", "--timeout", "300",
    )  # fmt: skip
    log, deadline = tmp_path / "run" / "train.log", time.monotonic() + 120
    while not (log.exists() and "speedo worker --master" in log.read_text()):
        assert chief.poll() is None, chief.communicate()
        assert time.monotonic() < deadline, "the master does not wait for workers"
        time.sleep(0.1)

    path = os.pathsep.join(filter(None, [str(tmp_path / "late"), os.environ.get("PYTHONPATH")]))
    nodes = {
        "good": (["--data-root", "whole"], {}),
        "none": (["--data-root", "none"], {"PYTHONPATH": path}),  # and its clock is late
        "other": (["other/solver.prototxt", "--data-root", "fewer"], {}),
        "wrong": (["--data-root", "whole"], {"SPEEDO_TOKEN": "0123456789abcdef" * 4}),
    }
    asked = {
        name: speedo.start("doctor", "--master", address, "--json", *arguments, environment=more)
        for name, (arguments, more) in nodes.items()
    }
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, process in asked.items():
        out, errors = process.communicate(timeout=WAIT_S)
        assert "Traceback" not in errors
        found[name] = {one["name"]: one for one in json.loads(out)["checks"]}
        failed = [one["name"] for one in found[name].values() if one["level"] == "fail"]
        assert (process.returncode == 1) == bool(failed), failed

    good = found["good"]
    assert {one["level"] for name, one in good.items() if name != "cores"} == {"ok"}, good
    assert "64 training records, as the master has" in good["data"]["text"]
    assert "laid out as the master's" in good["net"]["text"]
    assert "run" in good["master"]["text"]
    assert "/tiny/test): correct it or give --data-root" in found["none"]["solver"]["text"]
    assert "60 training records, but the master has 64" in found["other"]["data"]["text"]
    assert "another net than the master's" in found["other"]["net"]["text"]
    assert "refused our token" in found["wrong"]["master"]["text"]
    assert found["none"]["clock"]["level"] == "warn"
    assert re.match(r"3(599|600)\.\d s behind the master's", found["none"]["clock"]["text"])

    status = speedo.start("status", "--json")
    out, errors = status.communicate(timeout=WAIT_S)
    assert status.returncode == 0, errors
    (run,) = json.loads(out)["runs"]
    assert (run["address"], run["mode"], run["expected_workers"]) == (address, "easgd", 2)
    stop = speedo.start("stop")
    out, errors = stop.communicate(timeout=WAIT_S)
    assert stop.returncode == 0, errors
    assert "the run has ended without a result" in out
    _, errors = chief.communicate(timeout=120)
    assert chief.returncode == 3
    assert "nothing was trained: stopped by `speedo stop`" in errors


def test_without_a_master_there_the_doctor_says_so(speedo: Commands, tmp_path: Path) -> None:
    speedo.token_file.write_text("0123456789abcdef0123456789abcdef\n")
    speedo.token_file.chmod(0o600)
    process = speedo.start("doctor", "--master", f"127.0.0.1:{free_port()}")
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1, errors
    (line,) = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert "no master answered at 127.0.0.1:" in line
