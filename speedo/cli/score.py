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
from speedo.system.bounds import LARGEST_INT32, EngineName
from speedo.system.foreign_text import MOST_NAME, clean_text
from speedo.watch.console import StatusLine

if TYPE_CHECKING:
    from speedo.engines.solver import SolverSpec
    from speedo.study.scoring.int8 import Ranges
    from speedo.study.scoring.models import ScoredModel

MOST_WORKERS: Final = 1024
MOST_BATCHES: Final = 100_000
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
@click.option(
    "--int8",
    is_flag=True,
    help="Score the model also in 8 bits, with a scale for each tensor of weights and for each channel, and say which "
    "layers lose most.",
)
@click.option(
    "--int8-batches",
    type=click.IntRange(1, MOST_BATCHES),
    metavar="N",
    help="Batches of training records from which --int8 takes the ranges of what flows between layers.  [default: 10]",
)
@click.option(
    "--int8-ranges",
    type=click.Choice(["percentile", "minmax"]),
    help="Ranges that hold 99.99 % of the values, or all of them; give what your compiler does.  [default: percentile]",
)
@options_named("data_root", "python_layers", "ignore_unknown", "engine", "device")
@json_option
def score(
    solver: Path | None,
    weights: Path | None,
    snapshots: bool,
    workers: int,
    iterations: int | None,
    int8: bool,
    int8_batches: int | None,
    int8_ranges: Ranges | None,
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

    With --int8 the convolutions and inner products and what lies between them are exported to ONNX and quantised, as a
    compiler for an int8 processor does it; losses, accuracy and the decoding of boxes stay in float. It needs
    `pip install 'speedo[onnx]'`.

    \b
    speedo test runs/20260101-120000-easgd-ab12
    speedo test runs/20260101-120000-easgd-ab12 --snapshots
    speedo test my/solver.prototxt --weights my.caffemodel --workers 4
    speedo test my/net.prototxt --weights my.caffemodel --iterations 100
    speedo test runs/20260101-120000-easgd-ab12 --int8
    """
    from speedo.run.engine_choice import choice_of
    from speedo.run.remote_inputs import fetch_weights
    from speedo.study.scoring.int8 import USUAL_BATCHES, CalibrationRecords, score_in_int8
    from speedo.study.scoring.models import models_of, options_of
    from speedo.study.scoring.report import as_fields, as_lines, as_table, int8_fields, int8_lines
    from speedo.study.scoring.score import score_models
    from speedo.watch.scores import why_unavailable

    if not int8 and (int8_batches or int8_ranges):
        raise click.UsageError(
            "--int8-batches and --int8-ranges say how --int8 computes: give --int8, too"
        )
    if int8 and snapshots:
        raise click.UsageError(
            "--int8 quantises one model: leave --snapshots out, and give a file as --weights"
        )
    if weights is None:
        solver, weights = None, _run(solver)
    with _Progress(TELL_S) as progress:
        if uri_of(weights) is not None:
            weights = fetch_weights(weights, progress.note)
        models = models_of(weights, snapshots=snapshots)
        of_run = options_of(weights) if solver is None else {}
        if engine is None and solver is None and is_installed(of_run.get("engine", "caffe")):
            engine = of_run.get("engine")
        if device is None and of_run.get("device") == "cpu":
            device = "cpu"
        choice = choice_of(progress.note, engine, device=device)
        spec, training = _tests(
            solver or _path(of_run.get("solver")),
            data_root or _path(of_run.get("data_root")),
            iterations,
            python_layers or of_run.get("python_layers"),
            bool(of_run.get("ignore_unknown") if ignore_unknown is None else ignore_unknown),
            choice,
            progress.note,
            int8=int8,
        )
        used = min(workers, max(spec.test_iter))
        quantised = None
        if training is not None:
            calibration = CalibrationRecords(
                training, int8_batches or USUAL_BATCHES, int8_ranges or "percentile"
            )
            quantised = score_in_int8(
                spec, models[0], workers, progress, choice, calibration, progress.note
            )
        scores = list(score_models(spec, models, workers, progress, choice))
        for one in scores:
            if why := why_unavailable(one.metrics):
                progress.note(f"the test of {one.model.path.name} {why}")
    if quantised is not None:
        if as_json:
            say(json.dumps(int8_fields(scores[0], quantised, used)))
        else:
            for line in int8_lines(scores[0], quantised, used):
                say(line)
        return
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
    *,
    int8: bool,
) -> tuple[SolverSpec, SolverSpec | None]:
    """The test nets, with their data on this machine, and with `int8` the data layers for training."""
    from speedo.data.roots import default_data_root
    from speedo.engines.solver.conversion import convert_databases
    from speedo.engines.solver.scored_nets import check_tests, read_tests, read_training
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
    training = read_training(spec) if int8 else None
    for line in spec.left_out:
        note(f"left out: {line}")
    spec = replace(spec, python_layers=config.python_modules)
    read = [spec] if training is None else [spec, training]
    for one in read:
        fetch_sources(one, config.data_root, note)
        dataset = preparable_dataset(one)
        if dataset is not None:
            make_dataset(root, dataset, note)
    check_tests(spec)
    for one in read:
        convert_databases(one, note)
    return spec, training


class _Progress(StatusLine):
    """How far the batches are."""

    def note(self, text: str) -> None:
        super().note(f"speedo: {text}")

    def begin(self, model: ScoredModel, batches: int) -> None:
        self._model, self._done, self._all = model.path.name, 0, batches

    def passed(self) -> None:
        self._done += 1
        name = clean_text(self._model, MOST_NAME)
        self.show(f"{name}: {self._done:,} of {self._all:,} batches")
