"""The setup scripts say what is wrong, name no server, and lock what they install."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
LOCKS = sorted(ROOT.glob("requirements*.lock"))

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")


def call(function: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one line of shell with the functions of build_pycaffe.sh at hand."""
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; source scripts/build_pycaffe.sh; {function}"],
        cwd=ROOT,
        env={**os.environ, "SPEEDO_CACHE": str(tmp_path / "cache"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.processes
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_can_be_run(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert script.name == "lib.sh" or os.access(script, os.X_OK)


@pytest.mark.processes
def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=ROOT, check=True)


def test_no_script_names_a_server() -> None:
    files = [*SCRIPTS, ROOT / "Makefile", ROOT / "pyproject.toml", *LOCKS]
    files += [path for path in (ROOT / "scripts").rglob("*") if path.suffix in {".py", ".txt"}]
    for path in files:
        assert not re.search(r"://\w", path.read_text()), path


@pytest.mark.processes
def test_an_archive_with_the_wrong_sum_is_refused_with_both_sums(tmp_path: Path) -> None:
    archive = tmp_path / "caffe.orig.tar.gz"
    archive.write_bytes(b"not caffe")
    done = call('fetch_caffe_source "$SPEEDO_CACHE/a"', tmp_path, SPEEDO_CAFFE_SOURCE=str(archive))
    assert done.returncode != 0
    assert f"{archive} is not the source archive that is expected" in done.stderr
    assert "e0eb3f06794f7402" in done.stderr  # the sum of the real one
    assert not (tmp_path / "cache" / "a").exists()


@pytest.mark.processes
def test_a_source_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = call('fetch_caffe_source "$SPEEDO_CACHE/a"', tmp_path, SPEEDO_CAFFE_SOURCE="/no/such.gz")
    assert done.returncode != 0
    assert "SPEEDO_CAFFE_SOURCE is /no/such.gz: no such file" in done.stderr


@pytest.mark.processes
@needs_apt
def test_a_mirror_without_the_suite_gets_a_plain_way_out(tmp_path: Path) -> None:
    empty = tmp_path / "mirror"
    empty.mkdir()
    done = call(
        'fetch_caffe_source "$SPEEDO_CACHE/a"', tmp_path, SPEEDO_CAFFE_MIRROR=f"file:{empty}"
    )
    assert done.returncode != 0
    assert "has Caffe's source (suite bullseye" in done.stderr
    for way_out in ("SPEEDO_CAFFE_SOURCE=", "SPEEDO_CAFFE_MIRROR=", "SPEEDO_CAFFE_PYTHONPATH="):
        assert way_out in done.stderr


@pytest.mark.processes
def test_a_failing_step_names_itself_its_log_and_shows_its_last_lines(tmp_path: Path) -> None:
    script = f"SPEEDO_LOGS={tmp_path}; broken() {{ echo the reason; false; echo never; }}"
    done = call(f"{script}; step 'some step' broken; echo unreached", tmp_path)
    assert done.returncode == 1
    assert "the step 'some step' failed (exit 1)" in done.stderr
    assert f"{tmp_path}/some-step.log" in done.stderr
    assert "the reason" in done.stderr
    assert "never" not in done.stderr
    assert "unreached" not in done.stdout


@pytest.mark.processes
def test_an_unusable_interpreter_is_named() -> None:
    done = subprocess.run(
        ["scripts/setup.sh"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": "/no/such/python"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "PYTHON is /no/such/python" in done.stderr


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_an_exact_version_and_hashes(lock: Path) -> None:
    entries = re.split(r"\n(?=[A-Za-z0-9])", lock.read_text())
    pinned = [entry for entry in entries if not entry.startswith("#")]
    assert pinned
    for entry in pinned:
        assert re.match(r"[A-Za-z0-9_.\[\]-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_no_lock_brings_torch_or_jax() -> None:
    for lock in LOCKS:
        assert not re.search(r"^(torch|jax|tensorflow)\b", lock.read_text(), re.MULTILINE), lock


def test_setup_brings_a_torch_that_the_extra_takes_and_ci_asks_for_it() -> None:
    script = (ROOT / "scripts" / "setup.sh").read_text()
    (version,) = re.findall(r"^torch_version=([0-9.]+) ", script, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extra,) = project["optional-dependencies"]["torch"]
    least, most = re.fullmatch(r"torch>=([0-9.]+),<([0-9.]+)", extra).groups()  # type: ignore[union-attr]
    numbers = [tuple(map(int, one.split("."))) for one in (least, version, most)]
    assert numbers[0] <= numbers[1] < numbers[2]
    assert not any("torch" in one for one in project["dependencies"])
    assert "TORCH=1" in (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^export .*\bTORCH\b", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.processes
def test_setup_keeps_a_torch_that_is_there_and_leaves_out_one_that_is_not_wanted(
    tmp_path: Path,
) -> None:
    """The step of scripts/setup.sh, with a `.venv` that has some torch, or none."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    script = (ROOT / "scripts" / "setup.sh").read_text()
    functions = script[script.index("# --- PyTorch") : script.index("# --- the libraries")]
    marks = script[script.index("# fresh NAME KEY") : script.index("have_venv()")]

    def step(version: str, wanted: str) -> str:
        python.write_text(
            f"#!/bin/sh\ncase $2 in *metadata*) [ -n '{version}' ] && echo {version} ;; *) echo works ;; esac\n"
        )
        python.chmod(0o755)
        program = (
            f"set -euo pipefail; source scripts/lib.sh; SPEEDO_LOGS={tmp_path}; venv_python={python}; "
            f"stamps={tmp_path}/stamps; torch_version=2.13\n{marks}\n{functions}\ninstall_torch"
        )
        done = subprocess.run(
            ["bash", "-c", program], cwd=ROOT, env={**os.environ, "TORCH": wanted},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return " ".join(done.stderr.split())

    assert step("", "") == "skip PyTorch not wanted; for --engine torch: TORCH=1 make setup"
    assert "done PyTorch" in step("2.9.1", "")  # tried once
    assert step("2.9.1", "1") == "ok PyTorch 2.9.1"


def test_the_locks_agree() -> None:
    def versions(name: str) -> set[str]:
        return set(
            re.findall(r"^[A-Za-z0-9_.-]+==[^\s;]+", (ROOT / name).read_text(), re.MULTILINE)
        )

    developers = versions("requirements-dev.lock")
    for less in ("requirements.lock", "requirements-build.lock"):
        assert versions(less) <= developers
    names = {one.partition("==")[0] for one in developers}
    libraries = versions("requirements-integrations.lock")
    assert {one for one in libraries if one.partition("==")[0] in names} <= developers


def test_setup_brings_no_tool_of_the_tests_and_each_target_what_it_needs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    needs = dict(re.findall(r"^([a-z]+): ([a-z]+) ##", makefile, re.MULTILINE))
    assert {name for name, needed in needs.items() if needed == "setup"} == {"demo", "wheels"}
    assert {name for name, needed in needs.items() if needed == "develop"} == {
        "test", "check", "format", "bench", "faults"
    }  # fmt: skip
    lists = ROOT / "scripts" / "packages"
    users, developers = (lists / f"{name}.txt" for name in ("tools", "develop"))
    assert re.findall(r"^[a-z].*", users.read_text(), re.MULTILINE) == [
        "dataset-fashion-mnist", "openssh-client", "redis-server"
    ]  # fmt: skip
    assert {"chromium", "openssh-server", "shellcheck"} <= set(developers.read_text().split())
    for lock in ("requirements.lock", "requirements-build.lock"):
        text = (ROOT / lock).read_text()
        assert not re.search(r"^(pytest|ruff|mypy|selenium|moto|tensorboard)==", text, re.MULTILINE)


@pytest.mark.processes
def test_an_edit_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "src" / "caffe" / "util"
    source.mkdir(parents=True)
    (source / "io.cpp").write_text("another version")
    edits = ROOT / "scripts" / "pycaffe" / "edits.py"
    done = subprocess.run([sys.executable, edits, tmp_path], capture_output=True, text=True)
    assert done.returncode != 0
    assert "expected 'SetTotalBytesLimit" in done.stderr
    assert (source / "io.cpp").read_text() == "another version"


@pytest.mark.processes
def test_the_wheel_is_the_same_twice_and_pip_can_read_it(tmp_path: Path) -> None:
    source, build = tmp_path / "source", tmp_path / "build"
    for path in ("python/caffe/__init__.py", "python/caffe/test/test_net.py", "LICENSE"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(path)
    for path in (source / "src/caffe/proto/caffe.proto", build / "_caffe.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    pb2 = build / "generated/caffe/proto/caffe_pb2.py"
    pb2.parent.mkdir(parents=True)
    pb2.write_text("")
    wheels = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        make = [sys.executable, ROOT / "scripts/pycaffe/make_wheel.py", source, build]
        done = subprocess.run(
            [*make, tmp_path / name, "1.0.0+git1"], check=True, capture_output=True, text=True
        )
        wheels.append(Path(done.stdout.strip()))
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--target", target, wheels[0]], check=True)
    assert (target / "caffe" / "_caffe.so").exists()
    assert not (target / "caffe" / "test").exists()
    with zipfile.ZipFile(wheels[0]) as archive:
        assert archive.testzip() is None
