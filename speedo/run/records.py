"""The number of training records of a run, from its own configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speedo.data.roots import default_data_root
from speedo.engines.solver import read_solver
from speedo.engines.solver.data_layers import count_records
from speedo.errors import SpeedoError
from speedo.run.chosen_solver import chosen_solver


def records_of(options: Mapping[str, Any]) -> int | None:
    """Records of an epoch of a run with these options; None where its solver or data are not here."""
    solver, root = options.get("solver"), options.get("data_root")
    try:
        folder = (
            Path(root) if isinstance(root, str) and os.path.isdir(root) else default_data_root()
        )
        path = chosen_solver(Path(solver) if isinstance(solver, str) else None)
        return count_records(read_solver(path, data_root=folder.absolute(), trains=False))
    except (SpeedoError, OSError, ValueError):
        return None
