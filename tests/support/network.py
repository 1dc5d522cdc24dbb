"""Hosts with addresses of their own on one machine: network namespaces, joined by a bridge in one more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.left_behind import PREFIX, namespaces, remove_namespace

ROOT = Path(__file__).parents[2]
BURST = "64kb"  # what a link lets through at once before it counts
# What the kernel hands to a link at once. More than the burst it would cut into packets of 1,500 bytes itself, on the
# very cores that train; a real card does that.
HANDED = "32768"
QUEUE = "50ms"


@dataclass(frozen=True)
class Host:
    """One namespace, its address, and the end of its cable in the bridge's namespace."""

    name: str
    address: str
    bridge: str
    port: str

    @property
    def inside(self) -> tuple[str, ...]:
        """What is typed before a command to run it on this host."""
        return ("ip", "netns", "exec", self.name)

    def python(self, module: str, *arguments: str) -> str:
        """What a module of ours prints on this host."""
        done = subprocess.run(
            [*self.inside, sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self) -> list[int]:
        """All that run on this host now."""
        mine, found = os.stat(f"/run/netns/{self.name}").st_ino, []
        for place in Path("/proc").iterdir():
            with suppress(OSError):  # it has just ended
                if place.name.isdigit() and os.stat(place / "ns" / "net").st_ino == mine:
                    found.append(int(place.name))
        return found

    def kill_all(self) -> None:
        """As if the host lost its power."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def pull_the_cable(self) -> None:
        """From now on nothing leaves or reaches this host, and nobody is told."""
        ip("-n", self.bridge, "link", "set", self.port, "down")

    def plug_in_again(self) -> None:
        ip("-n", self.bridge, "link", "set", self.port, "up")


@contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """Hosts 10.79.0.1, 10.79.0.2 and so on, that see one another and nothing else.

    All that runs on them is killed at the end. Networks of several tests do not see one another.
    """
    require_namespaces()
    stem = f"{PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    bridge = f"{stem}-0"
    try:
        _add(bridge)
        ip("-n", bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", bridge, "link", "set", "bridge", "up")
        hosts = [
            Host(f"{stem}-{number}", f"10.79.0.{number}", bridge, f"port{number}")
            for number in range(1, count + 1)
        ]
        for host in hosts:
            _add(host.name)
            ip(
                *("-n", bridge, "link", "add", host.port, "type", "veth"),
                *("peer", "name", "eth0", "netns", host.name),
            )
            ip("-n", bridge, "link", "set", host.port, "master", "bridge", "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for name in namespaces():
            if name.startswith(stem):
                remove_namespace(name)


def require_namespaces() -> None:
    """Skip where hosts cannot be made; where CI runs, that is a failure."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root")
    if shutil.which("ip") is None:
        missing.append("ip (apt-get install iproute2)")
    if missing:
        told = f"SEVERAL HOSTS ARE NOT TESTED: network namespaces need {' and '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def limit(host: Host, megabits: float) -> None:
    """From now on the cable of this host carries so much each way."""
    for namespace, device in ((host.name, "eth0"), (host.bridge, host.port)):
        ip("-n", namespace, "link", "set", "dev", device, "gso_max_size", HANDED)
        tc(
            *("-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{megabits:g}mbit", "burst", BURST, "latency", QUEUE),
        )


def tc(*arguments: str) -> str:
    done = subprocess.run(
        ["tc", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, f"tc {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _add(name: str) -> None:
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")
