"""Reads what a model is scored by: the test nets of a solver, or the net of a file in Caffe's TEST phase."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from caffenets import nets
from caffenets.checks.nets import problems_of_tests
from caffenets.checks.paths import SearchPath
from caffenets.data_layers import data_layers, net_batch, set_net_batch, source_of
from caffenets.host_program import caffe_schema
from caffenets.prototxt.state import filter_net
from caffenets.prototxt.text import parse_text, to_text
from speedo.engines.layer_types import known_to
from speedo.engines.solver.reading import is_net, read_solver, spec_of
from speedo.engines.solver.spec import SolverOverrides, SolverSpec
from speedo.errors import SolverError
from speedo.system.bounds import EngineName

USUAL_ITERATIONS: Final = 50  # of a net, which names none: those of `caffe test`


def read_tests(
    path: Path,
    *,
    data_root: Path | None = None,
    iterations: int | None = None,
    cpu: bool = False,
    engine: EngineName = "caffe",
    ignore_unknown: bool = False,
) -> SolverSpec:
    """The test nets of the solver or net in this file; in the train net's place is the first of them, too.

    `iterations` are the batches of each test instead of the solver's `test_iter`, `ignore_unknown` is that of
    `SolverOverrides`. Raises `SolverError`.
    """
    path = path.absolute()
    if is_net(path):
        spec = read_net(path, data_root, iterations or USUAL_ITERATIONS, ignore_unknown)
    else:
        overrides = SolverOverrides(cpu=cpu, engine=engine, ignore_unknown=ignore_unknown)
        spec = read_solver(path, overrides=overrides, data_root=data_root, trains=False)
        if not spec.test_iter:
            raise SolverError(
                f"{path}: has no test net: add test_iter, or give the file of a net with --iterations"
            )
        if iterations is None and not spec.has_test:
            raise SolverError(f"{path}: test_iter is 0: use 1 or more, or give --iterations")
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    tests = list(parameter.test_net_param)
    parameter.train_net_param.CopyFrom(tests[0])
    if iterations is not None:
        parameter.test_iter[:] = [iterations] * len(tests)
    sources = [source for layer in data_layers(tests[0]) if (source := source_of(layer))]
    named = spec.net_files[-len(tests) :]
    return replace(
        spec,
        text=to_text(parameter),
        net_files=(named[0], *named),
        test_iter=tuple(int(count) for count in parameter.test_iter),
        train_source=sources[0] if sources else None,
        engine=engine,
    )


def read_training(tests: SolverSpec) -> SolverSpec:
    """The data layers for training in the file of `tests`, as its only net, with the batch of the tests.

    Raises `SolverError`.
    """
    path, unknown = tests.path, bool(tests.left_out)
    if is_net(path):
        spec = read_net(path, tests.data_root, 1, unknown, phase="TRAIN")
    else:
        overrides = SolverOverrides(cpu=True, engine=tests.engine, ignore_unknown=unknown)
        spec = read_solver(path, overrides=overrides, data_root=tests.data_root, trains=False)
    parameter: Any = parse_text(spec.text, caffe_schema().SolverParameter())
    net, readers = parameter.train_net_param, data_layers(parameter.train_net_param)
    if not readers:
        raise SolverError(
            f"{path}: has no data layer for training, whose records give int8 its ranges: name a solver, or add one "
            "with include { phase: TRAIN }"
        )
    tested: Any = parse_text(tests.text, caffe_schema().SolverParameter())
    del net.layer[:]
    net.layer.extend(readers)
    if batch := net_batch(tested.test_net_param[0]):
        set_net_batch(net, batch)
    del parameter.test_net_param[:]
    parameter.test_net_param.add().CopyFrom(net)
    parameter.test_iter[:] = [1]
    return replace(spec, text=to_text(parameter), test_iter=(1,), engine=tests.engine)


def check_tests(spec: SolverSpec) -> None:
    """Raise one `SolverError` with every problem of the test nets that can be found without building them."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    problems = problems_of_tests(parameter, spec.search, spec.net_files[1:], known_to(spec.engine))
    if problems:
        raise SolverError(problems)


def read_net(
    path: Path,
    data_root: Path | None,
    iterations: int,
    ignore_unknown: bool = False,
    phase: str = "TEST",
) -> SolverSpec:
    """The net of this file in this phase, as train net and as test net. Raises `SolverError`."""
    search = SearchPath(path.parent, Path.cwd(), data_root.absolute() if data_root else None)
    proto: Any = caffe_schema()
    parameter = proto.SolverParameter()
    left_out: list[str] | None = [] if ignore_unknown else None
    net = nets.read_net(path, left_out)
    parameter.test_net_param.add().CopyFrom(filter_net(net, getattr(proto, phase), None, str(path)))
    parameter.train_net_param.CopyFrom(parameter.test_net_param[0])
    parameter.test_iter.append(iterations)
    parameter.solver_mode = parameter.CPU
    spec = spec_of(parameter, path, search, (os.fspath(path),) * 2)
    return replace(spec, left_out=tuple(left_out or ()))
