"""Hosts, each by a connection: commands are started there and heard, their logs are fetched, and they end with us.

`speedo launch` is one user, `speedo.Cluster` the other.
"""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from speedo.actors.token import TOKEN_VARIABLE, new_token
from speedo.launch.cluster import HostAccess, is_here
from speedo.launch.commands import DOCTOR, SERVER, WORKER
from speedo.launch.connection import Connection, signal_name
from speedo.launch.host_files import HostFiles
from speedo.launch.protocol import EventError
from speedo.system.foreign_text import clean_text
from speedo.version import VERSION

LOOK_S: Final = 0.2
FETCH_S: Final = 25.0  # for the logs of a host whose connection was lost
MOST_OUT: Final = 1 << 20  # characters of output that are kept; the last line always
MOST_FAILURES: Final = 50


@dataclass(slots=True)
class Command:
    """A command on a host, as far as it is known here."""

    out: deque[str] = field(default_factory=deque)
    last_error: str = ""
    status: int | None = None
    filed: bool = False
    order: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    _size: int = 0

    def printed(self, line: str) -> None:
        """A line to standard output."""
        self.out.append(line)
        self._size += len(line) + 1
        while self._size > MOST_OUT and len(self.out) > 1:
            self._size -= len(self.out.popleft()) + 1

    @property
    def end(self) -> str:
        """How it ended badly, in words."""
        if self.status is not None and self.status < 0:
            return f"was killed by {signal_name(-self.status)}"
        return (
            f"ended with status {self.status}: {self.last_error.strip().removeprefix('speedo: ')}"
        )


@dataclass(slots=True)
class RemoteHost:
    """A host: its connection, its greeting, its commands. `closed` is why there is no connection any more.

    It is `ready` once its doctor has found nothing; `failed` is why it cannot take part, a line each.
    """

    connection: Connection
    environment: Mapping[str, str] = field(default_factory=dict)
    hello: Mapping[str, Any] | None = None
    closed: str | None = None
    ready: bool = False
    failed: str = ""
    commands: dict[str, Command] = field(default_factory=dict)
    files: HostFiles | None = None

    def command(self, name: str) -> Command:
        """The command that an event names. Raises `EventError` if it was not started there."""
        try:
            return self.commands[name]
        except KeyError:
            raise EventError(
                f"it sent an event of a command that does not run there ({name})"
            ) from None

    @property
    def ended(self) -> bool:
        """Whether every command there has told its end."""
        return all(one.status is not None for one in self.commands.values())

    @property
    def left(self) -> bool:
        """Whether nothing runs there any more, as far as it is known, and all logs have come."""
        return self.closed is not None or all(one.filed for one in self.commands.values())

    @property
    def failure(self) -> str:
        """How a worker or server there has failed; empty if none has."""
        for role in (WORKER, SERVER):
            command = self.commands.get(role)
            if command is not None and command.status is None and self.closed is not None:
                return f"the connection was lost: {self.closed}"
            if command is not None and command.status:
                return f"`speedo {role}` {command.end}"
        return ""

    @property
    def launcher_address(self) -> str | None:
        """This machine's address as the host reaches it: that of ssh's own connection, or one of ours that it tells.

        A host does not decide where this machine listens: another address is None.
        """
        told = _address((self.hello or {}).get("launcher"))
        found = _address(self.connection.own_address)
        return found or (told if told in _own_addresses() else None)

    @property
    def address(self) -> str | None:
        """The host's address, as its sshd sees it; None for what is no address."""
        return _address((self.hello or {}).get("address"))


def _address(text: object) -> str | None:
    """The address of one machine in its usual form; None for all else."""
    try:
        found = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    found = getattr(found, "ipv4_mapped", None) or found
    return None if found.is_unspecified or found.is_multicast else str(found)


def _own_addresses() -> set[str | None]:
    return {_address(one.address) for some in psutil.net_if_addrs().values() for one in some}


def greeting_problem(remote: RemoteHost, python: str | None) -> str:
    """Why a host cannot take part by its greeting; empty if it can. `python` is the version of the master's host."""
    if remote.closed is not None:
        return remote.closed
    if remote.hello is None:
        return "it does not answer: try `ssh HOST true`, and see whether its login shell waits for something"
    if remote.hello["speedo"] != VERSION:
        return f"it has SpeeDO {remote.hello['speedo']}, this machine {VERSION}: install the same version"
    if python not in (None, remote.hello["python"]):
        return f"it has Python {remote.hello['python']}, the master's host {python}: use the same everywhere"
    return ""


def failures(command: Command) -> list[str]:
    """What a doctor found, a line each; what it said if it found no words."""
    try:
        checks = json.loads(command.out[-1])["checks"]
        found = [
            f"{one['name']}: {one['text']}{'; ' if one['remedy'] else ''}{one['remedy']}"
            for one in checks
            if one["level"] == "fail"
        ]
    except (LookupError, ValueError, TypeError, RecursionError):
        found = []
    return [clean_text(one.replace("\n", " ")) for one in found[:MOST_FAILURES]] or [
        f"`speedo doctor` {command.end}"
    ]


class Hosts:
    """All hosts of a cluster, by the keys of their connections.

    `told` gets each event of a host once it is taken, from a thread that holds `changed`; it may raise `EventError` for
    one that does not fit, which ends that host. Any other error ends all hosts, and `wait` raises it.
    """

    def __init__(
        self, told: Callable[[RemoteHost, Mapping[str, Any]], None], ssh_config: str | None
    ) -> None:
        self.token = new_token()
        self.remotes: dict[str, RemoteHost] = {}
        self.changed = threading.Condition()
        self._told, self._ssh_config = told, ssh_config
        self._broken: Exception | None = None

    def connect(
        self, name: str, access: HostAccess, environment: Mapping[str, str], key: str | None = None
    ) -> RemoteHost:
        """Begin to connect to a host. Its commands get `environment` and the token."""
        with self.changed:
            connection = Connection(name, access, self._ssh_config, self.take, key)
            remote = self.remotes[connection.key] = RemoteHost(connection, environment)
        return remote

    def start(
        self, remote: RemoteHost, words: Sequence[str], text: str = "", collect: Sequence[str] = ()
    ) -> None:
        """Start a command of speedo there, with `text` as its input. Its logs, and `collect`, are sent at its end."""
        connection, role = remote.connection, words[0]
        here = str(Path.cwd()) if is_here(connection.name) else None
        # All of it goes through the connection: everybody there may read a command line.
        values: dict[str, Any] = {
            "argv": list(words),
            "env": {**remote.environment, TOKEN_VARIABLE: self.token},
            "input": text,
            "directory": connection.access.directory or here,
            "collect": list(collect),
        }
        if role in (WORKER, SERVER):
            values["log_option"] = "--logs"
        with self.changed:
            remote.commands[role] = Command(order=values)
        connection.send(start=role, **values)

    def wait(self, until: Callable[[], bool], seconds: float, stopped: Sequence[str] = ()) -> bool:
        """Whether it holds within this many seconds; False at once if somebody is `stopped`."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (done := until()) and self._broken is None and not stopped:
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self.changed.wait(min(left, LOOK_S))
            self.check()
        return done

    def check(self) -> None:
        """Raise the error that has ended the hosts: a bug, or no memory."""
        if self._broken is not None:
            raise self._broken

    # ---------------------------------------------------------------- the end

    def end_commands(
        self, remotes: Iterable[RemoteHost], patience_s: float, end_s: float
    ) -> dict[str, str]:
        """Commands end by themselves, or are told to; their logs come. What is missing of them, by host.

        Those that do not end within `patience_s` get SIGTERM, and have `end_s` then.
        """
        remotes = [*remotes]

        def left() -> bool:
            return all(one.left for one in remotes)

        if not self.wait(left, patience_s):
            for remote in remotes:
                for role, command in remote.commands.items():
                    if command.status is None:
                        remote.connection.send(stop=role, signal="SIGTERM")
            self.wait(left, end_s)
        missing = self._fetch([one for one in remotes if one.closed is not None and one.files])
        for remote in remotes:
            with self.changed:
                files, remote.files = remote.files, None
            if files is not None:
                files.text("ssh.log", remote.connection.errors)
                if files.problem:
                    missing[remote.connection.name] = files.problem
        return missing

    def _fetch(self, lost: list[RemoteHost]) -> dict[str, str]:
        """Connect once more to hosts whose connection was lost, for the logs of what ran there."""
        again = [one for one in lost if not one.connection.rejected]
        for remote in again:
            old = remote.connection
            if remote.files is not None:
                remote.files.text("ssh.log", old.errors)
                remote.files.begin_again()
            with self.changed:
                remote.hello = remote.closed = None
                remote.connection = Connection(
                    old.name, old.access, self._ssh_config, self.take, old.key
                )
            for role, command in remote.commands.items():
                if not command.filed:
                    wanted = {key: command.order[key] for key in ("directory", "collect")}
                    remote.connection.send(fetch=role, folder=command.folder, **wanted)
        self.wait(lambda: all(one.left for one in again), FETCH_S)
        return {one.connection.name: one.closed for one in again if one.closed is not None}

    def close(self, seconds: float, *, hard: bool = False) -> None:
        """Every command on every host ends, with `hard` at once; then every ssh. May be called again."""
        there = [one for one in self.remotes.values() if one.closed is None]
        try:
            for remote in there:
                if hard:
                    remote.connection.send(hard=True)
                remote.connection.close()
            if self._broken is None:
                self.wait(lambda: all(one.closed is not None for one in there), seconds)
        finally:
            for remote in there:
                if remote.closed is None:
                    remote.connection.kill()

    # ---------------------------------------------------------------- events

    def take(self, key: str, values: Mapping[str, Any]) -> None:
        """Take what a host has sent; what does not fit to what was started there ends its connection."""
        with self.changed:
            remote = self.remotes[key]
            try:
                _take(remote, values)
                self._told(remote, values)
            except EventError as error:
                remote.connection.reject(str(error))
            except Exception as error:
                self._broken = error
                for one in self.remotes.values():
                    one.connection.kill()
            self.changed.notify_all()


def _take(remote: RemoteHost, values: Mapping[str, Any]) -> None:
    if "hello" in values:
        if remote.hello is not None:
            raise EventError("it greeted twice")
        remote.hello = values["hello"]
    elif "line" in values:
        command = remote.command(values["of"])
        if remote.files is not None:
            remote.files.line(values)
        if values["stream"] == "out":
            command.printed(values["line"])
        elif values["line"].strip():
            command.last_error = values["line"]
    elif "started" in values:
        remote.command(values["started"]).folder = values["folder"]
    elif "ended" in values:
        command = remote.command(values["ended"])
        command.status = values["status"]
        if values["ended"] == DOCTOR:
            remote.ready = command.status == 0
            remote.failed = "" if remote.ready else "\n".join(failures(command))
    elif "file" in values and remote.files is not None:
        remote.files.part(values)
    elif "filed" in values:
        remote.command(values["filed"]).filed = True
        remote.connection.send(got=values["filed"])
    elif "closed" in values:
        remote.closed = why = str(values["why"])
        if DOCTOR in remote.commands and not remote.ready and not remote.connection.rejected:
            why = f"the connection was lost while it was examined: {why}"
        remote.failed = remote.failed or why
