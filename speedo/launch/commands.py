"""The commands of speedo that a launch runs on each host, in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Final

from speedo.launch.cluster import ClusterFile, HostEntry, is_here
from speedo.launch.ssh import host_command
from speedo.run.config.run_config import DEFAULT_PORT
from speedo.run_dir.directory import CONFIG, FAILURE, LOG, LOGS, METRICS, RESULT

MASTER: Final = "master"
WORKER: Final = "worker"
SERVER: Final = "server"
DOCTOR: Final = "doctor"
LEFT: Final = (LOGS, LOG, RESULT, FAILURE, CONFIG, METRICS)  # of a run, small enough to be sent


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A launch. `options` are the master's own words, without those that have a field here.

    `run_dir` is on the master's host, `local_dir` here; they are the same where the master is this machine.
    """

    cluster: ClusterFile
    solver: str | None
    options: tuple[str, ...]
    host: str | None
    port: int | None
    run_dir: str | None
    resume: str | None
    data_root: str | None
    doctor: tuple[str, ...] = ()
    command: tuple[str, ...] = ()  # of each worker, without a solver
    # Variables for the master's host. They go through the connection: everybody there may read a command line.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    stamp: str = field(default_factory=lambda: datetime.now().strftime("%Y%m%d-%H%M%S"))
    mark: str = field(default_factory=lambda: token_hex(2))

    @property
    def leads_here(self) -> bool:
        return is_here(self.cluster.leader)

    @property
    def there_dir(self) -> str:
        """The run directory, in the words of the master's host."""
        return self.resume or self.run_dir or f"runs/{self.stamp}-launch-{self.mark}"

    @property
    def local_dir(self) -> Path:
        """The folder here that gets `hosts/`."""
        if self.leads_here and not self.resume:
            directory = self.cluster.access()[self.cluster.leader].directory
            return Path(directory or ".").expanduser() / self.there_dir
        return Path("runs") / f"{self.stamp}-launch-{self.mark}"

    def address(self, host: str) -> str:
        """`HOST:PORT` of the master."""
        return f"{host}:{self.port or DEFAULT_PORT}"


def master_words(plan: LaunchPlan, address: str) -> list[str]:
    """`speedo master`, for all workers of the cluster."""
    words = [MASTER, *([plan.solver] if plan.solver else []), *plan.options]
    words += ["--workers", str(plan.cluster.count), "--host", address]
    words += ["--port", str(plan.port or DEFAULT_PORT)]
    words += ["--resume", plan.resume] if plan.resume else ["--run-dir", plan.there_dir]
    if plan.data_root:
        words += ["--data-root", plan.data_root]
    if plan.cluster.server_count and "--servers" not in plan.options:
        words += ["--servers", plan.cluster.server_count]
    return words


def worker_words(plan: LaunchPlan, name: str, address: str) -> list[str]:
    """`speedo worker` on this host."""
    entry = plan.cluster.trains(name)
    script = ["--", *plan.command] if plan.command else []
    own = [*host_words(entry, plan.data_root), *core_words(entry)]
    return [WORKER, "--master", plan.address(address), *own, *script]


def server_words(plan: LaunchPlan, address: str) -> list[str]:
    """`speedo server`."""
    return [SERVER, "--master", plan.address(address)]


def doctor_words(plan: LaunchPlan, name: str, address: str) -> list[str]:
    """`speedo doctor` on this host: as the master's, which tells its solver, or as one that gets it."""
    own = ["--own"] if plan.command else []
    here = plan.cluster.trains(name)
    if name != plan.cluster.leader:
        words = [DOCTOR, "--json", "--facts-stdin", "--master", plan.address(address)]
        return [*words, *own, *host_words(here, plan.data_root)]
    words = [DOCTOR, "--json", "--facts", *([plan.solver] if plan.solver else []), *plan.doctor]
    words += own
    words += ["--workers", str(here.workers if here is not None else 1), "--host", address]
    words += ["--port", str(plan.port or DEFAULT_PORT)]
    data_root = plan.data_root or (here.data_root if here is not None else None)
    return [*words, *(["--data-root", data_root] if data_root else [])]


def host_words(entry: HostEntry | None, data_root: str | None = None) -> list[str]:
    """The options of `speedo worker` and `speedo doctor` that the cluster gives for a host; none without workers."""
    if entry is None:
        return []
    data_root = entry.data_root or data_root
    words = ["--data-root", data_root] if data_root else []
    words += ["--workers", str(entry.workers)]
    threads = (entry.threads, f"bind={entry.bind}" if entry.bind else "")
    words += ["--threads", ",".join(filter(None, threads))] if any(threads) else []
    words += ["--device", entry.device] if entry.device else []
    return words


def core_words(entry: HostEntry | None) -> list[str]:
    """Those of `speedo worker` alone: the cores of each worker."""
    return [word for cores in (entry.cores if entry else ()) for word in ("--cores", cores)]


def dry_run(plan: LaunchPlan) -> Iterator[str]:
    """Every command that a launch would run, one a line, under the connection to its host."""
    cluster = plan.cluster
    address = plan.host or ("127.0.0.1" if plan.leads_here else f"ADDRESS-OF-{cluster.leader}")
    for name, access in cluster.access().items():
        yield f"{name}: {shlex.join(host_command(name, access, cluster.ssh_config))}"
        for words in roles(plan, name, address).values():
            yield f"  speedo {shlex.join(words)}"


def roles(plan: LaunchPlan, name: str, address: str) -> dict[str, Sequence[str]]:
    """The commands of one host by their names, in the order in which they are started."""
    found: dict[str, Sequence[str]] = {DOCTOR: doctor_words(plan, name, address)}
    if name == plan.cluster.leader:
        found[MASTER] = master_words(plan, address)
    if name in plan.cluster.server_hosts:
        found[SERVER] = server_words(plan, address)
    if plan.cluster.trains(name) is not None:
        found[WORKER] = worker_words(plan, name, address)
    return found


def in_words(plan: LaunchPlan, name: str) -> str:
    """What runs on a host, for people: `master, 2 workers`."""
    entry = plan.cluster.trains(name)
    parts = [MASTER] if name == plan.cluster.leader else []
    parts += [SERVER] if name in plan.cluster.server_hosts else []
    if entry is not None:
        parts.append("1 worker" if entry.workers == 1 else f"{entry.workers} workers")
    return ", ".join(parts)
