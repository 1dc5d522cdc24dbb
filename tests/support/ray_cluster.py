"""A Ray cluster as its users start it: `ray start`, a node on each host, with Ray's token authentication."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.commands import how_loaded
from tests.support.forked.commands import python
from tests.support.forked.interpreter import PLAIN
from tests.support.left_behind import short_folder
from tests.support.network import ROOT, Host

PORT = 6399
TRIES = 3


@dataclass
class UsersCluster:
    """Its first host has the head. `environment` is what every program needs that talks with it."""

    hosts: list[Host]
    folder: Path
    environment: dict[str, str]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)

    @property
    def temporary(self) -> list[Path]:
        """The temporary folders of the drivers and of each node's actors; Ray's own files are elsewhere."""
        return [Path(self.environment["TMPDIR"]), *map(self._temporary_of, self.nodes)]

    def _temporary_of(self, host: str) -> Path:
        return self.folder / f"t-{host.rpartition('-')[2]}"

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    def add(
        self, host: Host, cpus: int, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start this host's node, and wait until it is there."""
        self.begin(host, cpus, *options, environment=environment)
        self.wait_for(host)

    def begin(
        self, host: Host, cpus: int, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start this host's node."""
        head = host is self.hosts[0]
        where = (
            ("--head", f"--port={PORT}", f"--temp-dir={self.folder}/r", "--no-monitor")
            if head
            else (f"--address={self.address}",)
        )
        if head and "--include-dashboard" not in str(options):
            where = (*where, "--include-dashboard=false")
        # The hosts have one file system, where nodes that start together would take the same names for their sockets.
        mount = 'mkdir -p "$0" && mount -t tmpfs none "$0" && exec "$@"'
        apart = () if head else ("sh", "-c", mount, f"{self.folder}/r")
        self._commands[host.name] = (
            [
                *host.inside, *apart, python(), "-m", "ray.scripts.scripts", "start", "--block", *where,
                f"--node-ip-address={host.address}", f"--num-cpus={cpus}", "--disable-usage-stats",
                f"--object-store-memory={80 << 20}", "--include-log-monitor=false", *options,
            ],
            {**self.environment, "TMPDIR": str(self._temporary_of(host.name)), **(environment or {})},
        )  # fmt: skip
        self._temporary_of(host.name).mkdir(exist_ok=True)
        self._start(host)

    def _start(self, host: Host) -> None:
        command, environment = self._commands[host.name]
        with open(self.folder / f"{host.address}.log", "wb") as log:
            self.nodes[host.name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, host: Host) -> None:
        """Until its node is part of the cluster.

        Ray gives the node, and its dashboard, 30 s each, which a busy machine may exceed.
        """
        began, tries = time.monotonic(), 1
        while b"--block" not in (self.folder / f"{host.address}.log").read_bytes():
            if self.nodes[host.name].poll() is not None:
                assert tries < TRIES, self.said(host)
                tries += 1
                host.kill_all()
                self._start(host)
            assert time.monotonic() < began + 150 * how_loaded(), self.said(host)
            time.sleep(0.1)

    def said(self, host: Host) -> str:
        return (self.folder / f"{host.address}.log").read_text(errors="replace")[-2000:]

    def kill(self, host: Host) -> None:
        """As if the host lost its power."""
        host.kill_all()
        self.nodes[host.name].wait(120)

    def run(self, program: str) -> str:
        """What a driver of the cluster prints on its first host."""
        done = subprocess.run(
            [*self.hosts[0].inside, sys.executable, "-c", program],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def users_cluster(hosts: list[Host], *first: Path) -> Iterator[UsersCluster]:
    """No node yet; `first` are folders in which Python looks before all others."""
    folder = short_folder("ray-")  # sockets have short names
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        PLAIN: "1" if first else "",
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT))),
        "TMPDIR": str(folder / "t"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # The head finds a dead node in 5 s instead of 25.
        "RAY_health_check_period_ms": "1000",
    }
    (folder / "t").mkdir()
    # By a folder on PYTHONPATH alone the command would still import its own packages first.
    places = list(map(str, first))
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.path[:0] = {places!r}\n")
    cluster = UsersCluster(hosts, folder, environment)
    try:
        yield cluster
    finally:
        for host in hosts:
            if host.name in cluster.nodes:
                cluster.kill(host)
        shutil.rmtree(folder, ignore_errors=True)


def oldest_ray() -> Path:
    """The folder with the oldest Ray that SpeeDO runs with: put it before all others."""
    folder = Path(os.environ.get("SPEEDO_OLDEST_RAY", f"{sys.prefix}/oldest-ray"))
    assert (folder / "ray").is_dir(), f"{folder} has no Ray: `make setup` installs it"
    return folder
