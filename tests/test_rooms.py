"""The rooms of the package: who may import whom (import-linter holds pyproject.toml's contracts), and their sizes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "speedo"
NETS = ROOT / "packages" / "caffe-nets"
LINTER = Path(sys.executable).with_name("lint-imports")
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CONTRACTS = TOOLS["importlinter"]["contracts"]
LINES = TOOLS["speedo"]["lines"]  # the bound of each room
SLACK = 100  # lines that a room may be below its bound, before the bound has to follow
GENERATED = "caffenets/caffe_schema/caffe_pb2.py"

# A line in a module of ours, and the contract that it breaks.
VIOLATIONS = {
    "exchange/vector.py": "import speedo.engines.base",
    "run/config/option_table.py": "import speedo.run.script.joined_run",
    "storage/keys.py": "import speedo.storage.base",  # which imports it
    "run/result.py": "import ray",
    "storage/memory_store.py": "import redis",
    "data/split.py": "import caffe",
    "engines/make.py": "import torch",  # its folder pytorch/ has all that does
    "integrations/skorch.py": "import lightning",
    "study/planning/site.py": "import click",
    "exchange/channel.py": "import pickle",
    "sgd_modes/base.py": "import caffenets.declared",
    "packages/caffe-nets/caffenets/weights.py": "import speedo.errors",
    "master/divergence.py": "import time",
}


def sources() -> dict[str, str]:
    """By name: the files of speedo, and those of the package beside it."""
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for folder, below in ((PACKAGE, ""), (NETS, "caffenets"))
        for path in sorted((folder / below).rglob("*.py"))
    }


SOURCES = sources()


def lint(folder: Path) -> str:
    """What import-linter says of the package in this folder."""
    done = subprocess.run(
        [LINTER, "--no-cache", "--config", "pyproject.toml"],
        cwd=folder,
        env={
            "PYTHONPATH": f"{folder}:{folder / NETS.relative_to(ROOT)}",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.processes
def test_every_room_imports_only_what_it_may() -> None:
    said = lint(ROOT)
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in said, said


@pytest.mark.processes
def test_each_contract_can_be_broken(tmp_path: Path) -> None:
    for folder in (PACKAGE, NETS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, tmp_path / folder.relative_to(ROOT), ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    keys = tmp_path / "speedo" / "storage" / "base.py"
    keys.write_text(f"import speedo.storage.keys\n{keys.read_text()}")
    for name, line in VIOLATIONS.items():
        file = tmp_path / ("" if name.startswith("packages/") else "speedo") / name
        file.write_text(f"{line}\n{file.read_text()}")
    said = lint(tmp_path)
    kept = [one["name"] for one in CONTRACTS if f"{one['name']} BROKEN" not in said]
    assert kept == [], said


def test_the_architecture_page_has_the_table_of_the_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.findall(r"^    ([a-z_]+(?: \| [a-z_]+)*)$", page, re.MULTILINE)
    assert table == CONTRACTS[0]["layers"]


def test_the_page_says_of_every_room_what_it_is_for() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert set(re.findall(r"^\| `([a-z_]+)/` \| \S", page, re.MULTILINE)) == rooms


def test_a_newcomer_sees_sixteen_rooms_and_four_files() -> None:
    assert len({name.split("/")[0] for name in SOURCES if "/" in name} - {"caffenets"}) <= 16
    files = {name for name in SOURCES if "/" not in name} - {"__init__.py", "__main__.py"}
    assert len(files) <= 4


def test_no_room_grows_and_its_bound_follows_it_down() -> None:
    lines = Counter[str]()
    for name, source in SOURCES.items():
        if name != GENERATED:
            lines[name.split("/")[0] if "/" in name else "top"] += source.count("\n")
    lines["all"] = lines.total() - lines["caffenets"]
    assert lines.keys() == LINES.keys()
    grown = {
        room: f"{lines[room]} lines, at most {LINES[room]}"
        for room in LINES
        if lines[room] > LINES[room]
    }
    assert grown == {}, "look what the addition makes superfluous"
    high = {room: lines[room] for room in LINES if lines[room] < LINES[room] - SLACK}
    assert high == {}, "lower the bounds in pyproject.toml to these"


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_has_at_most_460_lines(name: str) -> None:
    assert SOURCES[name].count("\n") <= 460


@pytest.mark.parametrize(
    "mode", ["asynchronous", "easgd", "hybrid", "partial", "synchronous", "weed_out"]
)
def test_a_mode_has_at_most_80_lines(mode: str) -> None:
    assert SOURCES[f"sgd_modes/{mode}.py"].count("\n") <= 80


def test_no_child_looks_for_modules_in_the_working_directory() -> None:
    """`python -m` does, without -P: another user may have put some there."""
    started = [
        (name, safe)
        for name, source in SOURCES.items()
        for safe in re.findall(r'sys\.executable,\s*("-P",\s*)?"-m"', source)
    ]
    assert len(started) == 13
    assert [name for name, safe in started if not safe] == []


def test_tests_and_benches_share_only_what_is_in_tests_support() -> None:
    """Tests of the benches aside."""
    crossing = []
    for path in [*ROOT.glob("bench/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        name = str(path.relative_to(ROOT))
        for module in re.findall(
            r"^\s*(?:from|import) ((?:bench|tests)\b[\w.]*)", path.read_text(), re.MULTILINE
        ):
            into_tests = name.startswith("bench/") and module.startswith("tests")
            into_bench = name.startswith("tests/") and module.startswith("bench")
            if (into_tests and not module.startswith("tests.support")) or (
                into_bench and not name.startswith("tests/bench/")
            ):
                crossing.append((name, module))
    assert crossing == []
