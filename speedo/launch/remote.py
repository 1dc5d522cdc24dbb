"""A host as the launcher knows it: its connection, its greeting, the commands on it and how they ended."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
