"""Which solver a command means that names none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from speedo.engines.solver.bundled import bundled_solver
from speedo.errors import ConfigError

SOLVER_VARIABLE: Final = "SPEEDO_SOLVER"


def chosen_solver(given: Path | None) -> Path:
    """The solver that was given, that of the environment, or the bundled one. Raises `ConfigError`."""
    named = os.environ.get(SOLVER_VARIABLE)
    if given is None and named and not os.path.isfile(named):
        raise ConfigError(
            f"{SOLVER_VARIABLE} names {named}, which is not a file; correct it, or name the solver on the command line"
        )
    return given or (Path(named) if named else bundled_solver())
