"""The solvers that come with SpeeDO: in `prototxt/` of a checkout, or `speedo/prototxt/` of an installed wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from speedo.errors import SolverError

SOLVER_FILE: Final = "solver.prototxt"
_PACKAGE: Final = Path(__file__).resolve().parents[2]


def bundled_names() -> tuple[str, ...]:
    """The names of the bundled solvers, sorted; raises SolverError if the installation lacks
    them."""
    return tuple(sorted(path.parent.name for path in _root().glob(f"*/{SOLVER_FILE}")))


def bundled_solver(name: str = "lenet") -> Path:
    """The solver file of a bundled net, absolute; raises SolverError for an unknown name."""
    names = bundled_names()
    if name not in names:
        raise SolverError(f"{name!r} is no bundled solver: use one of {', '.join(names)}")
    return _root() / name / SOLVER_FILE


def _root() -> Path:
    # The wheel's folder first: beside an installed package, a top-level `prototxt` would be
    # somebody else's.
    for root in (_PACKAGE / "prototxt", _PACKAGE.parent / "prototxt"):
        if any(root.glob(f"*/{SOLVER_FILE}")):
            return root
    raise SolverError(f"no bundled solvers beside {_PACKAGE}: install speedo again")
