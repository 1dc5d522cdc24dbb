"""`speedo launch`: a whole cluster over ssh, and the hidden command that is its end on each host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from speedo.cli.own_scripts import options_of_own
from speedo.cli.run_options import FILE, IN_SIGHT, RunCommand, master_options, run_options, under
from speedo.cli.say import say
from speedo.errors import ConfigError, hide_secrets
from speedo.run.config.formats import parse_phase
from speedo.run.config.option_table import words_of
from speedo.run.config.run_config import make_config

CLUSTER: Final = "Cluster"
COMMAND: Final = "speedo.launch.command"
_OWN: Final = {  # of the cluster, or with a place in the plan
    "workers": "the cluster says how many workers each host has: leave --workers out",
    "token_file": "a launch makes a token for its run: leave --token-file out",
}
_PLACED: Final = ("solver", "host", "port", "run_dir", "resume", "data_root", "workers")
_ACCESS: Final = (
    *("master", "username", "ssh_key", "ssh_port", "ssh_config", "virtualenv", "directory", "env"),
)
_IN_SIGHT: Final = ("hosts", "hostfile", "virtualenv", "dry_run")
_EXAMINED: Final = (
    *("redis", "run_dir", "engine", "device", "micro_batch", "ignore_unknown", "threads", "bind"),
)


class LaunchCommand(RunCommand):
    """What comes after `--` is the workers' command, however few arguments come before."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Keep those words in the context."""
        at = args.index("--") if "--" in args else len(args)
        context.meta[COMMAND] = tuple(args[at + 1 :])
        return super().parse_args(context, args[:at])


@click.command(
    cls=LaunchCommand, in_sight=(*_IN_SIGHT, *(name for name in IN_SIGHT if name != "workers"))
)
@click.argument("cluster", required=False, type=click.Path(path_type=Path))
@under(
    CLUSTER,
    "-H",
    "--hosts",
    metavar="A:2,B:4",
    help="Hosts with their workers, instead of CLUSTER.",
)
@under(
    CLUSTER,
    "--hostfile",
    type=FILE,
    help="One host a line instead of CLUSTER, as in `node1 slots=4` (mpirun) or node1:4 (horovodrun).",
)
@under(
    CLUSTER,
    "--master",
    metavar="HOST",
    help="Host of the master; localhost is this one.  [default: the file's, or else the first]",
)
@under(CLUSTER, "--username", metavar="NAME", help="Login name.  [default: ssh's]")
@under(CLUSTER, "--ssh-key", metavar="FILE", help="Private key.  [default: ssh's]")
@under(CLUSTER, "--ssh-port", type=int, metavar="N", help="Port of sshd.  [default: ssh's]")
@under(CLUSTER, "--ssh-config", metavar="FILE", help="Instead of ~/.ssh/config, as ssh -F.")
@under(
    CLUSTER, "--virtualenv", metavar="DIR",
    help="Where SpeeDO is installed on the hosts.  [default: `speedo` on the PATH of the login]",
)  # fmt: skip
@under(
    CLUSTER,
    "--directory",
    metavar="DIR",
    help="Working directory on the hosts.  [default: the login's]",
)
@under(
    CLUSTER, "--env", multiple=True, metavar="NAME[=VALUE]",
    help="Set this variable on the hosts; may be repeated.",
)  # fmt: skip
@under(CLUSTER, "--dry-run", is_flag=True, help="Print each command and run none.")
@run_options
@master_options
def launch(
    cluster: Path | None,
    hosts: str | None,
    hostfile: Path | None,
    dry_run: bool,
    token_file: Path | None,
    **options: Any,
) -> None:
    """Train on the hosts of CLUSTER: one command starts master, servers and workers over ssh, and ends them.

    CLUSTER is a YAML file, a rank file of mpirun, or Poseidon's JSON; or give -H or --hostfile. SOLVER and all
    other paths of a run are paths on the master's host. Options of group Cluster override the file; the others are
    those of `speedo master`.

    \b
    speedo launch cluster.yaml my/solver.prototxt --mode easgd
    speedo launch -H node1:2,node2:4 --virtualenv ~/speedo/.venv my/solver.prototxt
    speedo launch --hostfile hosts --master localhost --dry-run
    speedo launch -H node1:2,node2:4 --mode easgd -- python train.py --epochs 3

    \f
    Instead of SOLVER, -- and a command start a script that calls speedo.join, once for each worker; each host must have
    it in its working directory.

    Uses the ssh of this machine with your keys, known_hosts and ssh_config, and asks for no password. Each host is
    checked first, as by `speedo doctor`. The logs of all hosts are copied to RUN_DIR/hosts/HOST. Ctrl-C stops the
    master, which tests and exports; a second Ctrl-C ends everything at once. If this command is killed, all processes
    on all hosts end.

    Exit status: the master's; 1 if a host cannot take part.
    """
    from speedo.launch.commands import LaunchPlan
    from speedo.launch.commands import dry_run as told
    from speedo.launch.launcher import Launcher
    from speedo.launch.picture import HostsPicture
    from speedo.watch.console import ErrorConsole

    access = {name: options.pop(name) for name in _ACCESS}
    solver = options.pop("solver")
    if hosts is not None or hostfile is not None:
        if solver is not None:
            raise ConfigError(
                f"{cluster} and {solver}: with -H or --hostfile give only a solver, no CLUSTER"
            )
        cluster, solver = None, cluster
    command: tuple[str, ...] = click.get_current_context().meta[COMMAND]
    given = {**options, "own": options["own"] or bool(command)}
    if given["own"]:
        options_of_own({**given, "solver": solver})
    problems = [
        text for name, text in _OWN.items() if {**given, "token_file": token_file}[name] is not None
    ]
    if (cluster is not None) + (hosts is not None) + (hostfile is not None) != 1:
        problems.append("give a cluster file, or -H, or --hostfile, and only one of them")
    if given["own"] and not command:
        problems.append(
            "--own without a script: give its command after --, as in -- python train.py"
        )
    if problems:
        raise ConfigError(problems)
    found = _cluster(cluster, hosts, hostfile, access)
    check_options(given, found.count)
    secrets = _without_secrets(given)
    words = tuple(_words(given))
    plan = LaunchPlan(
        found,
        None if solver is None else str(solver),
        words,
        given["host"],
        given["port"],
        _text(given["run_dir"]),
        _text(given["resume"]),
        _text(given["data_root"]),
        tuple(_words({name: given[name] for name in _EXAMINED if name in given}, placed=())),
        command,
        secrets,
    )
    if dry_run:
        for line in told(plan):
            say(line)
        return
    status = Launcher(plan, HostsPicture(ErrorConsole()), say).run()
    if status:
        sys.exit(status)


@click.command(hidden=True)
def launch_host() -> None:
    """The end of `speedo launch` on a host: obeys its standard input, and ends with it."""
    from speedo.launch.host_end import serve_host

    serve_host()


def _cluster(
    file: Path | None, hosts: str | None, hostfile: Path | None, access: Mapping[str, Any]
) -> Any:
    from speedo.launch import read_cluster

    if file is not None:
        return read_cluster.read_cluster(file, access)
    if hostfile is not None:
        return read_cluster.read_host_file(hostfile, access)
    return read_cluster.cluster_of(str(hosts), access)


def check_options(given: Mapping[str, Any], workers: int) -> None:
    """Raises `ConfigError` for options that the master would refuse; its own file is read on its host."""
    if given["config_file"] is not None:
        return
    options = {name: value for name, value in given.items() if name != "config_file"}
    if options["own"]:
        options = options_of_own(options)
    options["phases"] = [parse_phase(text) for text in given["phases"]] or None
    make_config({**options, "workers": workers})


def _without_secrets(given: dict[str, Any]) -> dict[str, str]:
    """Take the password of Redis out of the options, for a variable. Raises `ConfigError` for any other secret."""
    from speedo.storage.redis.url import PASSWORD_VARIABLE, without_password

    password = ""
    if given["redis"] is not None:
        given["redis"], password = without_password(given["redis"])
    found = [
        f"{name} is {hide_secrets(str(value))}: every user of the master's host could read its secret in the list of "
        "processes; write the option into a file there, and name that with --config"
        for name, value in given.items()
        if hide_secrets(str(value)) != str(value)
    ]
    if found:
        raise ConfigError(found)
    return {PASSWORD_VARIABLE: password} if password else {}


def _words(given: Mapping[str, Any], placed: tuple[str, ...] = _PLACED) -> list[str]:
    """Options as words of a command line; those that are `placed` have another place."""
    words = words_of(
        {name: one for name, one in given.items() if name not in (*placed, "config_file")}
    )
    file = given.get("config_file")
    return words if file is None else [*words, "--config", str(file)]


def _text(value: object) -> str | None:
    return None if value is None else str(value)
