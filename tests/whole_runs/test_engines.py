"""Runs with PyTorch as a user starts them: trained, scored, resumed by the other engine, without pycaffe and Redis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from speedo.engines.solver import SolverOverrides
from speedo.storage.memory_store import MemoryStore
from tests.support.commands import Commands
from tests.support.nets import relative_difference
from tests.whole_runs.local import train_here
from tests.whole_runs.test_resume import smooth_solver, weights

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
# As `sitecustomize` of a folder on PYTHONPATH every Python imports it at its start.
TRAPPED = """
import sys
from pathlib import Path

class Trap:
    @staticmethod
    def find_spec(name, *_):
        if name == "caffe":
            Path(__file__).with_name("imported").touch()
            raise ImportError("a process with PyTorch imports pycaffe")

sys.meta_path.insert(0, Trap)
"""


def said(
    speedo: Commands, *words: str, status: int = 0, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """What a command prints on both streams."""
    process = speedo.start(*words, environment=environment)
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, errors
    return out, errors


def without_redis(folder: Path) -> dict[str, str]:
    """A PATH with all programs but redis-server."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if os.path.isdir(place) else ():
            if program.name != "redis-server" and not os.path.lexists(folder / program.name):
                (folder / program.name).symlink_to(program)
    assert shutil.which("sh", path=str(folder))
    return {"PATH": str(folder)}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "precision"),
    [pytest.param("sync", "float32", marks=pytest.mark.matrix), ("async", "bfloat16")],
)
def test_lenet_trains_with_pytorch_and_pycaffe_scores_it_alike(
    mode: str, precision: str, speedo: Commands, tmp_path: Path
) -> None:
    """No process of the run imports pycaffe. Tests are in float32 whatever the workers compute with."""
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "sitecustomize.py").write_text(TRAPPED)
    path = os.pathsep.join([str(trap), *filter(None, [os.environ.get("PYTHONPATH")])])
    _, errors = said(
        speedo, "train", "--engine", "torch", "--mode", mode, "--workers", "2", "--max-iter", "40",
        "--engine", f"precision={precision}", "--test-interval", "0", "--seed", "5", "--run-dir", "run",
        environment={"PYTHONPATH": path},
    )  # fmt: skip
    assert not (trap / "imported").exists()
    run = tmp_path / "run"
    assert f"engine torch, device auto, {precision}" in errors
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["engine"], config["device"]) == ("torch", "auto")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    joined = [one for one in lines if one["event"] == "joined"]
    assert {one["worker"] for one in joined} == {0, 1}
    assert all(one["device"].split(":")[0] in ("cpu", "cuda") for one in joined)
    result = json.loads((run / "result.json").read_text())
    assert (result["iteration"], result["complete"]) == (40, True)
    assert result["accuracy"] > 0.3  # ten classes
    scored = json.loads(said(speedo, "test", "--weights", "run", "--engine", "caffe", "--json")[0])
    assert scored["metrics"]["accuracy"] == pytest.approx(result["accuracy"], abs=1e-4)
    assert scored["metrics"]["loss"] == pytest.approx(result["metrics"]["loss"], abs=1e-4)


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_goes_on_with_the_other_engine_as_if_nothing_had_happened(
    speedo: Commands, tmp_path: Path
) -> None:
    """Momentum and place in the data too: a smooth net stays where pycaffe alone would be."""
    solver = smooth_solver(tmp_path, max_iter=40, base_lr=0.05)

    def train(engine: str, until: int, *place: str) -> Path:
        said(
            speedo, "train", *place, "--engine", engine, "--max-iter", str(until), "--workers", "1",
            "--seed", "3", "--checkpoint-interval", "0",
        )  # fmt: skip
        return tmp_path / place[-1] / "model.caffemodel"

    # Without Ray, which changes no bit (test_sync_equals_caffe.py).
    overrides = SolverOverrides(max_iter=40, seed=3)
    _, start, alone = train_here(
        solver, MemoryStore(), tmp_path / "alone", workers=1, overrides=overrides
    )
    train("caffe", 15, str(solver), "--run-dir", "mixed")
    train("torch", 30, "--resume", "mixed")
    mixed = weights(train("caffe", 40, "--resume", "mixed"), solver)
    assert relative_difference(mixed, alone, start) < 1e-3


def test_a_run_of_one_machine_goes_without_redis_server(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    """Checkpoints, tests and a resume included; a master for other machines says what it lacks."""
    environment = without_redis(tmp_path / "bin")
    words = ("--max-iter", "100", "--checkpoint-interval", "0.5", "--mode", "async")
    _, errors = said(
        speedo, "train", str(tested_problem), *words, "--run-dir", "run", environment=environment
    )
    told = "redis-server is not installed: vectors go through shared memory alone"
    assert told in errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["iteration"], result["complete"], result["test_problem"]) == (100, True, "")
    assert set(result["dropped"]) <= {"late"}
    _, errors = said(
        speedo, "train", "--resume", "run", "--max-iter", "120", environment=environment
    )
    assert told in errors
    assert "solver history of 2 of 2 workers" in errors
    _, errors = said(
        speedo, "train", str(tested_problem), "--servers", "1", "--run-dir", "other",
        status=1, environment=environment,
    )  # fmt: skip
    assert "redis-server is not installed" in errors.splitlines()[-1]


@pytest.mark.torch
def test_a_worker_with_a_device_that_is_not_there_says_so(speedo: Commands) -> None:
    _, errors = said(
        speedo, "train", "--engine", "torch", "--device", "cuda:99", "--max-iter", "5", "--workers", "1",
        "--run-dir", "run", status=1,
    )  # fmt: skip
    assert errors.splitlines()[-1].startswith("speedo: the device is cuda:99, but PyTorch sees ")


HIDES = """
import importlib.util, sys
hidden, real = sys.argv.pop(1).split(","), importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in hidden else real(name, *more)
from speedo.cli.main import main
main()
"""


def test_an_engine_that_is_not_installed_is_named_with_what_to_do(tmp_path: Path) -> None:
    """With the packages of this machine but these two."""

    def without(hidden: str, *words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "SPEEDO_ENGINE"}
        done = subprocess.run(
            [sys.executable, "-c", HIDES, hidden, "train", "--max-iter", "1", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        return done.stderr.splitlines()[-1]

    neither = without("caffe,torch")
    assert neither.startswith("speedo: neither pycaffe nor PyTorch is installed here: ")
    assert "`make setup`" in neither
    assert "pip install 'speedo[torch]'" in neither
    assert without("torch", "--engine", "torch").endswith(
        "PyTorch: pip install 'speedo[torch]', or train with --engine caffe"
    )
