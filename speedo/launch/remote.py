"""A host as the launcher knows it: its connection, its greeting, the commands on it and how they ended."""

from __future__ import annotations

import ipaddress
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from speedo.launch.connection import Connection
from speedo.launch.host_files import HostFiles
from speedo.version import VERSION


@dataclass(slots=True)
class Command:
    """A command on a host, as far as it is known here."""

    out: list[str] = field(default_factory=list)
    last_error: str = ""
    status: int | None = None
    filed: bool = False
    order: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""

    @property
    def end(self) -> str:
        """How it ended badly, in words."""
        if self.status is not None and self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}: {self.last_error.removeprefix('speedo: ')}"


@dataclass(slots=True)
class Remote:
    """A host: its connection, its greeting, its commands. `closed` is why there is no connection any more."""

    connection: Connection
    hello: Mapping[str, Any] | None = None
    closed: str | None = None
    commands: dict[str, Command] = field(default_factory=dict)
    files: HostFiles | None = None

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
    except (IndexError, ValueError, KeyError, TypeError):
        found = []
    return [one.replace("\n", " ") for one in found] or [f"`speedo doctor` {command.end}"]
