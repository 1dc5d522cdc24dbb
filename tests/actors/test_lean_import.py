"""Packages that are imported when they are used; with packages of the test in place of Ray's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.network import ROOT

pytestmark = pytest.mark.processes

LATER = """
import sys
from speedo.actors.ray_node.lean_import import left_for_later
with left_for_later():
    import requests
    try:
        import grpc
    except ImportError:
        print("absent")
    import user_of_jsonschema
    print("begun", sorted({"requests", "jsonschema"} & set(sys.modules)))
    import jsonschema.inner
    print(jsonschema.answer, jsonschema.inner.answer)
print("over", sorted({"requests", "grpc"} & set(sys.modules)))
import grpc
print(grpc.answer)
held = requests
import requests
print(held.answer, held is requests, held.__spec__ == requests.__spec__)
"""
USER = "import jsonschema\ndef use():\n    return jsonschema.answer\n"


def run(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_package_that_is_left_for_later_is_imported_where_it_is_used(tmp_path: Path) -> None:
    for name in ("requests", "jsonschema", "grpc"):
        (tmp_path / name).mkdir()
        text = f"print('import of {name}')\nanswer = '{name} answers'\n"
        (tmp_path / name / "__init__.py").write_text(text)
        (tmp_path / name / "inner.py").write_text("answer = 'inner'\n")
    (tmp_path / "user_of_jsonschema.py").write_text(USER)
    assert run(LATER, tmp_path) == [
        "absent",
        "begun ['jsonschema', 'requests']",
        "import of jsonschema",
        "jsonschema answers inner",
        "over []",
        "import of grpc",
        "grpc answers",
        "import of requests",
        "requests answers False True",
    ]


ENTRY = """
import sys
from importlib.metadata import EntryPoint
from speedo.actors.ray_node.start_command import load_command
load_command(EntryPoint("ray", f"{sys.argv[1]}:main", "console_scripts"))()
"""


def test_rays_command_is_loaded_without_those_it_can_do_without(tmp_path: Path) -> None:
    (tmp_path / "ray" / "serve").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text("")
    (tmp_path / "ray" / "serve" / "scripts.py").write_text("cli = 'serve'\nprint('imported')\n")
    needs = "from ray.serve.scripts import cli\ndef main():\n    print(cli)\n"
    (tmp_path / "needs.py").write_text(needs)
    does_without = f"try:\n    {needs.splitlines()[0]}\nexcept ImportError:\n    cli = 'none'\n"
    (tmp_path / "does_without.py").write_text(does_without + needs.partition("\n")[2])
    for name, said in (("does_without", ["none"]), ("needs", ["imported", "serve"])):
        program = ENTRY.replace("sys.argv[1]", repr(name))
        assert run(program, tmp_path) == said
