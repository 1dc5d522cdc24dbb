"""`speedo status`, `stop`, `scale` and `leave`: show and control the runs on this machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import psutil

from speedo.cli.page import json_option
from speedo.cli.say import say
from speedo.cli.units import parse_notice
from speedo.errors import ClusterError
from speedo.run.config.run_config import LARGEST_WORKERS
from speedo.run_dir.directory import FAILURE, METRICS, RESULT
from speedo.system.foreign_text import clean_values
from speedo.system.json_lines import plain
from speedo.watch.control_socket import HOST_SUFFIX, KNOWN_S, RunGone, RunSocket, leader_of, running
from speedo.watch.first_failure import kept_failure
from speedo.watch.status_text import lines_of, outcome_of
from speedo.watch.waits import lines_of as waits_in_lines
from speedo.watch.waits import look

Function = TypeVar("Function", bound=Callable[..., Any])
POLL_S: Final = 0.2
SCALE_S: Final = 180.0


# The run that a command is about: the only one if none is named.
run_argument: Final = click.argument("run", required=False, metavar="[RUN]")


@click.command()
@run_argument
@json_option
@click.option("--watch", is_flag=True, help="Repeat every --interval seconds, until the run ends.")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, metavar="S",
    help="Seconds between two updates.",
)  # fmt: skip
@click.option(
    "--why",
    is_flag=True,
    help="Show what every process waits for, and the stacks of one that hangs.",
)
def status(run: str | None, as_json: bool, watch: bool, interval: float, why: bool) -> None:
    """Show the state of a run: iteration, loss, images/s, the last test, and a line per worker.

    RUN is a run's directory, or the first characters of its id; without it, all your runs on this machine are shown.
    Use it on the master's machine: the nodes of workers do not have the state.

    With --why every process of the run on this machine writes its Python stacks into its log, which costs some
    milliseconds; that also works while the master hangs, and with RUN as a directory even without the run's command.

    --json prints one object, `{"runs": [...]}`; docs/running.md has the fields. This does not disturb the run, and
    Ctrl-C ends only this command.

    \b
    speedo status
    speedo status --json | jq .runs[0].iteration
    speedo status --watch

    Exit status: 0, or 1 if there is no such run.
    """
    if why and watch:
        raise click.UsageError("--why is shown once: leave --watch out")
    if why:
        return _show_waits(run, as_json)
    socket = None if run is None else find(run)
    if socket is None:
        require_some(as_json)
    seen: list[Path] = []
    while True:
        try:
            found = [socket.ask("status")] if socket is not None else everything()
        except RunGone:
            found = []
        if not found:  # it ended while we looked
            for folder in seen if not as_json else []:
                say(outcome_of(folder)[1])
            return
        seen = [Path(one["run_dir"]) for one in found if "run_dir" in one]
        _show(found, as_json, clear=watch and not as_json)
        if not watch:
            return
        time.sleep(interval)


@click.command()
@run_argument
@json_option
@click.option("--no-wait", is_flag=True, help="Do not wait for the end of the run.")
@click.option(
    "--timeout", type=click.FloatRange(0, 1e6, min_open=True), default=900.0, show_default=True, metavar="S",
    help="Seconds to wait for the end, including the last test.",
)  # fmt: skip
def stop(run: str | None, as_json: bool, no_wait: bool, timeout: float) -> None:
    """End a run early, as Ctrl-C at its terminal would: the model so far is tested and exported.

    RUN is the run's directory, or the first characters of its id; without it, the only run on this machine.

    Waits until the run has ended, then prints its result. The command that started the run ends with status 3 (ended
    early). Ctrl-C ends only the wait; the run still stops.

    \b
    speedo stop
    speedo stop runs/20250101-120000-sync-1a2b --json

    Exit status: 0 once the run has ended (with --no-wait, once it has the request), or 1.
    """
    socket = only() if run is None else find(run)
    told = socket.ask("stop")
    if no_wait:
        _print(
            told,
            as_json,
            [f"run {told['run']} is stopping; it leaves its model in {told['run_dir']}"],
        )
        return
    if not as_json:
        say(f"run {told['run']} is stopping; waiting for its end", err=True)
    try:
        wait_for_end(socket, int(told["pid"]), timeout)
    except KeyboardInterrupt:
        say("speedo: no longer waiting; the run stops all the same", err=True)
        raise
    outcome, said = outcome_of(Path(told["run_dir"]))
    _print({"run": told["run"], "run_dir": told["run_dir"], "result": outcome}, as_json, [said])


@click.command()
@click.argument("workers", type=click.IntRange(1, LARGEST_WORKERS), metavar="N")
@run_argument
@json_option
def scale(workers: int, run: str | None, as_json: bool) -> None:
    """Train with N workers from now on: more are started, or some are stopped.

    RUN is the run's directory, or the first characters of its id; without it, the only run on this machine. On a
    cluster the workers are spread over the hosts that have joined. Training continues during the change;
    `speedo status` shows when it is complete.

    \b
    speedo scale 4
    speedo scale 2 1a2b

    Exit status: 0, or 1 if the run cannot do it, with the reason.
    """
    socket = only() if run is None else find(run)
    answer = socket.ask("scale", timeout_s=SCALE_S, workers=workers)
    _print(answer, as_json, [str(answer["said"])])


@click.command()
@click.argument("host", required=False, metavar="[HOST]")
@click.option(
    "--in",
    "notice",
    default="25s",
    show_default=True,
    metavar="TIME",
    help="Time that is left, as in 30s or 2m; 0: leave at once.",
)
@run_argument
@json_option
def leave(host: str | None, notice: str, run: str | None, as_json: bool) -> None:
    """Let a host leave its run before its time is over, as a spot machine that was given notice.

    Its workers get no more turns. Each ends its present turn after the solver step that it is at; the result is merged
    with its samples counted, and records that were leased are given back. Then `speedo worker` ends with status 0. The
    others train on. Whatever is not ready within the time is lost, as if the host had died.

    Without HOST, the `speedo worker` commands on this machine leave: for whatever reads the notice of your cloud.
    SIGTERM to `speedo worker` does the same, within its --grace, and ends it with status 143. With HOST, on the
    master's machine, a host of that run leaves: by its name with all its commands, by the name that `speedo status`
    shows with one. RUN is that run's directory, or the first characters of its id. This command does not wait.

    \b
    speedo leave --in 30s
    speedo leave node2
    speedo leave node2:3f9a1c --in 2m

    Exit status: 0 once it is told, or 1 if there is no such host.
    """
    seconds = parse_notice(notice)
    if host is not None:
        socket = only() if run is None else find(run)
        told = [socket.ask("leave", host=host, seconds=seconds)]
    else:
        here = running(HOST_SUFFIX)
        if not here:
            raise ClusterError(
                "no `speedo worker` of yours has joined a run on this machine: on the master's machine name the host "
                "that is to leave, as in `speedo leave node2`"
            )
        told = [one.ask("leave", seconds=seconds) for one in here]
    _print({"told": told}, as_json, [str(one["said"]) for one in told])


def everything() -> list[dict[str, Any]]:
    """The state of every run; for one that does not answer, the reason."""
    found = []
    for socket in running():
        try:
            found.append(socket.ask("status"))
        except RunGone:
            continue
        except ClusterError as error:
            found.append({"run": socket.run, "problem": str(error)})
    return found


def require_some(as_json: bool) -> None:
    """End with status 1 and a sentence if there is no run."""
    if running():
        return
    if as_json:
        say(json.dumps({"runs": []}))
        raise SystemExit(1)
    raise ClusterError(NONE)


NONE: Final = (
    "you have no run on this machine: start one with `speedo train` or `speedo master`, "
    "or ask on the machine where it was started"
)


def only() -> RunSocket:
    """The only run; raises `ClusterError` if there is none, or names them if there are several."""
    runs = running()
    if not runs:
        raise ClusterError(NONE)
    if len(runs) > 1:
        names = ", ".join(socket.run for socket in runs)
        raise ClusterError(f"you have several runs ({names}): name one, `speedo status` shows them")
    return runs[0]


def find(name: str) -> RunSocket:
    """The run with this id, prefix of an id, or directory; raises `ClusterError`."""
    runs = running()
    named = [socket for socket in runs if name and socket.run.startswith(name)]
    if len(named) > 1:
        names = ", ".join(socket.run for socket in named)
        raise ClusterError(f"{name} matches several runs ({names}): give more characters of the id")
    if named:
        return named[0]
    folder = Path(name)
    if os.path.isdir(folder) and (socket := leader_of(folder)) is not None:
        return socket
    if os.path.isfile(folder / RESULT) or os.path.isfile(folder / FAILURE):
        sentence, *_ = outcome_of(folder)[1].splitlines()
        failure = kept_failure(folder)
        block = failure.lines() if failure is not None and failure.ended else []
        raise ClusterError("\n".join([f"the run in {folder} is over: {sentence}", *block]))
    going = f"; running are {', '.join(socket.run for socket in runs)}" if runs else ""
    raise ClusterError(f"{name} is no running run: give an id or a run directory{going}")


def run_dir_of(name: str | Path | None) -> Path:
    """The directory of this run, which may have ended if its directory is named. Raises `ClusterError`."""
    if name is not None and os.path.isdir(name):
        if not os.path.lexists(Path(name) / METRICS):
            raise ClusterError(f"{name} is no run directory: it has no {METRICS}")
        return Path(name)
    return (only() if name is None else find(str(name))).run_dir


def wait_for_end(socket: RunSocket, process: int, timeout_s: float) -> None:
    """Return once the run's socket and process are gone; raises `ClusterError` after the timeout."""
    deadline = time.monotonic() + timeout_s
    try:
        leader = psutil.Process(process)
    except psutil.NoSuchProcess:
        leader = None  # gone already, or of another container that shares the folder
    while socket.is_served() or (leader is not None and _is_there(leader)):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"run {socket.run} did not end within {timeout_s:.0f} s: it may still be testing; see `speedo status`"
            )
        time.sleep(POLL_S)


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _show_waits(run: str | None, as_json: bool) -> None:
    """What the processes wait for; the master is asked for a while, and not needed."""
    folder, state, problem = None, None, "no process leads this run on this machine"
    try:
        socket = only() if run is None else find(run)
        folder = socket.run_dir
        state = socket.ask("status", timeout_s=KNOWN_S)
    except ClusterError as error:
        if folder is None and not (run is not None and os.path.isdir(run)):
            raise
        folder = folder or Path(str(run))
        problem = str(error)
    seen = look(folder)
    if as_json:
        answer = {"run_dir": str(folder), "status": state, "problem": "" if state else problem}
        say(json.dumps({**answer, "processes": [plain(one) for one in seen]}))
        return
    state = None if state is None else clean_values(state)
    lines = [f"run in {folder}", *waits_in_lines(seen, state, problem if state is None else "")]
    say("\n".join(lines))


def _show(found: list[dict[str, Any]], as_json: bool, *, clear: bool) -> None:
    if clear:
        click.clear()  # does nothing where there is no terminal
    _print({"runs": found}, as_json, [line for one in found for line in lines_of(one)])


def _print(answer: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    say(json.dumps(answer) if as_json else "\n".join(lines))
