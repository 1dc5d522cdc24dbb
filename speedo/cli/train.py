"""`speedo train` and `speedo master`, and how every command that trains runs and prints what came out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from speedo.cli.doctor import with_port
from speedo.cli.own_scripts import options_of_own
from speedo.cli.run_options import (
    IN_SIGHT,
    RunCommand,
    master_options,
    ray_options,
    run_options,
    under,
)
from speedo.cli.say import complain, say
from speedo.cli.unforeseen import traceback_kept
from speedo.data.remote.uris import uri_of
from speedo.errors import ConfigError
from speedo.master.reasons import AT_MAX_ITER
from speedo.run.config.formats import parse_phase
from speedo.run.config.run_config import MASTER, make_config
from speedo.run_dir.checkpoint_file import checkpoints_in
from speedo.run_dir.directory import CHECKPOINTS
from speedo.run_dir.read_back import counted_for
from speedo.sgd_modes.conditions import name_of_score
from speedo.system.standard_streams import NOBODY_READS, unread
from speedo.watch.scores import short_scores

if TYPE_CHECKING:  # what a run needs takes a second to import, and a mistake is reported before
    from speedo.run.result import RunResult

_OF_A_MASTER: Final = ("own", "port", "token_file")
_OF_A_STANDBY: Final = ("host", "port", "run_dir", "data_root", "timeout")
MISPLACED: Final = 4  # the status of a run whose outputs are not all in its directory
# 128 and the number of the signal, as shells have it
_STATUS_OF_SIGNAL: Final = {
    "stopped by Ctrl-C": 130,
    "stopped by SIGTERM": 143,
    "stopped by SIGHUP": 129,
}


@click.command(cls=RunCommand, in_sight=IN_SIGHT)
@run_options
@ray_options
@master_options
def train(token_file: Path | None, **options: Any) -> None:
    """Train on this machine. Master, workers and Redis are started and stopped for you.

    SOLVER is a solver.prototxt. Without it, $SPEEDO_SOLVER is trained, or the bundled LeNet on Fashion-MNIST. The last
    line of the output is the path of the trained .caffemodel. With --host workers join from other machines, as with
    `speedo master`. With --ray workers are actors of a Ray cluster; this machine must be one of its nodes.
    """
    serves = options["host"] is not None
    if not serves:
        _refuse({**options, "token_file": token_file}, _OF_A_MASTER, "give --host ADDRESS, too")
    run_with(options, token_file, serves=serves)


@click.command(cls=RunCommand, in_sight=(*IN_SIGHT, "port", "token_file", "own", "standby"))
@run_options
@master_options
@under(
    MASTER,
    "--standby",
    metavar="HOST[:PORT]",
    help="Follow the run of the master at this address, which was started with --redis URL, into a directory of this "
    "machine, and go on with it as its master once that one is gone. All other options are that master's, but for "
    "--host, --port, --run-dir, --data-root, --timeout and --token-file.",
)
def master(token_file: Path | None, standby: str | None, **options: Any) -> None:
    """Train with workers that join from other machines; the same as `speedo train --host ADDRESS`.

    On each node run `speedo worker --master ADDRESS` with the same token file (mode 0600). With --own there is no
    SOLVER: each node starts a script, with `speedo worker --master ADDRESS -- python train.py`.
    """
    if standby is None:
        run_with(options, token_file, serves=True)
    else:
        _follow(with_port(standby, "--standby"), options, token_file)


def _follow(address: str, options: dict[str, Any], token_file: Path | None) -> None:
    """Be the standby of the master at this address."""
    from speedo.watch.console import ConsoleProgress, ErrorConsole

    others = [name for name in options if name not in _OF_A_STANDBY]
    _refuse(
        options,
        others,
        "with --standby the run is another master's, and has its options: leave out",
    )
    given = {name: options[name] for name in _OF_A_STANDBY if options[name] is not None}
    make_config(given)  # checks their values
    with ConsoleProgress(ErrorConsole()) as watch, traceback_kept(lambda: watch.run_dir):
        from speedo.actors.standby import NeverNeeded, serve_standby

        patience = given.pop("timeout", None)
        more = {} if patience is None else {"timeout_s": patience}
        result = serve_standby(address, watch, token_file=token_file, **given, **more)
    if isinstance(result, NeverNeeded):
        say(f"the run is over, and was ended by its own master; its directory is\n{result.run_dir}")
    else:
        _print(result)


def run_with(
    options: dict[str, Any], token_file: Path | None = None, *, serves: bool = False
) -> None:
    """Make the configuration, run, and print what came out. `serves`: workers join from other machines."""
    from speedo.study.doctor import require_for
    from speedo.watch.console import ConsoleProgress, ErrorConsole

    if serves:
        _refuse(
            options, ("ray",), "a Ray cluster starts the workers itself: leave --host or --ray out"
        )
        options = options_of_own(options) if options["own"] else options
    file = options.pop("config_file", None)
    phases = options.pop("phases")
    if phases:
        options["phases"] = [parse_phase(text) for text in phases]
    if (uri := uri_of(options.get("resume"))) is not None:
        from speedo.run.remote_inputs import fetch_run

        options["resume"] = fetch_run(uri, options.pop("run_dir"), complain)
    config = make_config(options, file=file)
    require_for(config)
    with ConsoleProgress(ErrorConsole()) as watch, traceback_kept(lambda: watch.run_dir):
        from speedo.actors import launch

        if serves:
            result = launch.serve_master(config, watch, token_file)
        else:
            result = (launch.train if config.ray is None else launch.train_on_ray)(config, watch)
    untested = "no test" if config.final_test else "not tested at the end"
    _print(result, "trained" if config.own else untested, scores=not config.own)


def _print(result: RunResult, accuracy: str = "not tested", *, scores: bool = True) -> None:
    """Print what came out, and end with the status that says it; `accuracy` where there is none.

    Without an accuracy, the test's other outputs stand there, unless `scores` are not wanted.
    """
    if result.accuracy is not None:
        accuracy = f"test {name_of_score(result.metrics)} {result.accuracy:.4f}"
    elif result.metrics and scores:
        accuracy = ", ".join(
            f"{name} {one:.4f}" for name, one in short_scores(result.metrics).items()
        )
    if result.test_problem:
        accuracy = f"no test result: {result.test_problem}"
    if not result.complete:
        complain(f"{_why_not_complete(result)}{_way_on(result)}")
    if result.warning:
        complain(f"warning: {result.warning}")
    counted = counted_for(result.model)
    try:
        say(
            f"{accuracy} after {result.iteration} iterations, {result.images_per_s:,.0f} {counted}/s, "
            f"{result.seconds:.1f} s of training{_how_it_ended(result)}\n{result.model}"
        )
    except OSError as error:
        unread(1)  # result.json holds it too, and the status still counts
        if error.errno not in NOBODY_READS:
            raise
    complain(*result.problems, *result.script_failures)
    if result.problems:
        sys.exit(MISPLACED)
    if not result.complete:
        sys.exit(_STATUS_OF_SIGNAL.get(result.reason, 3))
    if result.script_failures:
        sys.exit(1)


def _refuse(options: Mapping[str, Any], names: Sequence[str], remedy: str) -> None:
    given = [_flag(name) for name in names if options.get(name)]
    if given:
        raise ConfigError(f"{', '.join(given)}: {remedy}")


def _flag(name: str) -> str:
    return "SOLVER" if name == "solver" else f"--{name.replace('_', '-')}"


def _how_it_ended(result: RunResult) -> str:
    """A rule that ended the run, and the best model; nothing for a run that reached its last iteration."""
    text = ""
    if result.complete and not result.reason.startswith(AT_MAX_ITER):
        text = f"; {result.reason}"
    if (best := result.best) is not None:
        text += f"\nbest {best['output']} {best['value']:.4f} at iteration {best['iteration']}: {best['model']}"
    return text


def _way_on(result: RunResult) -> str:
    """How a run continues that a signal has ended."""
    kept = checkpoints_in(Path(result.run_dir) / CHECKPOINTS)
    return (
        f"; continue with --resume {result.run_dir}"
        if result.reason in _STATUS_OF_SIGNAL and kept
        else ""
    )


def _why_not_complete(result: RunResult) -> str:
    if result.reason == result.test_problem:
        return f"the last test failed: {result.test_problem}; the model is trained and exported, but not tested"
    return f"the run ended early: {result.reason}"
