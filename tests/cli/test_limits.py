"""Numbers at the limits of what takes them, names that Caffe cannot have, and what nobody foresaw."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedo.actors import launch as launcher
from speedo.cli.main import main
from speedo.engines.solver import read_solver
from speedo.errors import ConfigError, SolverError
from speedo.run.config.formats import read_options
from speedo.run.config.run_config import make_config
from tests.support.nets import net_text, write_data, write_solver


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": 2**32}, "seed is 4294967296: use at most 4294967295, as Caffe's generator takes 32 bits"),
        ({"seed": 2**63}, "seed is 9223372036854775808: use at most 4294967295, as Caffe's generator takes 32 bits"),
        ({"max_iter": 2**31}, "max_iter is 2147483648: use at most 2147483647"),
        ({"test_interval": 2**31}, "test_interval is 2147483648: use at most 2147483647"),
        ({"batch": 2**31}, "batch is 2147483648: use at most 2147483647"),
        ({"lr": 1e39}, "lr is 1e+39: use a number that a float32 holds, 1.5e-45 to 3.4e+38"),
        ({"lr": 1e-60}, "lr is 1e-60: use a number that a float32 holds, 1.5e-45 to 3.4e+38"),
        ({"lr": -0.0}, "lr is -0.0: use a learning rate above 0"),
        ({"weight_decay": 1e308}, "weight_decay is 1e+308: use a number that a float32 holds, 1.5e-45 to 3.4e+38"),
        ({"momentum": 0.99999999999}, "momentum is 0.99999999999: use 0 up to, not including, 1"),
        ({"timeout": 1e308}, "timeout is 1e+308: use at most 1000000 seconds"),
        ({"join_timeout": float("nan")}, "join_timeout is nan: use a number of seconds above 0"),
        ({"checkpoint_interval": 1e308}, "checkpoint_interval is 1e+308: use at most 1000000 seconds"),
        ({"reshard_after": 1e308}, "reshard_after is 1e+308: use at most 1000000 seconds"),
        ({"restarts": 10**30}, f"restarts is {10**30}: use at most 1000000"),
        ({"local_steps": 10**5000}, "local_steps is a number of some 5000 digits: use at most 1000000"),
        ({"workers": True}, "workers is True; use a whole number"),
        ({"lr": True}, "lr is True; use a number"),
        (
            {"mode": "hybrid", "phases": [{"mode": "sync", "iterations": 2**31}]},
            "phase 1 (sync): it has 2147483648 iterations; use at most 2147483647",
        ),
        (
            {"mode": "hybrid", "phases": [{"mode": "partial", "iterations": 1, "max_advance": 2**31}]},
            "phase 1 (partial): max_advance is 2147483648: use at most 2147483647",
        ),
    ],
)  # fmt: skip
def test_a_number_beyond_its_field_is_told_with_value_and_bound(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(options)
    assert str(caught.value) == told


@pytest.mark.caffe
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"random_seed": 2**32}, "random_seed is 4294967296, but Caffe's generator takes 32 bits: use at most 429496"),
        ({"max_iter": 2**31}, "max_iter is 2147483648, but max_iter holds -2147483648 to 2147483647: use one of"),
        ({"weight_decay": "nan"}, "weight_decay is nan, which a float32 does not hold"),
        ({"clip_gradients": "1e60"}, "clip_gradients is inf, which a float32 does not hold"),
        (
            {"lr_policy": '"exp"', "gamma": 10, "max_iter": 500},
            "the learning rate at iteration 499 is inf: correct base_lr or what lr_policy 'exp' makes of it",
        ),
        (
            {"lr_policy": '"inv"', "gamma": 1, "power": -1e30, "max_iter": 500},
            "the learning rate at iteration 499 is inf",
        ),
    ],
)  # fmt: skip
def test_a_field_of_the_solver_that_caffe_cannot_compute_with_is_told(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    write_data(tmp_path)
    solver = write_solver(tmp_path, net_text(), **fields)
    with pytest.raises(SolverError, match=r"solver\.prototxt") as caught:
        read_solver(solver)
    assert told in str(caught.value)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "line 2 cannot be used: *name refers to another value here: write the value itself"),
        ("[" * 5000 + "]" * 5000, "line 1 cannot be used: it has more than 12 levels"),
        ("{a: " * 3000 + "1" + "}" * 3000, "line 1 cannot be used: it has more than 12 levels"),
        ("workers: 2\n" * 10_000, "cannot be read (it has more than 100,000 bytes)"),
        ("workers: 2\nlr: 1\nworkers: 3\n", "line 3 cannot be used: 'workers' appears twice: keep one"),
        ("max-iter: 2\nmax_iter: 3\n", "has max_iter twice; keep one"),
        ("seed: " + "9" * 5000, "is not YAML: Exceeds the limit"),
        ("seed: 2001-99-99", "is not YAML: month must be in 1..12"),
    ],
)  # fmt: skip
def test_a_configuration_with_more_than_options_need_is_refused(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_options(file)
    assert told in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"cannot be read \(it is no regular file\)"):
        read_options(tmp_path / "pipe")


# ---------------------------------------------------------------- names


def typed(*words: str | bytes, folder: Path | bytes, **environment: str) -> tuple[int, str]:
    """Status and standard error of a command in this working directory."""
    ended = subprocess.run(
        [sys.executable, "-m", "speedo", *words],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    errors = ended.stderr.decode("utf-8", "backslashreplace")
    assert "Traceback" not in errors
    return ended.returncode, errors


@pytest.mark.caffe
def test_a_working_directory_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    foreign = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(foreign)
    write_data(tmp_path)
    solver = write_solver(tmp_path, net_text())
    status, errors = typed("train", str(solver), folder=foreign)
    assert (status, errors.count("\n")) == (2, 1)
    assert "the working directory" in errors
    assert "is not in UTF-8, and Caffe takes no other names: rename it, or give another" in errors


@pytest.mark.caffe
@pytest.mark.parametrize("option", ["", "--run-dir", "--weights", "--data-root", "--resume"])
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path, option: str) -> None:
    foreign = os.fsencode(tmp_path) + b"/\xff"
    words = (option, foreign) if option else (foreign,)
    status, errors = typed("train", *words, folder=tmp_path)
    assert status == 2
    assert "is not in UTF-8, and Caffe takes no other names" in errors
    assert os.listdir(tmp_path) == []


@pytest.mark.processes
def test_a_shell_without_utf8_is_told_what_to_set(tmp_path: Path) -> None:
    status, errors = typed(
        "train", "--run-dir", str(tmp_path / "é"), folder=tmp_path,
        LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    assert status == 2
    assert "set LC_ALL=C.UTF-8 and leave PYTHONUTF8 and PYTHONCOERCECLOCALE unset" in errors


@pytest.mark.processes
@pytest.mark.parametrize("words", ["train", "worker --master 127.0.0.1", "data mnist out", "plan"])
def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, words: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'cd "{gone}" && rmdir "{gone}" && exec "{sys.executable}" -m speedo {words}'
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.endswith(
        "the working directory is gone (No such file or directory): change to one that is there\n"
    )
    assert ended.stderr.count("speedo: ") == 1


# ---------------------------------------------------------------- what nobody foresaw


def broken(*_: Any) -> None:
    raise LookupError("a bug\nof ours")


@pytest.mark.parametrize("debug", [False, True])
def test_a_bug_is_one_sentence_and_a_file_that_only_its_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    monkeypatch.setattr(launcher, "train", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if debug:
        monkeypatch.setenv("SPEEDO_DEBUG", "1")
    ended = CliRunner().invoke(main, ["train"])
    (file,) = tmp_path.iterdir()
    assert ended.exit_code == 70
    assert f"LookupError: of ours; {file} has the traceback" in ended.stderr
    assert ("Traceback" in ended.stderr) == debug
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "in broken" in file.read_text()


def test_a_bug_in_a_run_leaves_its_traceback_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, watch: Any) -> None:
        watch.begin(tmp_path)
        raise LookupError("a bug")

    monkeypatch.setattr(launcher, "train", fail)
    ended = CliRunner().invoke(main, ["train"])
    assert ended.exit_code == 70
    assert len(list(tmp_path.glob("speedo-traceback-*.txt"))) == 1


# ---------------------------------------------------------------- a whole run

# The test net alone has an output that no float32 holds.
BEYOND = """
layer { name: "big" type: "Power" bottom: "ip" top: "big" include { phase: TEST }
  power_param { scale: 1e38 shift: 1e38 } }
layer { name: "bigger" type: "Power" bottom: "big" top: "bigger" include { phase: TEST }
  power_param { scale: 1e38 } }
"""
OF_RAY = {
    "RAY_RUNTIME_ENV_HOOK": "nowhere.hook",
    "RAY_USE_TLS": "1",
    "RAY_ADDRESS": "192.0.2.1:6379",
    "RAY_raylet_start_wait_time_s": "0",
}


@pytest.mark.caffe
@pytest.mark.redis
@pytest.mark.ray
def test_a_run_whose_last_test_failed_ends_with_3_and_no_setting_of_ray_reaches_it(
    tmp_path: Path,
) -> None:
    write_data(tmp_path)
    solver = write_solver(tmp_path, net_text() + BEYOND, max_iter=8)
    run = tmp_path / "run"
    status, errors = typed(
        "train", str(solver), "--workers", "1", "--seed", str(2**32 - 1), "--run-dir", str(run),
        folder=tmp_path, **OF_RAY,
    )  # fmt: skip
    assert status == 3, errors
    result = json.loads((run / "result.json").read_text())
    assert (result["complete"], result["iteration"]) == (False, 8)
    assert result["reason"] == result["test_problem"]
    assert "the test output bigger/0 is inf" in result["reason"]
    assert f"speedo: the last test failed: {result['reason']}; the model is trained" in errors
    assert (run / "model.caffemodel").is_file()
    assert (
        f"ignored in the environment, because a run configures Ray itself: {', '.join(sorted(OF_RAY))}"
        in errors
    )
