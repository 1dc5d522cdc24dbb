"""Workers on hosts for run after run: a connection to each host stays open, and each run starts its commands there.

Each call of `launch` has a connection of its own to each host, by ssh or, on this machine, as a child process. Between
runs the host's end of it waits; when this process ends, however it ends, the hosts end all that was started there.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from speedo.actors.ray_node.ports import is_loopback, resolved
from speedo.actors.token import TOKEN_VARIABLE, new_token
from speedo.errors import ClusterError, ConfigError, MachineError
from speedo.launch.cluster import Access, Cluster, is_here, variables
from speedo.launch.commands import DOCTOR, SERVER, WORKER
from speedo.launch.connection import WAITING, Connection, Happened
from speedo.launch.host_files import HostFiles
from speedo.launch.places import Failure, Needs, Report, checked_count
from speedo.launch.places import Worker as ReadyWorker
from speedo.launch.protocol import BEAT_S, EventError
from speedo.launch.remote import Command, Remote, failures, greeting_problem
from speedo.run.config.run_config import DEFAULT_PORT, make_config
from speedo.run.result import RunResult
from speedo.study.doctor import require_for
from speedo.system.private_folders import make_private_folder
from speedo.watch.console import Quiet
from speedo.watch.status import Status

LOOK_S: Final = 0.2
READY_S: Final = 120.0  # for those that are still examined when a run begins
LEAVE_S: Final = 20.0  # for commands to end after their master
END_S: Final = 15.0  # for those that were asked to
JOIN_S: Final = 15.0  # a host that is lost does not come back in this run
HERE: Final = "localhost"
LOOPBACK: Final = "127.0.0.1"


@dataclass(slots=True, eq=False)
class _Group:
    """The workers that one call launched on one host; without workers the host only serves."""

    host: str
    key: str
    ids: tuple[int, ...]
    words: tuple[str, ...]
    device: str | None
    remote: Remote = field(init=False)
    ready: bool = False
    failed: str = ""

    @property
    def role(self) -> str:
        return WORKER if self.ids else SERVER

    @property
    def pending(self) -> bool:
        return not self.ready and not self.failed

    @property
    def address(self) -> str:
        return LOOPBACK if is_here(self.host) else self.remote.address or self.host

    @property
    def left(self) -> bool:
        """Whether no command of a run is on this host any more, and all logs have come."""
        return self.remote.closed is not None or all(
            one.filed for role, one in self.remote.commands.items() if role != DOCTOR
        )


class HeldHosts:
    """The hosts of `cluster`; None is this machine, with as many workers as are asked for.

    `host` and `port` are where the masters of the runs listen, on this machine.
    """

    def __init__(self, cluster: Cluster | None, host: str | None, port: int | None) -> None:
        if cluster is not None and cluster.master is not None and not is_here(cluster.master.host):
            raise ConfigError(
                f"master is {cluster.master.host}: from Python the master is on this machine; leave it out, or use "
                "`speedo launch`"
            )
        self._cluster, self._host, self._port = cluster, host, port
        self._ways = {HERE: Access()} if cluster is None else cluster.access()
        self._environments = {
            name: variables(way.env, os.environ) for name, way in self._ways.items()
        }
        self._token = new_token()
        self._events: queue.Queue[Happened] = queue.Queue(WAITING)
        self._groups: list[_Group] = []
        self._count = 0
        self._closed = False
        self._broken: Exception | None = None  # what has ended the thread
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="cluster", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- before a run

    def launch(self, count: int, needs: Needs) -> None:
        if problems := needs.problems_on_hosts():
            raise ConfigError(problems)
        self.check()
        with self._changed:
            if any(one.ids and one.device != needs.device for one in self._alive):
                raise ConfigError(
                    "device differs from that of the workers that are there; give the same"
                )
            shares = self._shares(count)
            if not self._groups and self._cluster is not None:
                for name in self._cluster.server_hosts:
                    self._add(name, 0, needs)
            for name, some in shares.items():
                self._add(name, some, needs)

    def report(self, timeout_s: float) -> Report:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(one.pending for one in self._groups) and self._broken is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            self.check()
            workers = [
                ReadyWorker(one, group.host, group.address, int((group.remote.hello or {})["pid"]))
                for group in self._groups
                if group.ready and not group.failed
                for one in group.ids
            ]
            failed = [
                Failure(group.host, group.failed or _late(group, timeout_s), len(group.ids))
                for group in self._groups
                if group.failed or group.pending
            ]
        return Report(tuple(workers), tuple(failed))

    @property
    def _alive(self) -> list[_Group]:
        return [one for one in self._groups if not one.failed]

    def _shares(self, count: int) -> dict[str, int]:
        """Workers by host, each filled up before the next. Raises `ConfigError` without enough places."""
        if self._cluster is None:
            return {HERE: count}
        taken: dict[str, int] = {}
        for group in self._alive:
            taken[group.host] = taken.get(group.host, 0) + len(group.ids)
        shares, left = {}, count
        for one in self._cluster.workers:
            share = min(left, one.workers - taken.get(one.host, 0))
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
        number = sum(one.host == name for one in self._groups) + 1
        key = name if number == 1 else f"{name}-{number}"
        group = _Group(name, key, ids, self._words(name, count, needs), needs.device)
        config = self._cluster.ssh_config if self._cluster is not None else None
        group.remote = Remote(Connection(name, self._ways[name], config, self._events, key))
        self._groups.append(group)

    def _words(self, name: str, count: int, needs: Needs) -> tuple[str, ...]:
        """The options of `speedo worker` on this host."""
        if not count:
            return ()
        entry = self._cluster.trains(name) if self._cluster is not None else None
        threads = str(int(needs.cpus)) if needs.cpus is not None else entry and entry.threads
        words = ["--workers", str(count)]
        words += ["--threads", threads] if threads else []
        if entry is not None:
            words += ["--bind", entry.bind] if entry.bind else []
            words += ["--device", entry.device] if entry.device else []
            there = sum(len(one.ids) for one in self._groups if one.host == name)
            for cores in entry.cores[there : there + count]:
                words += ["--cores", cores]
            words += ["--data-root", entry.data_root] if entry.data_root else []
        return tuple(words)

    # ---------------------------------------------------------------- a run

    def run(self, options: Mapping[str, Any], workers: int | None) -> RunResult:
        from speedo.actors.launch import serve_master

        report = self.report(READY_S)
        wanted = len(report.workers) if workers is None else checked_count("workers", workers)
        if not report.workers:
            raise ClusterError(f"no worker is ready: call launch_workers first{report.why}")
        if wanted > len(report.workers):
            raise ClusterError(
                f"{wanted} workers were asked for, and {len(report.workers)} are ready: ask for fewer, or launch "
                f"more{report.why}"
            )
        chosen = self._chosen(wanted)
        given = {"join_timeout": JOIN_S, **options, "workers": wanted}
        if self._cluster is not None and given.get("servers") is None:
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
            given["port"] = _free_port() if alone else DEFAULT_PORT
        config = make_config(given)
        require_for(config)
        if config.serves:
            chosen.update({one: 0 for one in self._alive if not one.ids and one.ready})
        commands = RunCommands(self, chosen, f"{config.host}:{config.port}")
        folder = make_private_folder("speedo-token-")
        try:
            token = folder / "token"
            token.touch(0o600)
            token.write_text(self._token)
            result = serve_master(config, commands, token)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            problems = commands.end()
        return replace(result, problems=(*result.problems, *problems))

    def _chosen(self, wanted: int) -> dict[_Group, int]:
        """How many workers of each group take part: the first that are ready."""
        chosen: dict[_Group, int] = {}
        for group in self._alive:
            if share := min(len(group.ids), wanted) if group.ready else 0:
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

    def start(self, group: _Group, role: str, words: Sequence[str], text: str = "") -> None:
        """Start a command on the host of this group; the token goes with it."""
        way = group.remote.connection.access
        values: dict[str, Any] = {
            "argv": [role, *words],
            "env": {**self._environments[group.host], TOKEN_VARIABLE: self._token},
            "input": text,
            "directory": way.directory or (str(Path.cwd()) if is_here(group.host) else None),
        }
        if role != DOCTOR:
            values["log_option"] = "--logs"
        with self._changed:
            group.remote.commands[role] = Command(order=values)
        group.remote.connection.send(start=role, **values)

    def wait(
        self, groups: Sequence[_Group], until: Callable[[_Group], bool], seconds: float
    ) -> bool:
        """Whether it holds for all of them within this many seconds, or nobody would hear of it."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._broken is not None or all(map(until, groups)), seconds
            )

    def check(self) -> None:
        """Raise the error that has ended the thread which hears the hosts: a bug, or no memory."""
        if self._broken is not None:
            raise self._broken

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        if self._closed:
            return
        try:
            for group in self._groups:
                group.remote.connection.close()
            self.wait(self._groups, lambda one: one.remote.closed is not None, END_S)
        finally:
            for group in self._groups:
                if group.remote.closed is None:
                    group.remote.connection.kill()
            self._closed = True
            self._thread.join(BEAT_S)
            for group in self._groups:
                group.failed = group.failed or "the cluster is closed"

    # ---------------------------------------------------------------- the thread

    def _serve(self) -> None:
        """Hear the hosts until the end; whatever else ends this ends the runs, too."""
        try:
            self._hear()
        except Exception as error:
            with self._changed:
                self._broken = error
                for group in self._groups:
                    group.remote.connection.kill()
                self._changed.notify_all()

    def _hear(self) -> None:
        """Take what happens on the hosts, and show them that we are still here."""
        next_beat = 0.0
        while not self._closed:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_S
                for group in self._alive:
                    group.remote.connection.send(beat=True)
            try:
                happened = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            with self._changed:
                group = next(one for one in self._groups if one.key == happened.host)
                try:
                    self._take(group, happened.values)
                except EventError as error:
                    group.remote.connection.reject(str(error))
                self._changed.notify_all()

    def _take(self, group: _Group, values: Mapping[str, Any]) -> None:
        remote = group.remote
        command = remote.commands.get(
            str(values.get("of") or values.get("ended") or values.get("filed"))
        )
        if "hello" in values:
            remote.greet(values["hello"])
            if problem := greeting_problem(remote, ".".join(map(str, sys.version_info[:2]))):
                self._fail(group, problem)
                return
            seen = self._host or remote.launcher_address or LOOPBACK
            words = ["--json", "--facts-stdin", "--master", f"{seen}:{self._port or DEFAULT_PORT}"]
            self.start(group, DOCTOR, [*words, *group.words], '{"facts": {}}')
        elif "line" in values and command is not None:
            if remote.files is not None:
                remote.files.line(values)
            if values["stream"] == "out":
                command.printed(values["line"])
            elif values["line"].strip():
                command.last_error = values["line"]
        elif "ended" in values and command is not None:
            command.status = values["status"]
            if values["ended"] == DOCTOR:
                group.ready = command.status == 0
                if not group.ready:
                    self._fail(group, "; ".join(failures(command)))
        elif "file" in values and remote.files is not None:
            remote.files.part(values)
        elif "filed" in values and command is not None:
            command.filed = True
            remote.connection.send(got=values["filed"])
        elif "closed" in values:
            remote.closed = str(values["why"])
            group.failed = group.failed or remote.closed

    def _fail(self, group: _Group, why: str) -> None:
        group.failed = why
        group.remote.connection.close()


class RunCommands(Quiet):
    """The commands of one run: they start once its directory is there, and must not fail before it trains."""

    def __init__(self, hosts: HeldHosts, chosen: Mapping[_Group, int], address: str) -> None:
        self._hosts, self._chosen, self._address = hosts, chosen, address
        self._begun = False

    def begin(self, run_dir: Path) -> None:
        self._begun = True
        for group, count in self._chosen.items():
            group.remote.commands = {}
            group.remote.files = HostFiles(run_dir, group.key)
            words = list(group.words)
            if count:
                words[words.index("--workers") + 1] = str(count)
            words = ["--master", self._address, "--timeout", str(int(READY_S)), *words]
            self._hosts.start(group, group.role, words)

    def show(self, status: Status) -> None:
        """Raises `MachineError` with every host whose workers failed before the first iteration."""
        self._hosts.check()
        if status.iteration or status.over:
            return
        found = []
        for group in self._chosen:
            command = group.remote.commands[group.role]
            if group.remote.closed is not None:
                found.append(f"{group.host}: {group.remote.closed}")
            elif command.status:
                found.append(f"{group.host}: `speedo {group.role}` {command.end}")
        if found:
            self._stop()
            raise MachineError(found)

    def end(self) -> list[str]:
        """Every command has ended and its logs are here; returns what of them is not."""
        if not self._begun:
            return []
        groups = list(self._chosen)
        if not self._hosts.wait(groups, lambda one: one.left, LEAVE_S):
            self._stop()
            if not self._hosts.wait(groups, lambda one: one.left, END_S):
                for group in groups:
                    if not group.left:
                        group.remote.connection.kill()
        problems = []
        for group in groups:
            files, group.remote.files = group.remote.files, None
            if files is not None:
                files.text("ssh.log", group.remote.connection.errors)
                problems += [f"logs of {group.host}: {files.problem}"] if files.problem else []
        return problems

    def _stop(self) -> None:
        for group in self._chosen:
            group.remote.connection.send(stop=group.role, signal="SIGTERM")


def _late(group: _Group, timeout_s: float) -> str:
    doing = "has not answered" if group.remote.hello is None else "is still being examined"
    return f"it {doing} after {timeout_s:g} s; it may become ready later"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
