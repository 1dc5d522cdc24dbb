"""A cluster that a program has: `speedo.Cluster`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self

from speedo.data.remote.uris import uri_of
from speedo.errors import ClusterError, ConfigError
from speedo.launch.cluster import HostAccess
from speedo.launch.held_hosts import HeldHosts
from speedo.launch.held_ray import HeldRay
from speedo.launch.places import READY_S, Device, Needs, Report, checked_count
from speedo.launch.read_cluster import cluster_of, read_cluster
from speedo.run.remote_inputs import fetch_run
from speedo.run.result import RunResult
from speedo.system.bounds import said

ACCESS = ("ssh_config", *HostAccess.model_fields)
AWAIT_S = 120.0


class Cluster:
    """Workers for one run after the other: on this machine, on hosts over ssh, or on a Ray cluster.

    Cluster()                            this machine
    Cluster(hosts=["node1:2", "node2"])  hosts with the most workers of each, as in `speedo launch -H`
    Cluster(file="cluster.yaml")         a cluster file of `speedo launch`
    Cluster(ray="auto")                  a Ray cluster that this machine belongs to, as in `speedo train --ray`

    `host` and `port` are where the masters listen, on this machine; by default the address by which the hosts see it.
    `access` are keys of a cluster file that override it: username, ssh_key, virtualenv and so on. Use it in a `with`:
    its end stops everything. One thread calls its methods.
    """

    def __init__(
        self,
        hosts: Sequence[str] | None = None,
        *,
        file: str | PathLike[str] | None = None,
        ray: str | None = None,
        host: str | None = None,
        port: int | None = None,
        **access: Any,
    ) -> None:
        named = [
            name
            for name, value in (("hosts", hosts), ("file", file), ("ray", ray))
            if value is not None
        ]
        problems = [
            f"{name} is no option of a cluster; known are {', '.join(ACCESS)}"
            for name in access
            if name not in ACCESS
        ]
        if len(named) > 1:
            problems.append(f"{' and '.join(named)} name two clusters; give one of them")
        if access and not {"hosts", "file"} & {*named}:
            problems.append(
                f"{', '.join(access)}: only for hosts over ssh; leave it out, or give hosts or file"
            )
        if ray is not None and (host, port) != (None, None):
            problems.append(
                "host and port are not for a Ray cluster, which knows this machine; leave them out"
            )
        if isinstance(hosts, str):
            problems.append(f'hosts is {said(hosts)}; use a list, as in ["node1:2", "node2"]')
        if problems:
            raise ConfigError(problems)
        self._closed = False
        self._places: HeldHosts | HeldRay
        if ray is not None:
            self._places = HeldRay(ray)
            return
        found = None
        if file is not None:
            found = read_cluster(Path(file), access)
        elif hosts is not None:
            found = cluster_of(",".join(hosts), access)
        self._places = HeldHosts(found, host, port)

    def launch_workers(
        self,
        n: int,
        *,
        cpus: float | None = None,
        memory_gb: float | None = None,
        device: Device | None = None,
    ) -> None:
        """Begin to make `n` more workers ready; returns at once. They stay for all runs.

        `cpus` are the threads of each worker. Raises `ConfigError` for what this kind of cluster cannot do.
        """
        self._open()
        count = checked_count("n", n)
        needs = Needs(cpus, memory_gb, device)
        if problems := needs.problems():
            raise ConfigError(problems)
        self._places.launch(count, needs)

    def await_workers(self, timeout: float = AWAIT_S) -> Report:
        """Wait until each worker is ready or has failed, at most `timeout` seconds. Call it again at any time.

        `workers` of the report have id, host, address and pid, `failures` host, cause and the number of workers.
        """
        self._open()
        if type(timeout) not in (int, float) or not 0 <= timeout < float("inf"):
            raise ConfigError(f"timeout is {said(timeout)}; use seconds, from 0 on")
        return self._places.report(timeout)

    def run(
        self,
        solver: str | PathLike[str] | None = None,
        *,
        workers: int | None = None,
        servers: int | str | None = None,
        **options: Any,
    ) -> RunResult:
        """Train with `workers` of the workers, by default with all that are ready, and return the result.

        The master is in this process, so solver and run directory are paths here. `options` are those of
        `speedo master` (on Ray of `speedo train`), with underscores. Raises `SpeedoError`.
        """
        self._open()
        given = {**options, "servers": servers}
        if (uri := uri_of(given.get("resume"))) is not None:
            folder = given.pop("run_dir", None)
            folder = None if folder is None else Path(folder)
            given["resume"] = fetch_run(uri, folder, lambda line: None)
        if solver is not None:
            given["solver"] = Path(solver)
        report = self._places.report(READY_S)
        wanted = len(report.workers) if workers is None else checked_count("workers", workers)
        if not report.workers:
            raise ClusterError(f"no worker is ready: call launch_workers first{report.why}")
        if wanted > len(report.workers):
            raise ClusterError(
                f"{wanted} workers were asked for, and {len(report.workers)} are ready: ask for fewer, or launch "
                f"more{report.why}"
            )
        return self._places.run(given, wanted)

    def close(self) -> None:
        """End everything that runs for this cluster. May be called again."""
        self._closed = True
        self._places.close()

    def _open(self) -> None:
        if self._closed:
            raise ClusterError("this cluster is closed; make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
