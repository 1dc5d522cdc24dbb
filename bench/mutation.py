"""How many small faults in the core the tests notice: `python -m bench.mutation [--sample N]`.

Each mutant is a copy of the package with one change: a comparison, an operator, a number, a condition turned, a call
left out. The fast tests of the core run against it, those of its own room first, up to the first failure. A mutant
that no test notices is printed; one that only a deadline ends is counted apart, because no assertion noticed it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("master", "worker", "sgd_modes")
TESTS = ("tests/sgd_modes", "tests/worker", "tests/master", "tests/simulation")
FAST = "not redis and not ray and not caffe and not slow"
DEADLINE_S = 300.0

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change: `source` is the whole changed module."""

    file: Path
    line: int
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.what}"


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree = ast.parse(file.read_text())
    for node, change, what in list(_changes(tree)):
        kept = copy.copy(node.__dict__)
        changed = change(node)
        source = ast.unparse(tree)
        node.__dict__.clear()
        node.__dict__.update(kept)
        if changed is not False:
            yield Mutant(file, getattr(node, "lineno", 0), what, source)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, object, str]]:
    for node in _code(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
            other = COMPARE[type(node.ops[0])]
            yield (
                node,
                _set(ops=[other(), *node.ops[1:]]),
                f"`{ast.unparse(node)}` with {other.__name__}",
            )
        elif isinstance(node, ast.BoolOp):
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield node, _set(op=other()), f"`{ast.unparse(node)}` with {other.__name__}"
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in BINARY:
            other = BINARY[type(node.op)]
            yield node, _set(op=other()), f"`{ast.unparse(node)}` with {other.__name__}"
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            turned = ast.UnaryOp(ast.Not(), node.test)
            yield node, _set(test=turned), f"`{ast.unparse(node.test)}` turned"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node, _set(value=node.value + 1), f"{node.value} becomes {node.value + 1}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, _set(value=not node.value), f"{node.value} becomes {not node.value}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            nothing = ast.Constant(None)
            yield node, _set(value=nothing), f"`{ast.unparse(node)}` left out"


def _set(**values: object) -> object:
    def change(node: ast.AST) -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that do something: no annotation, docstring, message of an error, or constant of the module."""
    for name, value in ast.iter_fields(node):
        if name in (
            "annotation",
            "returns",
            "decorator_list",
            "keywords" if isinstance(node, ast.ClassDef) else "",
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(
                child, ast.JoinedStr | ast.Raise | ast.Assert
            ):
                continue
            if isinstance(node, ast.Module) and isinstance(child, ast.Assign | ast.AnnAssign):
                continue
            yield child
            yield from _code(child)


def verdict(mutant: Mutant, folder: Path) -> str:
    """`killed`, `late` if only the deadline ended the tests, `survived`."""
    place = folder / mutant.file.relative_to(ROOT)
    usual = place.read_text()
    place.write_text(mutant.source)
    own = f"tests/{mutant.file.parent.name}"
    order = [own, *(one for one in TESTS if one != own)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", FAST, *order],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "late"
    finally:
        place.write_text(usual)
    if b"Timeout" in done.stdout and done.returncode:
        return "late"
    return "survived" if done.returncode == 0 else "killed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), metavar="ROOM")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="so many mutants, drawn by --seed; all by default"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    files = [file for room in asked.rooms for file in sorted((ROOT / "speedo" / room).glob("*.py"))]
    mutants = [mutant for file in files for mutant in mutants_of(file)]
    if asked.sample is not None:
        mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    began = time.monotonic()
    counts = {"killed": 0, "late": 0, "survived": 0}
    with (
        tempfile.TemporaryDirectory(prefix="speedo-mutation-") as scratch,
        ThreadPoolExecutor(asked.jobs) as pool,
    ):
        folders = [_copy(Path(scratch) / str(number)) for number in range(asked.jobs)]
        free = list(folders)

        def judge(mutant: Mutant) -> tuple[Mutant, str]:
            folder = free.pop()
            try:
                return mutant, verdict(mutant, folder)
            finally:
                free.append(folder)

        for number, (mutant, said) in enumerate(pool.map(judge, mutants), 1):
            counts[said] += 1
            if said != "killed":
                print(f"{said}: {mutant}", flush=True)
            if number % 50 == 0:
                print(
                    f"{number} of {len(mutants)}, {counts}, {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                )
    share = 100 * counts["killed"] / max(len(mutants), 1)
    print(
        f"{len(mutants)} mutants of {', '.join(asked.rooms)}: {share:.1f} % killed by an assertion, {counts}"
    )


def _copy(folder: Path) -> Path:
    for name in ("speedo", "tests", "prototxt"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


if __name__ == "__main__":
    main()
