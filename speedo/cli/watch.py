"""`speedo watch`: a run, live, in the terminal or as a page."""

from __future__ import annotations

import secrets
from typing import Final

import click
from rich.console import Console

from speedo.cli.control import run_argument, run_dir_of
from speedo.cli.say import say
from speedo.watch.live.live_run import LiveRun
from speedo.watch.live.terminal import watch as watch_in_terminal

OPEN: Final = (
    "warning: anyone with this URL can read the page and stop the run from other machines, and nothing is encrypted: "
    "use it in a network that you trust, or leave --host out and use `ssh -L`"
)


@click.command()
@run_argument
@click.option("--web", is_flag=True, help="Serve a page instead, and print its URL.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="With --web: the port.  [default: any free one]",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    help="With --web: the address to listen on.  [default: 127.0.0.1, this machine alone]",
)
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="S",
    help="Without --web: seconds between two updates.",
)  # fmt: skip
def watch(run: str | None, web: bool, port: int | None, host: str | None, interval: float) -> None:
    """Watch a run: curves of loss and test outputs, each worker with its state, speed, staleness and last death.

    RUN is a run directory, or the first characters of the id of a run on this machine; without it, the only
    one in progress. A run that has ended is shown in its last state. Ctrl-C ends only this command.

    With --web the page continues when the run is resumed. Its buttons stop the run and change the number of workers.
    Anyone with the printed URL can use them: keep it secret.

    \b
    speedo watch
    speedo watch runs/20250101-120000-sync-1a2b
    speedo watch --web --port 8000

    Exit status: 0 once the run has ended, 1 if there is no such run; with --web 130, after Ctrl-C.
    """
    if not web and (port is not None or host is not None):
        raise click.UsageError("--port and --host are for the page: give --web, too")
    live = LiveRun(run_dir_of(run))
    if not web:
        watch_in_terminal(live, Console(), interval)
        return
    from speedo.watch.live.server import LOOPBACK, listen, server_of, url_of
    from speedo.watch.own_names import is_loopback

    address = host or LOOPBACK
    token = secrets.token_urlsafe(24)
    with listen(address, port or 0) as listening, live:
        if not is_loopback(address):
            say(f"speedo: {OPEN}", err=True)
        say(url_of(address, listening.getsockname()[1], token))
        say("speedo: Ctrl-C ends the page, not the run", err=True)
        server_of(live, address, token).run(sockets=[listening])
