"""Checks a solver for a run, and reports all problems at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caffenets.checks.nets import net_problems
from caffenets.data_layers import batch_of, data_layers
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.layer_types import known_to
from speedo.engines.solver.solver_checks import solver_problems
from speedo.engines.solver.spec import SolverSpec
from speedo.errors import SolverError


def check_solver(spec: SolverSpec, *, workers: int, split: bool) -> None:
    """Raise one `SolverError` with every problem that can be found without Caffe.

    `split` says that the batch is split over the workers. Shapes, layer parameters and Python layers are checked by the
    engine itself, in `speedo.engines.net_trial`.
    """
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    problems = solver_problems(parameter, spec.path, spec.engine)
    problems += net_problems(parameter, spec.search, spec.net_files, known_to(spec.engine))
    if split and workers > 1:
        problems += [f"{spec.path}: {text}" for text in _split_problems(spec, parameter, workers)]
    if problems:
        raise SolverError(problems)


def split_batch(batch_size: int, workers: int) -> tuple[int, ...]:
    """`batch_size` divided as evenly as can be, larger shares first: 64 over 3 is 22, 21, 21."""
    if workers < 1:
        raise SolverError(f"{workers} workers: use 1 or more")
    if batch_size < workers:
        raise SolverError(_too_small(batch_size, workers))
    share, rest = divmod(batch_size, workers)
    return (share + 1,) * rest + (share,) * (workers - rest)


def _too_small(batch_size: int, workers: int) -> str:
    return (
        f"batch_size is {batch_size}, too small to split over {workers} workers: "
        f"use a batch of {workers} or more, fewer workers, or give each worker the whole batch"
    )


def _split_problems(spec: SolverSpec, parameter: Any, workers: int) -> Iterator[str]:
    if not spec.batch_size:
        return  # reported with the net
    if spec.batch_size < workers:
        yield _too_small(spec.batch_size, workers)
    for layer in data_layers(parameter.train_net_param):
        batch = batch_of(layer)
        if batch not in (0, spec.batch_size) and layer.type != "DummyData":
            yield (
                f"data layer {layer.name!r} has batch_size {batch}, the first one "
                f"{spec.batch_size}: give both the same, or give each worker the whole batch"
            )
        elif not batch and layer.type == "Python":
            yield (
                f"the batch of Python layer {layer.name!r} cannot be split: write batch_size in "
                "its param_str, or give each worker the whole batch"
            )
