"""Reads a Caffe solver with its nets, checks it, and rewrites it for each process of a run.

`read_solver` on the master makes a `SolverSpec`, plain data that can be sent to any node. `check_solver` reports all
that is wrong with it. `solver_for_worker` and the like make the text that an engine is built from.
"""

from speedo.solver.checks import check_solver, split_batch
from speedo.solver.fillers import Draws
from speedo.solver.lr_policies import LrPolicy
from speedo.solver.reading import read_solver
from speedo.solver.rewrite import (
    solver_for_records,
    solver_for_server,
    solver_for_tester,
    solver_for_worker,
)
from speedo.solver.spec import SolverOverrides, SolverSpec

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
