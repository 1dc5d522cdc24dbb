"""`speedo logs`: all logs of a run as one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from speedo.cli.control import run_argument, run_dir_of
from speedo.cli.say import say
from speedo.errors import ClusterError
from speedo.run_dir.process_logs import ProcessLog, line_now, lines_of, logs_of, shown
from speedo.system.appended import AppendedLines
from speedo.watch.control_socket import leader_of
from speedo.watch.troubles import hosts_of

LOOK_S: Final = 0.3
HERE: Final = "here"  # the master's machine


@click.command()
@run_argument
@click.option(
    "--host",
    metavar="HOST",
    help="Only the processes of this host; `here` is the master's machine.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines until the run ends.")
def logs(run: str | None, host: str | None, follow: bool) -> None:
    """Print the logs of all processes of a run in the order of time: time, process and host stand before each line.

    RUN is a run directory, or the first characters of the id of a run on this machine; without it, the only one in
    progress. Times are exact to about 0.3 s; clocks of different hosts are not corrected.

    The logs of other hosts are in the run directory after a `speedo launch`, or a run on a Ray cluster, has ended. A
    host that was joined by `speedo worker` keeps its own, in the folder of its option --logs.

    \b
    speedo logs
    speedo logs runs/20250101-120000-sync-1a2b --host here
    speedo logs --follow

    Exit status: 0, or 1 if there is no such run.
    """
    folder = run_dir_of(run)
    wanted = "" if host == HERE else host
    found = logs_of(folder, wanted)
    if host is not None and not found:
        names = sorted({one.host or HERE for one in logs_of(folder)})
        raise ClusterError(
            f"{folder} has no log of host {host}: it has those of {', '.join(names)}. A host that joined by `speedo "
            "worker` keeps its logs itself, in the folder of its option --logs"
        )
    ends = dict.fromkeys(found, 0)
    for line in lines_of(found):
        if line.end or not follow:  # what is not whole comes again
            say(shown(line))
            ends[line.log] = line.end
    here = {one.host.partition("-")[0] for one in logs_of(folder)}
    if missing := {name.partition(":")[0] for name in hosts_of(folder)} - here:
        say(
            f"speedo: logs of {', '.join(sorted(missing))} are not in {folder}: a host that joined by `speedo worker` "
            "has them in the folder of its --logs; `speedo launch` and a Ray cluster bring them here at the end",
            err=True,
        )
    if follow:
        _follow(folder, wanted, ends)


def _follow(folder: Path, host: str | None, ends: dict[ProcessLog, int]) -> None:
    """Print what the logs gain, also new ones, until nobody leads the run any more."""
    leader = leader_of(folder)
    gained = {log: AppendedLines(log.path, end) for log, end in ends.items()}
    over = False
    while True:
        for log in logs_of(folder, host):
            for text in gained.setdefault(log, AppendedLines(log.path)).new():
                say(shown(line_now(log, text)))
        if over:
            return
        over = leader is None or not leader.is_served()
        time.sleep(LOOK_S)
