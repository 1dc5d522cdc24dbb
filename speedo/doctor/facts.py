"""The master's solver and records, read on its host before it runs; the doctor of another host compares its own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from speedo.data import default_data_root
from speedo.doctor.base import Request
from speedo.doctor.solver import choice_of
from speedo.engines.make import prepare_to_read
from speedo.run.prepare import chosen_solver
from speedo.run.remote_inputs import located
from speedo.solver import SolverOverrides, read_solver
from speedo.solver.data_layers import count_records


def facts_of(request: Request) -> dict[str, Any]:
    """The facts that a running master would publish, as far as they are known without it. Raises `SpeedoError`."""
    root = (located(request.data_root) or default_data_root()).absolute()
    choice = choice_of(request, {})
    prepare_to_read(choice.engine)
    overrides = SolverOverrides(cpu=choice.device == "cpu", engine=choice.engine)
    spec = read_solver(chosen_solver(request.solver), overrides=overrides, data_root=root)
    return {
        "solver": spec.text,
        "folder": str(spec.folder),
        "net_files": list(spec.net_files),
        "records": count_records(spec),
        "engine": asdict(choice),
    }
