"""The mutants of a module: copies with one small fault each, and those that no test can notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

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
# File, line and change of mutants that behave like the original, with the reason.
EQUIVALENT: Mapping[tuple[str, str, str], str] = {
    (
        "speedo/master/divergence.py",
        "if len(known) >= FEWEST and norm > LARGEST_RATIO * min(known):",
        "`norm > LARGEST_RATIO * min(known)` with GtE",
    ): "a short cut: the median, which is asked next, is not below the least",
    (
        "speedo/master/center.py",
        "seconds: float = 0.0",
        "0.0 becomes 1.0",
    ): "always set before it is read",
    (
        "speedo/master/center.py",
        "clock: Callable[[], float] = lambda: 0.0",
        "0.0 becomes 1.0",
    ): "only differences of it are used",
    (
        "speedo/master/center.py",
        "self._published.clear()",
        "`self._published.clear()` left out",
    ): "spares the store deletions of what it has lost",
    (
        "speedo/master/center.py",
        "self._published.discard(version)",
        "`self._published.discard(version)` left out",
    ): "spares the store a second deletion",
    (
        "speedo/master/divergence.py",
        "_start: float = 0.0",
        "0.0 becomes 1.0",
    ): "set by the first point, and not read before",
    (
        "speedo/master/members.py",
        "depth: int = 1",
        "1 becomes 2",
    ): "always given",
    (
        "speedo/master/members.py",
        "latest: int = 0  # the ticket of the turn that was issued last",
        "0 becomes 1",
    ): "set with the first turn, and not read before",
    (
        "speedo/sgd_modes/partial.py",
        "def _release(self, first: int = -1) -> tuple[int, ...]:",
        "1 becomes 2",
    ): "the number of no worker",
    (
        "speedo/sgd_modes/turn_counts.py",
        "return max(self.at, default=0)",
        "0 becomes 1",
    ): "only differences of turns matter",
    (
        "speedo/sgd_modes/hybrid.py",
        "self.merged += sum(self.pending.pop(worker, 0) for worker in decision.merge)",
        "0 becomes 1",
    ): "what is merged was pending",
}


@dataclass(frozen=True)
class Mutant:
    """One change: `source` is the whole changed module."""

    file: Path
    line: int
    what: str
    source: str

    @property
    def place(self) -> str:
        return str(self.file.relative_to(ROOT))

    @property
    def key(self) -> tuple[str, str, str]:
        """As in `EQUIVALENT`."""
        return self.place, self.file.read_text().splitlines()[self.line - 1].strip(), self.what

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.what}"


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


def _is_for_tests_of_processes(node: ast.AST) -> bool:
    """`reached(...)`, where a test of whole systems lets a process die."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "reached"


def _is_strict(node: ast.AST) -> bool:
    """The `strict` of a `zip`, which states what holds anyway."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


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
            if _is_for_tests_of_processes(child) or _is_strict(child):
                continue
            if isinstance(node, ast.Module) and isinstance(child, ast.Assign | ast.AnnAssign):
                continue
            yield child
            yield from _code(child)


# ---------------------------------------------------------------- where they are


@dataclass(frozen=True)
class Function:
    """An outermost function of a module; `cached` if later tests may use what it returned to an earlier one."""

    name: str
    first: int
    last: int
    cached: bool


def functions_of(file: Path) -> list[Function]:
    """The outermost functions and methods of a module."""
    found: list[Function] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                lines = [child.lineno, *(one.lineno for one in child.decorator_list)]
                cached = any("cache" in ast.unparse(one) for one in child.decorator_list)
                last = child.end_lineno or child.lineno
                found.append(Function(prefix + child.name, min(lines), last, cached))

    visit(ast.parse(file.read_text()), "")
    return found


def function_of(mutant: Mutant) -> Function | None:
    """The function that is changed; None where the change is outside of functions."""
    return next(
        (one for one in functions_of(mutant.file) if one.first <= mutant.line <= one.last), None
    )
