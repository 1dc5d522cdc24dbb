"""Workers on hosts for run after run: a connection to each host stays open, and each run starts its commands there.

Each call of `launch` has a connection of its own to each host, by ssh or, on this machine, as a child process. Between
runs the host's end of it waits; when this process ends, however it ends, the hosts end all that was started there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from speedo.actors.ray_node.ports import free_port, is_loopback, resolved
from speedo.errors import ClusterError, ConfigError, MachineError
from speedo.launch.cluster import ClusterFile, HostEntry, is_here, variables
from speedo.launch.commands import DOCTOR, SERVER, WORKER, core_words, host_words
from speedo.launch.host_files import HostFiles
from speedo.launch.hosts import Hosts, RemoteHost, greeting_problem
from speedo.launch.places import READY_S, Failure, Needs, Report
from speedo.launch.places import PlacedWorker as ReadyWorker
from speedo.run.config.run_config import DEFAULT_PORT, LARGEST_WORKERS, make_config
from speedo.run.result import RunResult
from speedo.study.doctor import require_for
from speedo.watch.console import Quiet
from speedo.watch.status import Status

LEAVE_S: Final = 20.0  # for commands to end after their master
END_S: Final = 15.0  # for those that were asked to
JOIN_S: Final = 15.0  # a host that is lost does not come back in this run
HERE: Final = "localhost"
LOOPBACK: Final = "127.0.0.1"


@dataclass(slots=True, eq=False)
class _Group:
    """The workers that one call launched on one host, of which `entry` tells; without workers the host only serves."""

    remote: RemoteHost
    ids: tuple[int, ...]
    entry: HostEntry | None
    device: str | None

    @property
    def host(self) -> str:
        return self.remote.connection.name

    @property
    def role(self) -> str:
        return WORKER if self.ids else SERVER

    @property
    def address(self) -> str:
        return LOOPBACK if is_here(self.host) else self.remote.address or self.host


class HeldHosts:
    """The hosts of `cluster`; None is this machine, with as many workers as are asked for.

    `host` and `port` are where the masters of the runs listen, on this machine.
    """

    def __init__(self, cluster: ClusterFile | None, host: str | None, port: int | None) -> None:
        if cluster is not None and cluster.master is not None and not is_here(cluster.master.host):
            raise ConfigError(
                f"master is {cluster.master.host}: from Python the master is on this machine; leave it out, or use "
                "`speedo launch`"
            )
        self._cluster = cluster or ClusterFile(
            workers=(HostEntry(host=HERE, workers=LARGEST_WORKERS),)
        )
        self._host, self._port = host, port
        self._ways = self._cluster.access()
        self._environments = {
            name: variables(way.env, os.environ) for name, way in self._ways.items()
        }
        self._hosts = Hosts(self._take, self._cluster.ssh_config)
        self._groups: dict[str, _Group] = {}
        self._count = 0

    # ---------------------------------------------------------------- before a run

    def launch(self, count: int, needs: Needs) -> None:
        """Begin to make this many workers ready. Raises `ConfigError` for what this kind of cluster cannot do."""
        if problems := needs.problems_on_hosts():
            raise ConfigError(problems)
        self._hosts.check()
        with self._hosts.changed:
            if any(one.ids and one.device != needs.device for one in self._alive):
                raise ConfigError(
                    "device differs from that of the workers that are there; give the same"
                )
            shares = self._shares(count)
            if not self._groups:
                for name in self._cluster.server_hosts:
                    self._add(name, 0, needs)
            for name, some in shares.items():
                self._add(name, some, needs)

    def report(self, timeout_s: float) -> Report:
        """What is known once each worker is ready or has failed, or after this many seconds."""
        self._hosts.wait(
            lambda: all(one.remote.ready or one.remote.failed for one in self._groups.values()),
            timeout_s,
        )
        with self._hosts.changed:
            groups = self._groups.values()
            workers = [
                ReadyWorker(one, group.host, group.address, int((group.remote.hello or {})["pid"]))
                for group in groups
                if group.remote.ready and not group.remote.failed
                for one in group.ids
            ]
            failed = [
                Failure(group.host, _problem(group.remote, timeout_s), len(group.ids))
                for group in groups
                if group.remote.failed or not group.remote.ready
            ]
        return Report(tuple(workers), tuple(failed))

    @property
    def _alive(self) -> list[_Group]:
        return [one for one in self._groups.values() if not one.remote.failed]

    def _taken(self, name: str) -> int:
        """Workers of a host."""
        return sum(len(one.ids) for one in self._alive if one.host == name)

    def _shares(self, count: int) -> dict[str, int]:
        """Workers by host, each filled up before the next. Raises `ConfigError` without enough places."""
        shares, left = {}, count
        for one in self._cluster.workers:
            share = min(left, one.workers - self._taken(one.host))
            if share > 0:
                shares[one.host], left = share, left - share
        if left:
            free = count - left
            raise ConfigError(
                f"{count} workers were asked for, but the hosts have room for {free} more: give that, or hosts with "
                "more workers, as in node1:4"
            )
        return shares

    def _add(self, name: str, count: int, needs: Needs) -> None:
        ids = tuple(range(self._count, self._count + count))
        self._count += count
        number = sum(one.host == name for one in self._groups.values()) + 1
        key = name if number == 1 else f"{name}-{number}"
        entry = self._cluster.trains(name)
        if entry is not None:
            own: dict[str, Any] = {"workers": count, "cores": entry.cores[self._taken(name) :]}
            if needs.cpus is not None:
                own["threads"] = str(int(needs.cpus))
            entry = entry.model_copy(update=own)
        remote = self._hosts.connect(name, self._ways[name], self._environments[name], key)
        self._groups[key] = _Group(remote, ids, entry, needs.device)

    # ---------------------------------------------------------------- a run

    def run(self, options: Mapping[str, Any], workers: int) -> RunResult:
        """Train with this many of the workers that are ready. Raises `SpeedoError`."""
        from speedo.actors.launch import serve_master

        chosen = self._chosen(workers)
        given = {"join_timeout": JOIN_S, **options, "workers": workers}
        if given.get("servers") is None:
            given["servers"] = self._cluster.server_count
        if any(group.device == "cpu" for group in chosen):
            given["cpu"] = True
        for name, own in (("host", self._host), ("port", self._port)):
            if given.get(name) is None:
                given[name] = own
        if given["host"] is None:
            given["host"] = self._address(list(chosen))
        if given["port"] is None:
            alone = is_loopback(resolved(str(given["host"])))
            given["port"] = free_port(LOOPBACK) if alone else DEFAULT_PORT
        config = make_config(given)
        require_for(config)
        if config.serves:
            chosen.update({one: 0 for one in self._alive if not one.ids and one.remote.ready})
        commands = RunCommands(self._hosts, chosen, f"{config.host}:{config.port}")
        try:
            result = serve_master(config, commands, None, self._hosts.token)
        finally:
            problems = commands.end()
        return replace(result, problems=(*result.problems, *problems))

    def _chosen(self, wanted: int) -> dict[_Group, int]:
        """How many workers of each group take part: the first that are ready."""
        chosen: dict[_Group, int] = {}
        for group in self._alive:
            if share := min(len(group.ids), wanted) if group.remote.ready else 0:
                chosen[group] = share
                wanted -= share
        return chosen

    def _address(self, chosen: Sequence[_Group]) -> str:
        """This machine's address as the hosts see it."""
        far = [one for one in chosen if not is_here(one.host)]
        if not far:
            return LOOPBACK
        seen = far[0].remote.launcher_address
        if seen is None:
            raise ClusterError("this machine's address is not known to the hosts: give host")
        return seen

    def close(self) -> None:
        self._hosts.close(END_S)
        for group in self._groups.values():
            group.remote.failed = group.remote.failed or "the cluster is closed"

    # ---------------------------------------------------------------- events

    def _take(self, remote: RemoteHost, values: Mapping[str, Any]) -> None:
        """A host that greets is examined, and is ready if nothing is wrong there."""
        if "hello" in values and not remote.failed:  # else it is there for its logs
            python = ".".join(map(str, sys.version_info[:2]))
            remote.failed = greeting_problem(remote, python)
            seen = self._host or remote.launcher_address or LOOPBACK
            master = f"{seen}:{self._port or DEFAULT_PORT}"
            words = [DOCTOR, "--json", "--facts-stdin", "--master", master]
            if not remote.failed:
                entry = self._groups[remote.connection.key].entry
                self._hosts.start(remote, [*words, *host_words(entry)], '{"facts": {}}')
        if remote.failed and ("hello" in values or values.get("ended") == DOCTOR):
            remote.connection.close()


class RunCommands(Quiet):
    """The commands of one run: they start once its directory is there, and must not fail before it trains."""

    def __init__(self, hosts: Hosts, chosen: Mapping[_Group, int], address: str) -> None:
        self._hosts, self._chosen, self._address = hosts, chosen, address
        self._begun = False
        self._failed = False

    def begin(self, run_dir: Path) -> None:
        if self._begun:  # another master of the same run, which the hosts wait for
            return
        self._begun = True
        for group, count in self._chosen.items():
            group.remote.files = HostFiles(run_dir, group.remote.connection.key)
            entry = group.entry
            if entry is not None:
                own = {"workers": count, "cores": entry.cores[:count]}
                entry = entry.model_copy(update=own)
            words = [group.role, "--master", self._address, "--timeout", str(int(READY_S))]
            self._hosts.start(group.remote, [*words, *host_words(entry), *core_words(entry)])

    def show(self, status: Status) -> None:
        """Raises `MachineError` with every host whose workers failed before the first iteration."""
        self._hosts.check()
        if status.iteration or status.over:
            return
        found = [f"{one.host}: {why}" for one in self._chosen if (why := one.remote.failure)]
        if found:
            self._failed = True
            raise MachineError(found)

    def end(self) -> list[str]:
        """Every command has ended and its logs are here; returns what of them is not."""
        if not self._begun:
            return []
        remotes = [group.remote for group in self._chosen]
        missing = self._hosts.end_commands(remotes, 0.0 if self._failed else LEAVE_S, END_S)
        for remote in remotes:
            if not remote.left:  # it is of no use any more
                remote.connection.kill()
        return [f"logs of {host}: {why}" for host, why in missing.items()]


def _problem(remote: RemoteHost, timeout_s: float) -> str:
    doing = "has not answered" if remote.hello is None else "is still being examined"
    late = f"it {doing} after {timeout_s:g} s; it may become ready later"
    return remote.failed.replace("\n", "; ") or late
