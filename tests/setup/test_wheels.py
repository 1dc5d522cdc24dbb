"""`make wheels` gives a host without a checkout all that it needs, and a missing library is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_LISTS = {
    release: ROOT / "scripts" / "packages" / f"pycaffe-run-debian-{release}.txt"
    for release in ("12", "13")
}


def run(
    *command: str | Path, folder: Path, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that finds no checkout, neither on its path nor in its working directory."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = path
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def shell(words: str) -> str:
    source = f"set -euo pipefail; source scripts/build_pycaffe.sh; {words}"
    return subprocess.run(
        ["bash", "-c", source], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def names(packages: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in packages.read_text().splitlines())
    return [line for line in lines if line]


@pytest.mark.processes
def test_each_release_has_a_python_and_a_list_of_libraries() -> None:
    assert shell("debian_python 12") == "3.11"
    assert shell("debian_python 13") == "3.13"
    assert shell("debian_python 11") == ""
    twelve, thirteen = (names(path) for path in RUN_LISTS.values())
    assert len(twelve) == len(thirteen) == 14
    assert "libboost-python1.74.0" in twelve
    assert "libboost-python1.83.0" in thirteen


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(900)  # pip fetches all that is locked
@pytest.mark.caffe
def test_a_host_with_the_wheels_alone_is_ready(tmp_path: Path) -> None:
    cache = shell('echo "$SPEEDO_CACHE/pycaffe/$(pycaffe_key .venv/bin/python)"')
    if not list(Path(cache).glob("*.whl")):
        pytest.skip("setup took another pycaffe, so its cache has no wheel")
    dist, venv, host = tmp_path / "dist", tmp_path / "venv", tmp_path / "host"
    host.mkdir()
    made = run(ROOT / "scripts" / "wheels.sh", dist, folder=ROOT)
    assert made.returncode == 0, made.stderr
    assert "pip install --requirement dist/requirements.txt" in made.stdout
    (pycaffe,) = dist.glob("pycaffe-*.whl")
    with zipfile.ZipFile(pycaffe) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        needed = re.findall(
            r"^Requires-External: (\S+)$", wheel.read(metadata).decode(), re.MULTILINE
        )
    assert set(needed) <= set(names(dist / "packages.txt"))
    release = shell("debian_release")
    if release in RUN_LISTS:
        assert needed == names(RUN_LISTS[release])

    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    pip = (
        venv / "bin" / "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-compile",
    )
    installed = run(*pip, "--requirement", dist / "requirements.txt", folder=host)
    assert installed.returncode == 0, installed.stderr[-3000:]
    where = "import speedo, caffe; print(speedo.__file__); print(caffe.__file__)"
    imported = run(venv / "bin" / "python", "-c", where, folder=host)
    assert imported.returncode == 0, imported.stderr[-2000:]
    assert all(line.startswith(str(venv)) for line in imported.stdout.splitlines())
    speedo = venv / "bin" / "speedo"
    assert re.search(r"\d+\.\d+\.\d+", run(speedo, "--version", folder=host).stdout)
    doctor = run(speedo, "doctor", "--json", folder=host)
    found = {one["name"]: one for one in json.loads(doctor.stdout)["checks"]}
    assert found["pycaffe"]["level"] == "ok", doctor.stdout
    # The bundled solver came with the wheel.
    assert found["solver"]["text"].startswith(str(venv)), doctor.stdout
    trained = run(
        speedo, "train", "--workers", "1", "--max-iter", "20", "--test-interval", "0", folder=host
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert Path(trained.stdout.splitlines()[-1]).is_relative_to(host / "runs")
    for example in ("logistic.py", "fashion_mnist.py"):
        shutil.copy(ROOT / "examples" / example, host)
    words = ("--workers", "2", "--mode", "easgd", "--local-steps", "10", "logistic.py")
    scripts = run(speedo, "run", *words, folder=host)
    assert scripts.returncode == 0, scripts.stderr[-2000:]
    assert re.search(r"^accuracy 0\.[78]\d+$", scripts.stderr, re.MULTILINE), scripts.stderr
    assert Path(scripts.stdout.splitlines()[-1]).name == "model.npz"


@pytest.mark.caffe
@pytest.mark.parametrize("from_our_wheel", [True, False])
def test_a_missing_library_is_named_with_the_packages_to_install(
    tmp_path: Path, from_our_wheel: bool
) -> None:
    found = find_spec("caffe")
    assert found is not None
    assert found.origin is not None
    shutil.copytree(Path(found.origin).parent, tmp_path / "caffe")
    extension = tmp_path / "caffe" / "_caffe.so"
    native = extension.read_bytes()
    if b"libgflags.so.2.2" not in native:
        pytest.skip("this pycaffe is another build, which needs no libgflags.so.2.2")
    extension.write_bytes(native.replace(b"libgflags.so.2.2", b"libgflags.so.9.9"))
    information = tmp_path / "pycaffe-1.0.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: pycaffe\nVersion: 1.0.0\n"
        + "Requires-External: libgflags2.2\nRequires-External: liblmdb0\n" * from_our_wheel
    )
    # An environment whose own pycaffe it is: one on PYTHONPATH would come after that of this environment.
    venv.create(tmp_path / "own", symlinks=True)
    (packages,) = (tmp_path / "own" / "lib").glob("python3*/site-packages")
    folders = [tmp_path, ROOT, ROOT / "packages" / "caffe-nets"]
    folders += [*(path for path in sys.path if path.endswith("-packages"))]
    (packages / "own.pth").write_text("".join(f"{folder}\n" for folder in folders))
    check = "from speedo.study.doctor.engines import pycaffe; found = pycaffe(); print(found.level, found.text)"
    doctor = run(tmp_path / "own" / "bin" / "python", "-P", "-c", check, folder=tmp_path)
    assert doctor.returncode == 0, doctor.stderr
    level, text = doctor.stdout.split(" ", 1)
    assert level == "fail"
    assert "libgflags.so.9.9: cannot open shared object file" in text
    if from_our_wheel:
        assert "apt-get install --no-install-recommends libgflags2.2 liblmdb0" in text
    else:
        assert "install the library that it was built for" in text
