"""Saves and restores a solver's state (momentum and the like) as bytes, through Caffe's `.solverstate`.

pycaffe gives no other access to it. The weights are not changed: the restored state names no model file (Caffe:
solvers/sgd_solver.cpp, RestoreSolverStateFromBinaryProto).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from speedo.engines.files import memory_file
from speedo.engines.solverstate import read_solverstate, read_state, write_solverstate
from speedo.engines.update_rules import RULES
from speedo.errors import EngineError
from speedo.exchange.vector import Layout

_MAGIC: Final = b"speedo-history-1"
PREFIX: Final = "state"


def save_history(solver: Any, solver_type: str, layout: Layout, scratch: Path) -> bytes:
    """One line that names its solver, then Caffe's SolverState; the solver's rank must be 0 now."""
    stem = f"{PREFIX}_iter_{solver.iter}"
    model, state = scratch / f"{stem}.caffemodel", scratch / f"{stem}.solverstate"
    with memory_file() as (file, name):
        try:
            model.symlink_to(os.devnull)  # Caffe writes the weights as well: nobody reads them
            state.symlink_to(name)
            solver.snapshot()
        except OSError as error:
            raise EngineError(
                f"the solver history cannot be saved by way of {scratch}: {error.strerror}; make room there"
            ) from None
        finally:
            with suppress(OSError):
                model.unlink(missing_ok=True)
                state.unlink(missing_ok=True)
        file.seek(0)
        return _header(solver_type, layout) + file.read()


def history_from(solver_type: str, layout: Layout, solverstate: bytes) -> bytes:
    """The history that `save_history` would have made from this `.solverstate`."""
    return _header(solver_type, layout) + solverstate


def restore_history(solver: Any, solver_type: str, layout: Layout, state: bytes) -> None:
    """Take over `state`; `EngineError`, and no change, if it is not of this solver and net."""
    content = solverstate_in(solver_type, layout, state)
    vectors, updates = read_solverstate(layout, RULES[solver_type].vectors, content)
    step = int(read_state(content).current_step)
    content = write_solverstate(layout, vectors, updates, current_step=step)
    with memory_file() as (file, name):
        file.write(content)
        solver.restore(name)


def solverstate_in(solver_type: str, layout: Layout, state: bytes) -> bytes:
    """Caffe's own part of a history; `EngineError` if it is not of this solver and net."""
    header = _header(solver_type, layout)
    if not state.startswith(header):
        found = state.split(b"\n", 1)[0][:80].decode("utf-8", "replace")
        raise EngineError(
            f"the solver history is {found!r}, this solver needs {header.decode().strip()!r}: "
            "resume with the same net and the same solver type"
        )
    return state[len(header) :]


def _header(solver_type: str, layout: Layout) -> bytes:
    return b"%s %s %016x\n" % (_MAGIC, solver_type.encode(), layout.digest)
