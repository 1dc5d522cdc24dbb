"""Starts a Ray node by Ray's public command, as a child of this process, with as few of Ray's services as it allows."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from speedo.actors.ray_node.folder import OBJECT_STORE_BYTES, RAY_FOLDER, kept
from speedo.actors.ray_node.ports import Ports, free_port
from speedo.errors import ClusterError
from speedo.system.background_process import start_in_background

START_S: Final = 90.0
LOOK_S: Final = 0.05
TRIES: Final = 3
# What Ray says where a machine is busy: it gives a node 30 s, and others as long for the head's to be there.
LATE: Final = ("timed out during startup", "No node info found for head node")
READY: Final = "--block"  # the command says so once its node is there
LOG: Final = "start.log"
# Without a dashboard its process is there nevertheless, and does nothing, but Ray waits for its start: 0.8 s of a core.
# Ray continues without it where it has no address to listen at, and no machine has this one (RFC 5737).
_NO_DASHBOARD: Final = (
    "--include-dashboard=false",
    "--dashboard-host=192.0.2.1",
    "--dashboard-port=8265",
)
REFUSED: Final = ("InvalidAuthToken", "Unauthenticated")  # the token, in Ray's words


@dataclass(frozen=True, slots=True)
class Node:
    """A node at `address` of the cluster at `gcs`; `command` is `ray start`, which lives as long as its node."""

    address: str
    gcs: str
    command: subprocess.Popen[bytes]
    note: str

    def dead(self) -> str | None:
        """The name of what has died; None while all is well."""
        return None if self.command.poll() is None else "node"

    def lost_process(self) -> str | None:
        """Which of a head's processes is gone, before Ray's own command notices: it then ends the other."""
        with suppress(psutil.Error):
            below = psutil.Process(self.command.pid).children(recursive=True)
            there = {one.name() for one in below if one.status() != psutil.STATUS_ZOMBIE}
            gone = [name for name in ("gcs_server", "raylet") if name not in there]
            return "node" if len(gone) > 1 else gone[0] if gone else None
        return self.dead()


@contextmanager
def ray_node(
    address: str,
    ports: Ports,
    folder: str,
    environment: Mapping[str, str],
    *,
    master: str | None = None,
    resources: str = "{}",
    meanwhile: Callable[[], None] = lambda: None,
    words: Path | None = None,
    limit_s: float = START_S,
) -> Iterator[Node]:
    """Run a node at `address` (an IP address of this machine): a head, unless `master` (host:port) is given.

    Ray makes its own folder writable for every user, so it is placed in `folder`, which must be private. `resources`
    are Ray's, as JSON: what the node has to offer. `meanwhile` is called while it starts. `words` is a
    file for what Ray's command says.

    All its processes end with this one, however this one ends. Raises `ClusterError` if it does not start.
    """
    port = ports.gcs or free_port(address)
    if master is None:
        options = ["--head", f"--port={port}", "--no-monitor", *_NO_DASHBOARD]
    else:
        options = [f"--address={master}"]
    for name in ("node_manager", "object_manager"):
        if given := getattr(ports, name):
            options.append(f"--{name.replace('_', '-')}-port={given}")
    options += [f"--{name}={number}" for name, number in ports.agents.items()]
    if ports.processes is not None:
        options.append(f"--worker-port-list={','.join(map(str, ports.processes))}")
    program = [
        *(sys.executable, "-P", "-m", "speedo.actors.ray_node.start_command", "start", "--block"),
        *(*options, f"--node-ip-address={address}", "--num-cpus=1", f"--resources={resources}"),
        *(f"--temp-dir={folder}/{RAY_FOLDER}", "--include-log-monitor=false"),
        *("--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}"),
    ]
    log = Path(folder, LOG)
    with kept(folder), ExitStack() as running:
        for tries_left in reversed(range(TRIES)):
            command = running.enter_context(_running(program, folder, environment))
            meanwhile()
            try:
                said = _wait(command, log, limit_s)
                break
            except ClusterError as error:
                running.close()
                if not tries_left or not any(late in str(error) for late in LATE):
                    raise
            finally:
                if words is not None:
                    shutil.copyfile(log, words)
        note = next((line for line in said.splitlines() if line.startswith("note: ")), "")
        yield Node(address, master or f"{address}:{port}", command, note)


@contextmanager
def _running(
    program: list[str], folder: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with Path(folder, LOG).open("wb") as words:
        command = start_in_background(
            program,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
        )
    try:
        yield command
    finally:
        with suppress(psutil.Error):
            whole = psutil.Process(command.pid)
            for process in [*whole.children(recursive=True), whole]:
                with suppress(psutil.Error):
                    process.kill()
        command.wait()


def _wait(command: subprocess.Popen[bytes], log: Path, limit_s: float) -> str:
    """What it has said, once the node is there."""
    deadline = time.monotonic() + limit_s
    while READY not in (said := log.read_text(errors="replace")):
        refused = any(word in said for word in REFUSED)  # Ray would try again for 20 s and more
        if refused or command.poll() is not None or time.monotonic() > deadline:
            last = " ".join(said.split())[-500:]
            raise ClusterError(f"no Ray node could be started here: {last}")
        time.sleep(LOOK_S)
    return said
