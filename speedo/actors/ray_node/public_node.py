"""A Ray node by Ray's public command, for a Ray that lacks something of what `node` builds on.

It has all of Ray's services, starts more slowly, and where `ray start` replaces 127.0.0.1 by the machine's own address
it listens there, with the token.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from speedo.actors.ray_node.cleanup import kept
from speedo.actors.ray_node.folder import OBJECT_STORE_BYTES, RAY_FOLDER
from speedo.actors.ray_node.ports import Ports
from speedo.errors import ClusterError
from speedo.system.background_process import start_in_background

START_S: Final = 60.0
LOOK_S: Final = 0.1
READY: Final = "--block"  # the command says so once its node is there
LOG: Final = "start.log"


@dataclass(frozen=True, slots=True)
class PublicNode:
    """`command` is `ray start`, which lives as long as its node."""

    gcs_address: str
    command: subprocess.Popen[bytes]

    def dead(self) -> str | None:
        """The name of what has died; None while all is well."""
        return None if self.command.poll() is None else "node"


@contextmanager
def public_node(
    address: str, ports: Ports, folder: str, *, master: str | None = None
) -> Iterator[PublicNode]:
    """As `ray_node`, by `ray start`."""
    port = ports.gcs or _free_port(address)
    options = [f"--address={master}"] if master else ["--head", f"--port={port}"]
    if master is None:
        options += ["--include-dashboard=false", f"--temp-dir={folder}/{RAY_FOLDER}"]
    for name in ("node_manager", "object_manager"):
        if given := getattr(ports, name):
            options.append(f"--{name.replace('_', '-')}-port={given}")
    if ports.processes is not None:
        options.append(f"--worker-port-list={','.join(map(str, ports.processes))}")
    log = Path(folder, LOG)
    with kept(folder), log.open("wb") as words:
        command = start_in_background(
            [
                *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *options),
                *(f"--node-ip-address={address}", "--num-cpus=1", "--disable-usage-stats"),
                f"--object-store-memory={OBJECT_STORE_BYTES}",
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
        )
        try:
            _wait(command, log)
            yield PublicNode(master or f"{address}:{port}", command)
        finally:
            with suppress(psutil.Error):
                whole = psutil.Process(command.pid)
                for process in [*whole.children(recursive=True), whole]:
                    with suppress(psutil.Error):
                        process.kill()
            command.wait()


def note_on(lacking: list[str]) -> str:
    """What is said where a run falls back to this."""
    return (
        f"note: this Ray has no {', '.join(lacking)}: its node is started by `ray start`, which takes longer and has "
        "more processes"
    )


def _wait(command: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while READY not in log.read_text(errors="replace"):
        if command.poll() is not None or time.monotonic() > deadline:
            last = " ".join(log.read_text(errors="replace").split())[-500:]
            raise ClusterError(f"no Ray node could be started here: {last}")
        time.sleep(LOOK_S)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
