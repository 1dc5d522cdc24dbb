"""Reads a Caffe solver with its nets, checks it, and rewrites it for each process of a run.

`read_solver` on the master makes a `SolverSpec`, plain data that can be sent to any node. `check_solver` reports all
that is wrong with it. `solver_for_worker` and the like make the text that an engine is built from.
"""

from speedo.engines.solver.checks import check_solver, split_batch
from speedo.engines.solver.fillers import Draws
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.engines.solver.reading import read_solver
from speedo.engines.solver.rewrite import (
    solver_for_records,
    solver_for_server,
    solver_for_tester,
    solver_for_worker,
)
from speedo.engines.solver.spec import SolverOverrides, SolverSpec

__all__ = [
    "Draws",
    "LrPolicy",
    "SolverOverrides",
    "SolverSpec",
    "check_solver",
    "read_solver",
    "solver_for_records",
    "solver_for_server",
    "solver_for_tester",
    "solver_for_worker",
    "split_batch",
]
