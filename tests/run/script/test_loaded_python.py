"""A Python that waits to become a script is then as `python SCRIPT` is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.run.script import loaded_python

pytestmark = pytest.mark.processes
SAYS = """
import json, os, sys
import torch
def here():
    return [__name__, sys.argv, sys.path[0], __file__, os.environ.get("PLACE"), os.getcwd(), sys.stdin.read(),
            sys.modules["__main__"].here is here, sorted(os.sched_getaffinity(0))]
if __name__ == "__main__":
    print(json.dumps(here()))
"""
STARTS_OTHERS = """
import torch
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
def twice(number):
    return 2 * number
if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print(pool.submit(twice, 21).result())
"""
FAILS = """
import torch
def fail():
    raise ValueError("this is the reason")
fail()
"""


def became(folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    """The status and the output of a script of this text, once a Python that waited has become it."""
    pytest.importorskip("torch")
    script, log = folder / "script.py", folder / "log"
    script.write_text(text)
    log.touch()
    command = loaded_python.command([sys.executable, "script.py", *arguments], str(folder))
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        environment = {**os.environ, "PLACE": "1/2"}
        process.stdin.write(loaded_python.place(environment, log, [min(os.sched_getaffinity(0))]))
        process.stdin.close()
        return process.wait(60), log.read_text()


def test_it_is_as_the_script_would_be(tmp_path: Path) -> None:
    status, output = became(tmp_path, SAYS, "--seed", "1")
    assert status == 0
    argv = ["script.py", "--seed", "1"]
    where = [str(tmp_path), str(tmp_path / "script.py"), "1/2", str(tmp_path)]
    first = [min(os.sched_getaffinity(0))]
    found = json.loads(output)
    assert found == ["__main__", argv, *where, "", True, first]
    told = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
        env={**os.environ, "PLACE": "1/2"}, check=True,
    )  # fmt: skip
    assert json.loads(told.stdout)[:-1] == found[:-1]


def test_its_functions_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    assert became(tmp_path, STARTS_OTHERS) == (0, "42\n")


def test_an_error_and_a_status_are_the_scripts_own(tmp_path: Path) -> None:
    status, output = became(tmp_path, FAILS)
    assert status == 1
    assert output.endswith("ValueError: this is the reason\n")
    assert 'script.py", line 4, in fail' in output
    assert became(tmp_path, "import torch, sys\nsys.exit(5)")[0] == 5


def test_it_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\nprint('ran')")
    command = loaded_python.command([sys.executable, "script.py"], str(tmp_path))
    ended = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"\n", b"")


@pytest.mark.parametrize(
    ("words", "text", "stands_in"),
    [
        (["python", "script.py"], "import torch", False),
        ([sys.executable, "script.py"], "import torch", True),
        ([sys.executable, "script.py"], "import os\n\nfrom torch import nn\nos.environ['A']", True),
        ([sys.executable, "script.py"], "import os\nos.environ['A'] = '1'\nimport torch", False),
        ([sys.executable, "script.py"], "import numpy", False),
        ([sys.executable, "script.py"], "import torchvision", False),
        ([sys.executable, "-m", "script"], "import torch", False),
        ([sys.executable, "missing.py"], "import torch", False),
        ([sys.executable], "import torch", False),
        (["bash", "script.py"], "import torch", False),
    ],
)
def test_what_it_stands_in_for(
    tmp_path: Path, words: list[str], text: str, stands_in: bool
) -> None:
    (tmp_path / "script.py").write_text(text)
    assert bool(loaded_python.command(words, str(tmp_path))) == stands_in
