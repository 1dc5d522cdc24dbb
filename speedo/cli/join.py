"""`speedo worker` and `speedo server`: join a master."""

from __future__ import annotations

from pathlib import Path

import click

from speedo.cli.doctor import with_port
from speedo.cli.own_scripts import checked_command
from speedo.cli.run_options import (
    FILE,
    WorkerCommand,
    checked_cores,
    checked_device,
    checked_threads,
    host_options,
    logs_option,
    options_named,
    token_option,
)
from speedo.cli.say import say
from speedo.config.run_config import LARGEST_WORKERS
from speedo.system.cores import Bind

timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for the master.",
)


@click.command(cls=WorkerCommand)
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
@timeout_option
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
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
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
    command: tuple[str, ...],
) -> None:
    """Join a master with one or more workers until its run ends.

    For a master that was started with --own each worker is a process of COMMAND, a script that calls speedo.join, in
    this working directory. `python` is the Python that has SpeeDO here.

    
    speedo worker --master 10.0.0.5 --workers 4
    speedo worker --master 10.0.0.5 --workers 4 -- python train.py --epochs 3
    """
    from speedo.actors.join.worker_command import serve_worker
    from speedo.doctor import Request, require
    from speedo.monitor.console import ErrorConsole, Progress

    checked = checked_threads(threads)
    bound = checked_cores(cores, workers)
    device = checked_device(device)
    words = checked_command(command)
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
            command=words,
        )
    say(f"the run is over at iteration {status.iteration}")


@click.command()
@click.option(
    "--master", "address", required=True, metavar="HOST[:PORT]", help="Where the master runs."
)
@timeout_option
@click.option(
    "--token-file", type=FILE, help="The shared secret.  [default: ~/.config/speedo/token]"
)  # fmt: skip
@logs_option
def server(address: str, timeout: float, token_file: Path | None, logs: Path | None) -> None:
    """Join a master that was started with --servers, serve a range of its center, and leave when its run ends."""
    from speedo.actors.join.worker_command import serve_worker
    from speedo.doctor import Request, require
    from speedo.monitor.console import ErrorConsole, Progress

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
