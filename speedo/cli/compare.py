"""`speedo compare`: which mode is the right one for a model."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from click.core import ParameterSource

from speedo.cli.own_scripts import FIXED
from speedo.cli.own_scripts import OPTIONS as OF_SCRIPTS
from speedo.cli.page import PagedCommand
from speedo.cli.run_options import PATH, options_named
from speedo.cli.say import complain, say
from speedo.cli.units import parse_workers
from speedo.errors import ConfigError
from speedo.system.bounds import said
from speedo.system.workplace import check_names
from speedo.watch.console import StatusLine

if TYPE_CHECKING:
    from speedo.study.comparison.compare import Comparison
    from speedo.watch.report.figures import Figures

SCRIPT: Final = ".py"  # how the name of a script ends
PASSED_ON: Final = (
    "batch", "lr", "momentum", "weight_decay", "engine", "device", "precision", "data_root", "ignore_unknown",
)  # fmt: skip
_IN_SIGHT: Final = (
    *("modes", "workers", "epochs", "seeds", "sweeps", "out", "dry_run", "batch", "lr"),
    *("engine", "device"),
)
NOT_FOR_SCRIPTS: Final = ("epochs", "longer", "tests", *PASSED_ON)


class CompareCommand(PagedCommand):
    """Behind a script stand its own arguments, as in `speedo run`; behind a solver may stand our options."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        context.allow_interspersed_args = not any(word.endswith(SCRIPT) for word in args)
        return super().parse_args(context, args)


@click.command(cls=CompareCommand, in_sight=_IN_SIGHT)
@click.argument("solver", required=False, type=PATH)
@click.argument("arguments", nargs=-1)
@click.option(
    "--modes", default="all", show_default=True, metavar="MODE[+RULE][,MODE[+RULE]...]",
    help="Modes to compare, each with its default rule or another one, as in async,async+delay-compensated; both may "
    "be package.module:Class. all: every mode but hybrid.",
)  # fmt: skip
@click.option(
    "--workers",
    default="2",
    show_default=True,
    metavar="N[,N...]",
    help="Numbers of workers: 2,3,4 or 1..4.",
)
@click.option(
    "--epochs", type=click.FloatRange(0, 1e6, min_open=True), default=2.0, show_default=True, metavar="E",
    help="Epochs of sequential Caffe.",
)  # fmt: skip
@click.option(
    "--longer", type=click.FloatRange(1, 10), default=1.25, show_default=True, metavar="F",
    help="Train the modes F times as long, so that slower ones reach the loss too. With lr_policy poly, whose rates "
    "depend on max_iter, F is 1.",
)  # fmt: skip
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    metavar="K",
    help="Repeat all with K seeds.",
)
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="OPTION=VALUE[,VALUE...]",
    help="Train with each of these values of an option of a run; repeat for more options, as in --sweep "
    "local_steps=1,5,10 --sweep moving_rate=0.3,0.9. Modes that do not use an option are trained without it.",
)  # fmt: skip
@click.option(
    "--tests", type=click.IntRange(0, 1000), default=1, show_default=True, metavar="N",
    help="Tests in each epoch; 0: one at the end.",
)  # fmt: skip
@click.option(
    "--loss", "measure", type=click.Choice(("train", "test")), default="train", show_default=True,
    help="Compare by the training loss, averaged over an epoch, or by the test net's loss.",
)  # fmt: skip
@click.option(
    "-o", "--output", "--out", "out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Folder of the comparison.  [default: runs/compare-NAME, by the solver's folder]",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="List the runs and their estimated time, and start none."
)
@options_named(*PASSED_ON)
def compare(
    solver: Path | None,
    arguments: tuple[str, ...],
    modes: str,
    workers: str,
    epochs: float,
    longer: float,
    seeds: int,
    sweeps: tuple[str, ...],
    tests: int,
    measure: Literal["train", "test"],
    out: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Train with sequential Caffe and with every mode, one run after another, and report how they learn.

    For each mode the report has the epochs to the final loss of sequential Caffe, the throughput, and the product of
    both factors: the speed-up to equal loss. If there are more workers than cores, the throughput is predicted, as by
    `speedo plan`, and marked as predicted; epochs are always measured with real workers.

    DIR gets report.html (with .png and .csv), compare.json with all figures, and a folder for each run. Ctrl-C ends the
    current run; the same command continues with it, and skips finished runs.

    \b
    speedo compare my/solver.prototxt --workers 2,4
    speedo compare --workers 2 --modes sync,easgd train.py --epochs 3

    The arguments after a script (see `speedo run`) are the script's. It is trained with one worker first; the final
    loss of that run is the one to reach. --sweep takes the options of `speedo run`.
    """
    from speedo.run.chosen_solver import chosen_solver
    from speedo.study.comparison import script_runs
    from speedo.study.comparison.compare import prepared
    from speedo.study.comparison.wish import (
        ComparisonWish,
        ScriptWish,
        declared_by,
        parse_modes,
        parse_sweep,
    )
    from speedo.watch.report.tables import as_text

    for name, number in (("epochs", epochs), ("longer", longer)):
        if math.isnan(number):
            raise ConfigError(f"--{name} is nan; use a number")
    chosen = parse_modes(modes)
    swept = [parse_sweep(text, chosen) for text in sweeps]
    if len(dict(swept)) < len(swept):
        raise ConfigError(
            "--sweep names an option twice; give all its values at once, as in local_steps=1,5"
        )
    if solver is not None and solver.suffix == SCRIPT:
        script = (str(solver.absolute()), *arguments)
        own = declared_by(chosen)
        others = [name for name, _ in swept if name not in own]
        _refuse_for_script(click.get_current_context(), measure, others)
        script_wish = ScriptWish(script, chosen, parse_workers(workers), seeds, dict(swept))
        folder = out or Path("runs") / f"compare-{solver.stem}"
        scripts = script_runs.prepared(script_wish, folder, FIXED)
        if dry_run:
            for run in scripts.runs:
                say(run.name)
            return
        return _make(scripts, folder, StatusLine(), script_runs.as_text)
    if arguments:
        raise ConfigError(f"{said(arguments[0])} is one argument too many: give one solver")
    path = chosen_solver(solver).absolute()
    check_names({"the solver": path, "the data root": options.get("data_root"), "--output": out})
    given = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    if "data_root" in given:
        given["data_root"] = str(Path(given["data_root"]).absolute())
    wish = ComparisonWish(
        chosen,
        parse_workers(workers),
        epochs,
        seeds,
        dict(swept),
        given,
        tests,
        longer,
        measure,
        str(path),
    )
    folder = out or Path("runs") / f"compare-{path.parent.name}"
    watch = StatusLine()
    comparison = prepared(wish, folder, watch.note)
    if dry_run:
        estimates = comparison.estimates(watch.note)
        for run, seconds in zip(comparison.runs, estimates, strict=True):
            took = "not known" if seconds is None else f"{seconds:,.0f} s"
            say(f"{run.name:45} {run.max_iter:>9,} iterations  {took:>9}")
        known = [seconds for seconds in estimates if seconds is not None]
        say(f"{len(comparison.runs)} runs, some {sum(known) / 60:,.0f} minutes on this machine")
        return
    _make(comparison, folder, watch, as_text)


def _refuse_for_script(context: click.Context, measure: str, swept: Sequence[str]) -> None:
    """Raises `ConfigError` for options that only runs of solvers have."""
    problems = []
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in NOT_FOR_SCRIPTS
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        problems.append(
            f"{', '.join(given)}: a script decides that itself; give it its own arguments, behind its name"
        )
    if measure == "test":
        problems.append("--loss test: the runs of a script are compared by their training loss")
    problems += [
        f"--sweep {name}: `speedo run` has no --{name.replace('_', '-')}; see its --help"
        for name in swept
        if name not in OF_SCRIPTS
    ]
    if problems:
        raise ConfigError(problems)


def _make(
    comparison: Comparison, folder: Path, watch: StatusLine, as_text: Callable[[Figures], str]
) -> None:
    """Make the runs, and print their table; status 1 if one of them failed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with watch:
        try:
            figures = comparison.make(watch)
        except KeyboardInterrupt:
            watch.note("stopped; the same command continues from here")
            raise
    if figures is not None:
        from speedo.watch.report.picture import why_none

        say(as_text(figures))
        say(folder / "report.html")
        if words := why_none():
            complain(words)
    complain(*comparison.problems)
    if comparison.problems:
        sys.exit(1)
