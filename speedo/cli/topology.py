"""`speedo topology`: how many workers each host is to run, with which threads, on which cores."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from speedo.cli.page import output_option
from speedo.cli.run_options import FILE, checked_threads, options_named
from speedo.cli.say import put
from speedo.errors import ConfigError
from speedo.run.config.topology import plan, read_topology, to_rank_file, to_yaml
from speedo.system.cores import USUAL, Bind, CoreOptions, Machine, this_machine


@click.command()
@click.argument("hosts", nargs=-1, metavar="HOST[:WORKERS[:CORES]]...")
@click.option(
    "--file",
    type=FILE,
    help="Read this instead of HOSTS: output of this command, a rank file of Open MPI, or one host per line.",
)
@click.option(
    "--form",
    type=click.Choice(("yaml", "rankfile")),
    default="yaml",
    show_default=True,
    help="Output: SpeeDO's own form (yaml), or a rank file of Open MPI.",
)
@options_named("threads", "bind")
@output_option
def topology(
    hosts: tuple[str, ...],
    file: Path | None,
    form: str,
    threads: str | None,
    bind: Bind | None,
    output: Path | None,
) -> None:
    """Write the workers, threads and core bindings of each host, as --threads chooses them.

    CORES is a number, or 2x8 for two sockets with 8 cores each. For this machine it may be left out. Any other host
    without CORES is assumed to have as many cores as its workers have threads.

    \b
    speedo topology localhost:2                              this machine with two workers
    speedo topology node1:4:2x8 node2:4:2x8 --threads auto,bind=core
    speedo topology node1:4:16 --threads bind=core --form rankfile   for mpirun --rankfile
    speedo topology --file hosts.rankfile                    the same in SpeeDO's form
    """
    if bool(hosts) == (file is not None):
        raise ConfigError("give HOSTS or --file FILE, and not both")
    if file is not None:
        given = None if threads is None and bind is None else _options(threads, bind)
        found = read_topology(file, given, _cores_here)
    else:
        found = plan(hosts, _options(threads, bind), _cores_here)
    put(to_yaml(found) if form == "yaml" else to_rank_file(found), output)


def _options(threads: str | None, bind: Bind | None) -> CoreOptions:
    return CoreOptions(checked_threads(threads), bind or USUAL.bind)


def _cores_here(name: str) -> Machine | None:
    """The cores of this machine if the name is its own."""
    own = socket.gethostname()
    return this_machine() if name in ("localhost", "127.0.0.1", own, own.split(".")[0]) else None
