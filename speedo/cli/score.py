"""`speedo test`: scores a model, or all snapshots of a run, with several processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from speedo.cli import original_options
from speedo.cli.control import run_dir_of
from speedo.cli.page import json_option
from speedo.cli.run_options import PATH, RunCommand, options_named
from speedo.cli.say import say
from speedo.data.remote.uris import uri_of
from speedo.engines.make import EngineChoice, is_installed
from speedo.errors import ConfigError
from speedo.run.config.engine_checks import with_device
from speedo.system.bounds import LARGEST_INT32, EngineName
from speedo.system.foreign_text import MOST_NAME, clean_text
from speedo.watch.console import StatusLine

if TYPE_CHECKING:
    from speedo.engines.solver import SolverSpec
    from speedo.study.scoring.models import Model

MOST_WORKERS: Final = 1024
TELL_S: Final = 5.0  # between two lines where nobody looks at a terminal


@click.command("test", cls=RunCommand, translate=original_options.for_a_test)
@click.argument("solver", required=False, type=PATH, metavar="[SOLVER|NET|RUN]")
@click.option(
    "--weights",
    type=PATH,
    metavar="FILE|RUN|URI",
    help="The .caffemodel (also RUN/best.caffemodel), or a run directory: its model, or its newest snapshot if it has "
    "no model yet.  [default: RUN]",
)
@click.option("--snapshots", is_flag=True, help="Score all snapshots of the run, a line each.")
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    default=2,
    show_default=True,
    metavar="N",
    help="Processes on this machine; each computes its share of the batches.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1, LARGEST_INT32),
    metavar="N",
    help="Batches of each test.  [default: the solver's test_iter; of a NET 50, as in Caffe]",
)
@options_named("data_root", "python_layers", "ignore_unknown", "engine", "device")
@json_option
def score(
    solver: Path | None,
    weights: Path | None,
    snapshots: bool,
    workers: int,
    iterations: int | None,
    data_root: Path | None,
    python_layers: str | None,
    ignore_unknown: bool | None,
    engine: EngineName | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Score the model of RUN, or the one in --weights, and print the mean of each output.

    Computes all test nets of SOLVER, or NET in the TEST phase. Without SOLVER: that of the run, else $SPEEDO_SOLVER,
    else the bundled LeNet. RUN is a run directory, or the first characters of the id of a run in progress.

    The figures are those of one Caffe, with any number of workers: each computes some of the batches, and the sums are
    added.

    \b
    speedo test runs/20260101-120000-easgd-ab12
    speedo test runs/20260101-120000-easgd-ab12 --snapshots
    speedo test my/solver.prototxt --weights my.caffemodel --workers 4
    speedo test my/net.prototxt --weights my.caffemodel --iterations 100
    """
    from speedo.run.engine_choice import choice_of
    from speedo.run.remote_inputs import fetch_weights
    from speedo.study.scoring.models import models_of, options_of
    from speedo.study.scoring.report import as_fields, as_lines, as_table
    from speedo.study.scoring.score import score_models

    if weights is None:
        solver, weights = None, _run(solver)
    with _Progress(TELL_S) as progress:
        if uri_of(weights) is not None:
            weights = fetch_weights(weights, progress.note)
        models = models_of(weights, snapshots=snapshots)
        of_run = options_of(weights) if solver is None else {}
        if engine is None and solver is None and is_installed(of_run.get("engine", "caffe")):
            engine = of_run.get("engine")
        if device is None and with_device(of_run).get("device") == "cpu":
            device = "cpu"
        choice = choice_of(progress.note, engine, device=device)
        spec = _tests(
            solver or _path(of_run.get("solver")),
            data_root or _path(of_run.get("data_root")),
            iterations,
            python_layers or of_run.get("python_layers"),
            bool(of_run.get("ignore_unknown") if ignore_unknown is None else ignore_unknown),
            choice,
            progress.note,
        )
        used = min(workers, max(spec.test_iter))
        scores = []
        for found in score_models(spec, models, workers, progress, choice):
            scores.append(found)
    if as_json:
        fields = [as_fields(one, used) for one in scores]
        say(json.dumps({"models": fields} if snapshots else fields[0]))
        return
    for line in as_table(scores) if snapshots else as_lines(scores[0], used):
        say(line)


def _run(named: Path | None) -> Path:
    """The run whose model is scored. Raises `ClusterError`, click's own error if no run is named."""
    if named is None or os.path.isfile(named):
        raise click.UsageError("name a run, or give --weights")
    return named if uri_of(named) is not None else run_dir_of(named)


def _path(value: Any) -> Path | None:
    return Path(value) if isinstance(value, str) else None


def _tests(
    solver: Path | None,
    data_root: Path | None,
    iterations: int | None,
    python_layers: str | None,
    ignore_unknown: bool,
    choice: EngineChoice,
    note: Callable[[str], None],
) -> SolverSpec:
    """The test nets, with their data on this machine."""
    from speedo.data.roots import default_data_root
    from speedo.engines.solver.conversion import convert_databases
    from speedo.engines.solver.scored_nets import check_tests, read_tests
    from speedo.run.chosen_solver import chosen_solver
    from speedo.run.config.run_config import make_config
    from speedo.run.datasets import make_dataset, preparable_dataset
    from speedo.run.remote_inputs import fetch_sources, located
    from speedo.system.workplace import check_names

    given = {"data_root": data_root, "python_layers": python_layers}
    config = make_config({name: value for name, value in given.items() if value is not None})
    path = chosen_solver(solver)
    root = (located(config.data_root) or default_data_root()).absolute()
    check_names({"the solver": path, "the data root": root})
    spec = read_tests(
        path,
        data_root=root,
        iterations=iterations,
        cpu=choice.device == "cpu",
        engine=choice.engine,
        ignore_unknown=ignore_unknown,
    )
    for line in spec.left_out:
        note(f"left out: {line}")
    spec = replace(spec, python_layers=config.python_modules)
    fetch_sources(spec, config.data_root, note)
    dataset = preparable_dataset(spec)
    if dataset is not None:
        make_dataset(root, dataset, note)
    check_tests(spec)
    convert_databases(spec, note)
    if not all(spec.test_iter):
        raise ConfigError(f"{path}: a test_iter is 0; use 1 or more, or give --iterations")
    return spec


class _Progress(StatusLine):
    """How far the batches are."""

    def note(self, text: str) -> None:
        super().note(f"speedo: {text}")

    def begin(self, model: Model, batches: int) -> None:
        self._model, self._done, self._all = model.path.name, 0, batches

    def passed(self) -> None:
        self._done += 1
        name = clean_text(self._model, MOST_NAME)
        self.show(f"{name}: {self._done:,} of {self._all:,} batches")
