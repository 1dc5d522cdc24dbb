"""All that the package imports is declared, so that it works where nothing else is installed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CALLED = {
    "google": "protobuf",
    "yaml": "pyyaml",
}  # where a project has another name than its module


def test_each_module_that_is_imported_is_of_a_declared_project() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(one for extra in extras for one in extra)]
    declared = {re.split(r"[<>=\[;]", one)[0].lower() for one in wanted}
    imported = set()
    for file in (PACKAGE / "caffenets").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {one.name.split(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("needed", "lacking"):
                imported |= {
                    str(one.value).split(".")[0]
                    for one in node.args[:1]
                    if isinstance(one, ast.Constant)
                }
    others = imported - sys.stdlib_module_names - {"caffenets"}
    assert {CALLED.get(name, name) for name in others} <= declared
    assert {"numpy", "google", "torch", "yaml", "onnx"} <= others
