"""The command line: parse, validate, one call each. Results go to standard output, the rest to standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

import speedo
from speedo.config import DEFAULT_PORT, MODES, RunConfig, make_config, parse_phase
from speedo.errors import ConfigError, SpeedoError

Function = TypeVar("Function", bound=Callable[..., Any])
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


class Commands(click.Group):
    """Ends with one clear message for every mistake that a user can mend."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            click.echo("stopped by Ctrl-C", err=True)
            sys.exit(130)
        except ConfigError as error:
            for problem in error.problems:
                click.echo(f"speedo: {problem}", err=True)
            sys.exit(error.exit_code)
        except SpeedoError as error:
            click.echo(f"speedo: {error}", err=True)
            sys.exit(error.exit_code)


def _options(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


run_options = _options(
    click.argument("solver", required=False, type=FILE),
    click.option("--config", "config_file", type=FILE, help="YAML file with any of these options."),
    click.option("--mode", type=click.Choice(MODES), help="How workers are merged.  [default: sync]"),
    click.option("--workers", type=int, metavar="N", help="Workers to train with.  [default: 2]"),
    click.option(
        "--phase", "phases", multiple=True, metavar="MODE:ITERATIONS[,OPTION=VALUE...]",
        help="A phase of --mode hybrid; repeat it. Phases follow each other and start again.",
    ),
    click.option("--max-iter", type=int, metavar="N", help="Iterations, counted as Caffe does: samples / batch."),
    click.option("--test-interval", type=int, metavar="N", help="Test every N iterations; 0 only at the end."),
    click.option("--moving-rate", type=float, metavar="A", help="Elastic averaging's alpha.  [default: 0.9 / workers]"),
    click.option("--max-advance", type=int, metavar="N", help="partial: turns ahead of the slowest.  [default: 2]"),
    click.option("--window", type=int, metavar="N", help="weed-out: staleness that is too high.  [default: 3]"),
    click.option("--local-steps", type=int, metavar="N", help="Solver steps between exchanges (tau).  [default: 1]"),
    click.option(
        "--delta-scale", type=float, metavar="F",
        help="Factor on every merged delta.  [default: min(1, 2 / workers); sync: 1]",
    ),
    click.option(
        "--server-gradient/--no-server-gradient", default=None,
        help="Workers send raw gradients; the master applies the solver's update.  [default: off]",
    ),
    click.option("--weights", type=FILE, help="Start from this .caffemodel."),
    click.option("--lr", type=float, help="Instead of the solver's base_lr."),
    click.option("--momentum", type=float, help="Instead of the solver's."),
    click.option("--weight-decay", type=float, help="Instead of the solver's."),
    click.option("--batch", type=int, metavar="N", help="Instead of the train net's batch_size."),
    click.option(
        "--split-batch/--whole-batch", default=None,
        help="Divide the batch over the workers, or give it to each.  [default: divide in sync and hybrids with sync]",
    ),
    click.option("--seed", type=int, help="Seed of weights and data layers."),
    click.option("--redis", metavar="URL", help="Your own Redis; its password may come in SPEEDO_REDIS_PASSWORD."),
    click.option("--timeout", type=float, metavar="S", help="Seconds to wait for workers and answers.  [default: 120]"),
    click.option("--join-timeout", type=float, metavar="S", help="Seconds to go on without workers.  [default: --timeout]"),
    click.option("--min-workers", type=int, metavar="N", help="Stand still below so many workers.  [default: 1]"),
    click.option("--data-root", type=FOLDER, help="Where relative data paths are tried last."),
    click.option("--run-dir", type=FOLDER, help="What the run leaves goes here.  [default: runs/TIME-MODE]"),
)  # fmt: skip


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(speedo.__version__, prog_name="speedo")
def main() -> None:
    """Train one Caffe model with many workers.

    \b
    On one machine:   speedo train SOLVER --mode easgd --workers 4
    On several:       speedo master SOLVER --mode easgd --workers 3
                      speedo worker --master HOST     (on each other machine)

    SOLVER is an ordinary solver.prototxt. Left out, it is $SPEEDO_SOLVER, or else the bundled LeNet on
    Fashion-MNIST. Modes: sync, async, partial (bounded staleness), weed-out, easgd (elastic averaging),
    hybrid (phases of the others).
    """


@main.command()
@run_options
def train(**options: Any) -> None:
    """Train on this machine: master, workers and Redis are started and stopped for you."""
    from speedo.actors import launcher

    _run(lambda config, watch: launcher.train(config, watch), options)


@main.command()
@run_options
@click.option(
    "--host", metavar="ADDRESS", help="Address of this machine to serve at.  [default: 127.0.0.1]"
)
@click.option("--port", type=int, help=f"Port that workers join at.  [default: {DEFAULT_PORT}]")
@click.option(
    "--token-file",
    type=FILE,
    help="The shared secret; made if missing.  [default: ~/.config/speedo/token]",
)
def master(token_file: Path | None, **options: Any) -> None:
    """Wait for workers from other machines, train with them, test, export, stop.

    On each node run `speedo worker --master ADDRESS` with the same token file (mode 0600).
    """
    from speedo.actors import launcher

    _run(lambda config, watch: launcher.serve_master(config, watch, token_file), options)


@main.command()
@click.option(
    "--master", "address", required=True, metavar="HOST[:PORT]", help="Where the master runs."
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Workers to run here."
)
@click.option(
    "--timeout",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds to wait for the master.",
)
@click.option(
    "--data-root", type=FOLDER, help="Where relative data paths are tried last on this node."
)
@click.option(
    "--token-file", type=FILE, help="The shared secret.  [default: ~/.config/speedo/token]"
)
def worker(
    address: str, workers: int, timeout: float, data_root: Path | None, token_file: Path | None
) -> None:
    """Join a master with one or more workers, and leave when its run ends."""
    from speedo.actors.membership import serve_worker
    from speedo.progress import Progress

    with Progress(Console(stderr=True)) as watch:
        status = serve_worker(
            _with_port(address),
            workers,
            watch,
            timeout_s=timeout,
            data_root=data_root,
            token_file=token_file,
        )
    click.echo(f"the run is over at iteration {status.iteration}")


def _run(launch: Callable[[RunConfig, Any], Any], options: dict[str, Any]) -> None:
    """Make the configuration, run, and print what came out."""
    from speedo.progress import Progress

    file = options.pop("config_file")
    phases = options.pop("phases")
    if phases:
        options["phases"] = [parse_phase(text) for text in phases]
    config = make_config(options, file=file)
    with Progress(Console(stderr=True)) as watch:
        result = launch(config, watch)
    accuracy = "no test net" if result.accuracy is None else f"test accuracy {result.accuracy:.4f}"
    if result.test_problem:
        accuracy = f"no test result: {result.test_problem}"
    click.echo(
        f"{accuracy} after {result.iteration} iterations, {result.images_per_s:,.0f} images/s, "
        f"{result.seconds:.1f} s of training\n{result.model}"
    )
    if result.complete:
        return
    click.echo(f"speedo: the run ended early: {result.reason}", err=True)
    sys.exit({"stopped by Ctrl-C": 130, "stopped by SIGTERM": 143}.get(result.reason, 3))


def _with_port(address: str) -> str:
    """HOST or HOST:PORT as HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return f"{address}:{DEFAULT_PORT}"
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ConfigError(
            f"--master {address} is not HOST or HOST:PORT; for example --master 10.0.0.5:{DEFAULT_PORT}"
        )
    return address


from speedo import data_cli  # noqa: E402

main.add_command(data_cli.data)
