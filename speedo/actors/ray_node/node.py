"""Starts a Ray node by Ray's public command, with as few of Ray's services as it allows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from speedo.actors.ray_node.folder import OBJECT_STORE_BYTES, RAY_FOLDER, kept
from speedo.actors.ray_node.kept_gcs import GCS, KeptGcs, environment_for, has_ended, keeps_state
from speedo.actors.ray_node.ports import Ports, free_port
from speedo.actors.ray_node.start_command import STARTED
from speedo.errors import ClusterError
from speedo.system.background_process import start_in_background

START_S: Final = 90.0
LOOK_S: Final = 0.05
TRIES: Final = 3
# What Ray says where a machine is busy: it gives a node 30 s, and others as long for the head's to be there; and a
# port that was free may be another's before Ray listens at it.
AGAIN: Final = (
    "timed out during startup",
    "No node info found for head node",
    "Address already in use",
)
LOG: Final = "start.log"
SERVICES: Final = (GCS, "raylet")
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
    """A node at `address` of the cluster at `gcs`. `services` are the processes, by name, without which there is none;
    a head's `kept` one is started again."""

    address: str
    gcs: str
    note: str
    services: Mapping[str, psutil.Process]
    kept: KeptGcs | None = None

    def dead(self) -> str | None:
        """The name of what has died; None while all is well."""
        if self.kept is not None and self.kept.failed:
            return GCS
        return next((name for name, one in self.services.items() if has_ended(one)), None)


@contextmanager
def starting_node(
    address: str,
    ports: Ports,
    folder: str,
    environment: Mapping[str, str],
    *,
    master: str | None = None,
    resources: str = "{}",
    actors: int = 1,
    words: Path | None = None,
    limit_s: float = START_S,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Callable[[], Node]]:
    """Start a node at `address` (an IP address of this machine): a head, unless `master` (host:port) is given.

    What it yields waits for the node. Ray makes its own folder writable for every user, so it is placed in `folder`,
    which must be private. `resources` are Ray's, as JSON: what the node has to offer. It starts processes for so many
    `actors` at once, as many as there are cores. `words` is a file for what Ray's command says. `tell` hears what
    happens to it later.

    All its processes end with this one, however this one ends. Raises `ClusterError` if it does not start.
    """
    keeps = master is None and keeps_state()
    if keeps:
        environment = {**environment, **environment_for(folder)}
    log = Path(folder, LOG)
    with kept(folder), ExitStack() as running:

        def start() -> tuple[str, subprocess.Popen[bytes]]:
            gcs = master or f"{address}:{ports.gcs or free_port(address)}"
            offer = [f"--num-cpus={actors}", f"--resources={resources}"]
            program = _program(address, gcs, ports, folder, offer, head=master is None)
            return gcs, running.enter_context(_running(program, folder, environment))

        first = start()

        def wait() -> Node:
            gcs, command = first
            for tries_left in reversed(range(TRIES)):
                try:
                    said = _wait(command, log, limit_s)
                    break
                except ClusterError:
                    running.close()
                    said = log.read_text(errors="replace")
                    if not tries_left or not any(cause in said for cause in AGAIN):
                        raise
                finally:
                    if words is not None:
                        shutil.copyfile(log, words)
                gcs, command = start()
            note = next((line for line in said.splitlines() if line.startswith("note: ")), "")
            services = _services(said)
            again = None
            if keeps:
                again = KeptGcs(services.pop(GCS), environment, tell)
                running.callback(again.close)
            return Node(address, gcs, note, services, again)

        yield wait


def _program(
    address: str, gcs: str, ports: Ports, folder: str, offer: Sequence[str], *, head: bool
) -> list[str]:
    """The command of a node of the cluster at `gcs` (host:port)."""
    if head:
        options = ["--head", f"--port={gcs.rpartition(':')[2]}", "--no-monitor", *_NO_DASHBOARD]
    else:
        options = [f"--address={gcs}"]
    for name in ("node_manager", "object_manager"):
        if given := getattr(ports, name):
            options.append(f"--{name.replace('_', '-')}-port={given}")
    options += [f"--{name}={number}" for name, number in ports.agents.items()]
    if ports.processes is not None:
        options.append(f"--worker-port-list={','.join(map(str, ports.processes))}")
    else:  # any free ones; Ray would keep 10002 to 19999 for them, and refuse a GCS there
        options += ["--min-worker-port=0", "--max-worker-port=0"]
    return [
        *(sys.executable, "-P", "-m", "speedo.actors.ray_node.start_command", "start", *options),
        *(f"--node-ip-address={address}", *offer),
        *(f"--temp-dir={folder}/{RAY_FOLDER}", "--include-log-monitor=false"),
        *("--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}"),
    ]


@contextmanager
def _running(
    program: list[str], folder: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with Path(folder, LOG).open("wb") as words:
        command = start_in_background(
            program, env=environment, stdin=subprocess.DEVNULL, stdout=words, stderr=words
        )
    try:
        yield command
    finally:
        command.kill()
        command.wait()
        for process in _processes(folder):
            with suppress(psutil.Error):
                process.kill()


def _processes(folder: str) -> list[psutil.Process]:
    """Ray's services of the node in this folder, and what they have started."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.name() in SERVICES and any(folder in word for word in one.cmdline()):
                found += [one, *one.children(recursive=True)]
    return found


def _services(said: str) -> dict[str, psutil.Process]:
    """Ray's services, by what the command said. Raises `ClusterError` if one is gone already."""
    started = json.loads(said.rpartition(STARTED)[2])
    try:
        return {name: psutil.Process(started[name]) for name in SERVICES if name in started}
    except psutil.Error:
        raise ClusterError("a Ray node ended as soon as it was started here") from None


def _wait(command: subprocess.Popen[bytes], log: Path, limit_s: float) -> str:
    """What it has said, once the node is there."""
    deadline = time.monotonic() + limit_s
    while command.poll() is None:
        if time.monotonic() > deadline or any(
            word in log.read_text(errors="replace") for word in REFUSED
        ):
            break  # Ray would try again for 20 s and more where it is refused
        time.sleep(LOOK_S)
    said = log.read_text(errors="replace")
    if command.poll() != 0 or STARTED not in said:
        last = " ".join(said.split())[-500:]
        raise ClusterError(f"no Ray node could be started here: {last}")
    return said
