"""A Ray cluster as its users start it: `ray start`, a node on each host, with Ray's token authentication."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.network import ROOT, Host, ip

PORT = 6399


@dataclass
class UsersCluster:
    """Its first host has the head. `environment` is what every program needs that talks with it."""

    hosts: list[Host]
    folder: Path
    environment: dict[str, str]
    python: Sequence[str] = (sys.executable,)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    def add(
        self, host: Host, cpus: int, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start this host's node and wait until it is there."""
        head = host is self.hosts[0]
        where = (
            ("--head", f"--port={PORT}", f"--temp-dir={self.folder}")
            if head
            else (f"--address={self.address}",)
        )
        dashboard = (
            ("--include-dashboard=false",)
            if head and "--dashboard-port" not in str(options)
            else ()
        )
        log = open(self.folder / f"{host.address}.log", "wb")  # noqa: SIM115
        self.nodes[host.name] = subprocess.Popen(
            [
                *host.inside, *self.python, "-m", "ray.scripts.scripts", "start", "--block", *where, *dashboard,
                f"--node-ip-address={host.address}", f"--num-cpus={cpus}", "--disable-usage-stats",
                f"--object-store-memory={80 << 20}", *options,
            ],
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + 60
        while b"--block" not in (self.folder / f"{host.address}.log").read_bytes():
            assert self.nodes[host.name].poll() is None, self.said(host)
            assert time.monotonic() < deadline, self.said(host)
            time.sleep(0.1)

    def said(self, host: Host) -> str:
        return (self.folder / f"{host.address}.log").read_text(errors="replace")[-2000:]

    def kill(self, host: Host) -> None:
        """As if the host lost its power."""
        for process in ip("netns", "pids", host.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        self.nodes[host.name].wait(10)

    def run(self, program: str) -> str:
        """What a driver of the cluster prints on its first host."""
        done = subprocess.run(
            [*self.hosts[0].inside, *self.python, "-c", program],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def users_cluster(
    hosts: list[Host], *first: Path, python: Sequence[str] = (sys.executable,)
) -> Iterator[UsersCluster]:
    """No node yet; `first` are folders in which Python looks before all others."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short names
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "PYTHONPATH": os.pathsep.join(map(str, (*first, ROOT))),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    cluster = UsersCluster(hosts, folder, environment, python)
    try:
        yield cluster
    finally:
        for host in hosts:
            if host.name in cluster.nodes:
                cluster.kill(host)
        shutil.rmtree(folder, ignore_errors=True)
