"""A host as the launcher knows it: its connection, its greeting, the commands on it and how they ended."""

from __future__ import annotations

import ipaddress
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from speedo.launch.connection import Connection, signal_name
from speedo.launch.host_files import HostFiles
from speedo.launch.protocol import EventError
from speedo.system.foreign_text import clean_text
from speedo.version import VERSION

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
class Remote:
    """A host: its connection, its greeting, its commands. `closed` is why there is no connection any more."""

    connection: Connection
    hello: Mapping[str, Any] | None = None
    closed: str | None = None
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

    def greet(self, hello: Mapping[str, Any]) -> None:
        """Take its greeting. Raises `EventError` for a second one."""
        if self.hello is not None:
            raise EventError("it greeted twice")
        self.hello = hello

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


def greeting_problem(remote: Remote, python: str | None) -> str:
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
