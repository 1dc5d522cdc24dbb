"""`speedo worker` and `speedo server`, which is a worker's host with no worker: join a master."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from speedo.cli import original_options
from speedo.cli.doctor import with_port
from speedo.cli.own_scripts import checked_command
from speedo.cli.run_options import (
    FILE,
    RunCommand,
    checked_cores,
    checked_device,
    checked_threads,
    of_a_host,
    options_named,
)
from speedo.cli.say import say
from speedo.errors import ConfigError
from speedo.run.config.run_config import LARGEST_WORKERS
from speedo.system.machine_notice import CLOUDS

_OF_WORKERS: Final = ("threads", "bind", "device", "cores", "data_root", "command")


def _of_all(command: Any) -> Any:
    """The options of every host that joins."""
    for option in (
        click.option(
            "--logs", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
            help="Folder of this host's logs.  [default: a temporary folder, removed after a successful run]",
        ),
        click.option(
            "--leave-after", "leave_after_s", type=click.FloatRange(0, 1e6), default=0.0, show_default=True,
            metavar="S", help="Seconds to train on after SIGTERM, Ctrl-C or a notice, before the time of --grace: "
            "another host can join meanwhile.",
        ),
        click.option(
            "--grace", "grace_s", type=click.FloatRange(0, 1e6), default=25.0, show_default=True, metavar="S",
            help="Seconds to hand in results after SIGTERM or Ctrl-C; a second signal ends at once.",
        ),
        click.option(
            "--leave-on", metavar="CLOUD",
            help="Leave the run, within --grace seconds, when this cloud gives notice that the machine ends: aws, "
            "azure, google, or the URL of a page that is there then.",
        ),
        click.option(
            "--token-file", type=FILE, help="The shared secret.  [default: ~/.config/speedo/token]"
        ),
        click.option(
            "--timeout", "timeout_s", type=click.FloatRange(0, 1e6, min_open=True), default=120.0,
            show_default=True, metavar="S", help="Seconds to wait for the master.",
        ),
        click.option(
            "--master", "address", required=True, metavar="HOST[:PORT]", help="Address of the master."
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=RunCommand, translate=original_options.for_a_worker)
@_of_all
@click.option(
    "--workers",
    type=click.IntRange(0, LARGEST_WORKERS),
    default=1,
    show_default=True,
    metavar="N",
    help="Workers to run here; 0: serve a range of the center only, as `speedo server` does.",
)
@of_a_host("device", "threads", "bind")
@click.option(
    "--cores",
    multiple=True,
    metavar="SOCKET:CORES",
    help="Bind a worker to these cores, as in 0:0-3, instead of bind; repeat for each worker.",
)
@options_named("data_root")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
def worker(
    address: str,
    workers: int,
    threads: str | None,
    device: str | None,
    cores: tuple[str, ...],
    command: tuple[str, ...],
    leave_on: str | None,
    **options: Any,
) -> None:
    """Join a master with one or more workers until its run ends.

    If the master was started with --own, each worker is a process of COMMAND in this working directory, a script that
    calls speedo.join. `python` means the Python of this `speedo`.

    \b
    speedo worker --master 10.0.0.5 --workers 4
    speedo worker --master 10.0.0.5 --workers 4 -- python train.py --epochs 3

    Told to end by SIGTERM (Slurm, Kubernetes, systemd) or Ctrl-C, its workers end their turns after the present step,
    their results are merged, and the run continues without this host. The status is 143 or 130 then, so that Kubernetes
    starts another; after `speedo leave`, or a notice of --leave-on, it is 0.
    """
    from speedo.actors.join.worker_command import serve_worker
    from speedo.study.doctor import NodeRequest, require
    from speedo.watch.console import ConsoleProgress, ErrorConsole

    if not workers:
        typed = click.get_current_context().params
        if names := [name.replace("_", "-") for name in _OF_WORKERS if typed.get(name)]:
            raise ConfigError(
                f"{', '.join(names)}: with --workers 0 no worker uses it; leave it out"
            )
    address, checked = with_port(address), checked_threads(threads)
    given = {
        **options,
        "threads": threads,
        "device": checked_device(device),
        "cores": checked_cores(cores, workers),
        "command": checked_command(command),
        "leave_on": _checked_cloud(leave_on),
    }
    require(NodeRequest(master=address, workers=workers, threads=checked))
    with ConsoleProgress(ErrorConsole()) as watch:
        status = serve_worker(address, workers, watch, **given)
    if status is None:
        say("this host has left the run, which continues")
    else:
        say(f"the run is over at iteration {status.iteration}")


def _checked_cloud(cloud: str | None) -> str | None:
    if cloud in (None, *CLOUDS) or re.match(r"https?://[^/]", cloud):
        return cloud
    raise ConfigError(
        f"--leave-on {cloud}: use {', '.join(CLOUDS)}, or the URL of a page that is there once the machine ends"
    )


@click.command()
@_of_all
@click.pass_context
def server(context: click.Context, /, **options: Any) -> None:
    """Join a master that was started with --servers, and serve a range of its center until its run ends."""
    context.invoke(worker, workers=0, bind=None, **options)
