"""The command line: parse, validate, one call each. Results go to standard output, the rest to standard error."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from speedo.cli import databases
from speedo.cli.compare import compare
from speedo.cli.control import scale, status, stop
from speedo.cli.data import data
from speedo.cli.doctor import doctor, with_port
from speedo.cli.launch import launch, launch_host
from speedo.cli.plan import plan
from speedo.cli.report import report
from speedo.cli.run_options import (
    FILE,
    GroupedCommand,
    WorkerCommand,
    checked_cores,
    checked_device,
    checked_threads,
    host_options,
    logs_option,
    master_options,
    options_named,
    ray_options,
    run_options,
    token_option,
)
from speedo.cli.say import say
from speedo.cli.score import score
from speedo.cli.template import template
from speedo.cli.topology import topology
from speedo.cli.unforeseen import traceback_kept, unforeseen
from speedo.cli.watch import watch
from speedo.config.formats import parse_phase
from speedo.config.run_config import LARGEST_WORKERS, RunConfig, make_config
from speedo.errors import ConfigError, SpeedoError
from speedo.messages import AT_MAX_ITER
from speedo.monitor.console import ErrorConsole, Progress, unread
from speedo.redaction import hide_secrets
from speedo.remote.uris import uri_of
from speedo.system.cores import Bind
from speedo.version import VERSION

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
MISPLACED: Final = 4  # the status of a run whose outputs are not all in its directory

if TYPE_CHECKING:  # what a run needs takes a second to import, and a mistake is told before
    from speedo.run.result import RunResult


_NOBODY_READS: Final = (errno.EPIPE, errno.EIO)  # `| head`, a closed terminal
# 128 and the number of the signal, as shells have it
_STATUS_OF_SIGNAL: Final = {
    "stopped by Ctrl-C": 130,
    "stopped by SIGTERM": 143,
    "stopped by SIGHUP": 129,
}


class Commands(click.Group):
    """Prints one clear message for every error that a user can fix."""

    def main(self, *args: Any, **extra: Any) -> Any:
        _open_closed_streams()
        _escape_what_cannot_be_written()
        try:
            # In this mode click hands the status of --help and --version back.
            status = super().main(
                *args, **{"prog_name": "speedo", **extra, "standalone_mode": False}
            )
            print(end="", flush=True)
            return status
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _complain(_usage(error))
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            _complain("stopped by Ctrl-C")
            sys.exit(130)
        except ConfigError as error:
            _complain(*error.problems)
            sys.exit(error.exit_code)
        except SpeedoError as error:
            _end_with(error)
        except OSError as error:
            if error.errno in (*_NOBODY_READS, *NO_ROOM):
                unread(1)
            if error.errno in NO_ROOM:
                _complain(
                    f"{error.filename or 'standard output'} cannot be written: {error.strerror}; make room or make "
                    "it writable, and try again"
                )
                sys.exit(1)
            if error.errno == errno.ENAMETOOLONG:
                _complain(
                    f"{str(error.filename)[:60]}... is no path: {error.strerror}; give a shorter one"
                )
                sys.exit(2)
            if error.errno in NO_FILES:
                _complain(f"{error.strerror}: raise the limit with `ulimit -n` and try again")
                sys.exit(1)
            if error.errno not in _NOBODY_READS:  # whoever read our pages has seen enough
                _end_with(unforeseen(error))
        except Exception as error:
            _end_with(unforeseen(error))


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(VERSION, prog_name="speedo", message="%(prog)s %(version)s")
def main() -> None:
    """Train one Caffe model with many workers.

    \b
    On one machine:   speedo train SOLVER --mode easgd --workers 4
    On several:       speedo master SOLVER --mode easgd --workers 3 --host ADDRESS
                      speedo worker --master ADDRESS     (on each other machine)
                      speedo launch CLUSTER.yaml SOLVER  (all of it over ssh)

    SOLVER is an ordinary solver.prototxt. Left out, it is $SPEEDO_SOLVER, or else the bundled LeNet on
    Fashion-MNIST. Modes: sync, async, partial (bounded staleness), weed-out, easgd (elastic averaging),
    hybrid (phases of the others). Each command has its own --help.
    """


@main.command(cls=GroupedCommand, short_help="Train on this machine, with workers on its cores.")
@run_options
@ray_options
def train(**options: Any) -> None:
    """Train on this machine: master, workers and Redis are started and stopped for you.

    With --ray the workers are actors on the nodes of a Ray cluster, of which this machine is one.

    SOLVER is a solver.prototxt; left out, it is $SPEEDO_SOLVER, or else the bundled LeNet on Fashion-MNIST.
    The last line of the output is the path of the trained .caffemodel.
    """

    def launch(config: RunConfig, watch: Progress) -> RunResult:
        from speedo.actors import launch as launcher

        return (launcher.train if config.ray is None else launcher.train_on_ray)(config, watch)

    _run(launch, options)


@main.command(cls=GroupedCommand, short_help="Train with workers that join from other machines.")
@run_options
@master_options
def master(token_file: Path | None, **options: Any) -> None:
    """Wait for workers from other machines, train with them, test, export, stop.

    On each node run `speedo worker --master ADDRESS` with the same token file (mode 0600).
    """

    def launch(config: RunConfig, watch: Progress) -> RunResult:
        from speedo.actors import launch as launcher

        return launcher.serve_master(config, watch, token_file)

    _run(launch, options)


@main.command(cls=WorkerCommand, short_help="Join a master with workers of this machine.")
@click.option(
    "--master", "address", required=True, metavar="HOST[:PORT]", help="Address of the master."
)
@click.option(
    "--workers",
    type=click.IntRange(1, LARGEST_WORKERS),
    default=1,
    show_default=True,
    metavar="N",
    help="Workers to run here.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for the master.",
)
@host_options
@click.option(
    "--cores",
    multiple=True,
    metavar="SOCKET:CORES",
    help="Bind a worker to exactly these cores, as in 0:0-3; once for each worker, instead of --bind.",
)
@options_named("data_root")
@token_option
@logs_option
def worker(
    address: str,
    workers: int,
    timeout: float,
    threads: str | None,
    bind: Bind | None,
    device: str | None,
    cores: tuple[str, ...],
    data_root: Path | None,
    token_file: Path | None,
    logs: Path | None,
) -> None:
    """Join a master with one or more workers until its run ends."""
    from speedo.actors.join.worker_command import serve_worker
    from speedo.doctor import Request, require

    checked = checked_threads(threads)
    bound = checked_cores(cores, workers)
    device = checked_device(device)
    request = Request(master=with_port(address), workers=workers, threads=checked)
    require(request)
    with Progress(ErrorConsole()) as watch:
        status = serve_worker(
            with_port(address),
            workers,
            watch,
            timeout_s=timeout,
            data_root=data_root,
            token_file=token_file,
            threads=threads,
            bind=bind,
            cores=bound,
            device=device,
            logs=logs,
        )
    say(f"the run is over at iteration {status.iteration}")


@main.command(short_help="Join a master to keep a part of its center, without training.")
@click.option(
    "--master", "address", required=True, metavar="HOST[:PORT]", help="Where the master runs."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for the master.",
)
@click.option(
    "--token-file", type=FILE, help="The shared secret.  [default: ~/.config/speedo/token]"
)  # fmt: skip
@logs_option
def server(address: str, timeout: float, token_file: Path | None, logs: Path | None) -> None:
    """Join a master that was started with --servers, serve a range of its center, and leave when its run ends."""
    from speedo.actors.join.worker_command import serve_worker
    from speedo.doctor import Request, require

    require(Request(master=with_port(address)))
    with Progress(ErrorConsole()) as watch:
        status = serve_worker(
            with_port(address),
            0,
            watch,
            timeout_s=timeout,
            data_root=None,
            token_file=token_file,
            logs=logs,
        )
    say(f"the run is over at iteration {status.iteration}")


for command in (databases.split, databases.check, databases.convert):
    data.add_command(command)

for command in (
    launch,
    launch_host,
    data,
    status,
    stop,
    scale,
    doctor,
    plan,
    compare,
    report,
    score,
    topology,
    template,
    watch,
):
    main.add_command(command)


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output", "-o", type=FILE, help="Picture to write: .png, .pdf, .svg.  [default: RUN/run.png]"
)
def plot(runs: tuple[Path, ...], output: Path | None) -> None:
    """Draw one or several RUNS: loss, accuracy, images/s and staleness, in one picture."""
    from speedo.monitor.plot import draw

    say(draw(runs, output or runs[0] / "run.png"))


def _run(launch: Callable[[RunConfig, Progress], RunResult], options: dict[str, Any]) -> None:
    """Make the configuration, run, and print what came out."""
    from speedo.doctor import require_for
    from speedo.run.engine_choice import with_engine

    file = options.pop("config_file")
    phases = options.pop("phases")
    if phases:
        options["phases"] = [parse_phase(text) for text in phases]
    if (uri := uri_of(options.get("resume"))) is not None:
        from speedo.run.remote_inputs import fetch_run

        options["resume"] = fetch_run(uri, options.pop("run_dir"), _complain)
    config = with_engine(make_config(options, file=file), lambda line: say(line, err=True))
    require_for(config)
    with Progress(ErrorConsole()) as watch, traceback_kept(lambda: watch.run_dir):
        result = launch(config, watch)
    accuracy = "no test net" if config.final_test else "not tested at the end"
    if result.accuracy is not None:
        accuracy = f"test accuracy {result.accuracy:.4f}"
    if result.test_problem:
        accuracy = f"no test result: {result.test_problem}"
    if not result.complete:
        _complain(_why_not_complete(result))
    if result.warning:
        _complain(f"warning: {result.warning}")
    try:
        say(
            f"{accuracy} after {result.iteration} iterations, {result.images_per_s:,.0f} images/s, "
            f"{result.seconds:.1f} s of training{_how_it_ended(result)}\n{result.model}"
        )
    except OSError as error:
        unread(1)  # result.json holds it too, and the status still counts
        if error.errno not in _NOBODY_READS:
            raise
    _complain(*result.problems)
    if result.problems:
        sys.exit(MISPLACED)
    if not result.complete:
        sys.exit(_STATUS_OF_SIGNAL.get(result.reason, 3))


def _how_it_ended(result: RunResult) -> str:
    """A rule that ended the run, and the best model; nothing for a run that reached its last iteration."""
    text = ""
    if result.complete and not result.reason.startswith(AT_MAX_ITER):
        text = f"; {result.reason}"
    if (best := result.best) is not None:
        text += f"\nbest {best['output']} {best['value']:.4f} at iteration {best['iteration']}: {best['model']}"
    return text


def _why_not_complete(result: RunResult) -> str:
    if result.reason == result.test_problem:
        return (
            f"the last test failed: {result.test_problem}; the model is trained to its end and exported, but nobody "
            "has tested it"
        )
    return f"the run ended early: {result.reason}"


def _usage(error: click.ClickException) -> str:
    """Click's message as one sentence that names the help page."""
    text = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    page = f"; see `{context.command_path} --help`" if context is not None else ""
    return text[:1].lower() + text[1:] + page


def _end_with(error: SpeedoError) -> NoReturn:
    _complain(str(error))
    sys.exit(error.exit_code)


def _complain(*problems: str) -> None:
    try:
        for problem in problems:
            # Indented, so that no name of a file with an end of line in it speaks in our name.
            say(f"speedo: {hide_secrets(problem)}".replace("\n", "\n  "), err=True)
    except OSError:
        unread(2)


def _escape_what_cannot_be_written() -> None:
    """Escape characters that the terminal's encoding does not have; printing them must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _open_closed_streams() -> None:
    """Open /dev/null for a standard stream that was closed; the next file opened would get its descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
