"""The cores of a node against the workers that it is to run, and the workers that run on it already."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from speedo.errors import SpeedoError
from speedo.study.doctor.base import Check, Finding, NodeRequest, ok, warn
from speedo.system.cores import AUTO, CoreOptions, deal, list_of, quota_of, this_machine, threads_of
from speedo.watch.control_socket import running
from speedo.watch.status import where_in_words

SHOWN: Final = 8  # workers that a line names, of those that are to run
ANSWER_S: Final = 5.0


def cores(request: NodeRequest) -> Iterator[Finding]:
    """The CPUs that this process may use, against the workers and their threads; bound, what each worker would get."""
    machine, workers = this_machine(), request.workers
    cpus = machine.cpus(machine.cores)
    quota = quota_of()
    there = len(cpus) if quota is None else min(len(cpus), quota)
    threads = threads_of(CoreOptions(request.threads, request.bind), machine, workers)
    each = f" with {threads} threads each" if threads > 1 or request.threads == AUTO else ""
    sockets = f", {len(machine.sockets)} sockets" if len(machine.sockets) > 1 else ""
    text = f"{there:g} for {workers} workers{each}; {socket.gethostname()} has {list_of(cpus)}{sockets}"
    if request.bind != "none":
        dealt = deal(machine, min(workers, SHOWN), threads, request.bind)
        bound = [
            f"worker {number} on {list_of(machine.cpus(one))}" for number, one in enumerate(dealt)
        ]
        text += f": {', '.join(bound)}{', ...' if workers > SHOWN else ''}"
    if workers * threads > there:
        fewer = f"use --workers {max(int(there) // threads, 1)}"
        remedy = fewer if threads == 1 else f"{fewer}, or fewer --threads"
        yield warn("cores", f"{text}: they share, and are slower each", remedy)
    else:
        yield ok("cores", text)


def running_workers(_: NodeRequest) -> Iterator[Finding]:
    """For each run that this user leads here, the host, process and cores of its workers."""
    for run in running():
        with suppress(SpeedoError, KeyError, TypeError):  # it ends, or is of another version
            workers = [one for one in run.ask("status", ANSWER_S)["workers"] if one["process"]]
            told = [
                f"worker {one['worker']} on {one['host']}: "
                + where_in_words(
                    one["process"], one["threads"], one["cores"], one.get("device", "")
                )
                for one in workers
            ]
            if told:
                yield ok("running", "\n".join([f"run {run.run}", *told]))


CHECKS: Final = (Check(cores), Check(running_workers))
