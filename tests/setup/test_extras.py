"""Without what only a part of the commands needs all others work, and a sentence names what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from speedo.system import remedies

ROOT = Path(__file__).resolve().parents[2]
# What only pages, pictures, TensorBoard, Prometheus and URIs need.
SOMETIMES = ("jinja2", "starlette", "uvicorn", "matplotlib", "tensorboardX", "prometheus_client", "fsspec")  # fmt: skip
HIDES = f"""
import sys
sys.modules.update(dict.fromkeys({SOMETIMES}))
import speedo
from speedo.cli.main import main
main(sys.argv[1:])
"""


def speedo(*words: str) -> subprocess.CompletedProcess[str]:
    """The command where none of them is installed."""
    command = [sys.executable, "-c", HIDES, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.processes
@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("data", "--help")])
def test_a_command_that_needs_none_of_them_works(words: tuple[str, ...]) -> None:
    done = speedo(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


@pytest.mark.processes
def test_a_picture_without_matplotlib_names_the_extra(tmp_path: Path) -> None:
    done = speedo("report", "--png", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        "speedo: the report's picture (.png) needs the Python package matplotlib: "
        "pip install 'speedo[plot]'\n"
    )


def test_the_extra_has_what_the_sentence_says_and_the_rest_is_always_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", one)[0].lower() for one in project["dependencies"]}
    assert {"jinja2", "starlette", "uvicorn", "tensorboardx", "prometheus-client", "fsspec"} < names
    assert "matplotlib" not in names
    assert any(one.startswith("matplotlib") for one in project["optional-dependencies"]["plot"])


def test_a_remedy_names_make_only_where_there_is_a_makefile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remedies.in_checkout()
    assert remedies.install_pycaffe() == "run `make setup` on this node"
    monkeypatch.setattr(remedies, "CHECKOUT", tmp_path)
    assert not remedies.in_checkout()
    assert "make" not in remedies.install_pycaffe()
    for path in (ROOT / "speedo").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"\bmake (setup|wheels|develop|test)\b", text):
            assert "in_checkout()" in text, path
