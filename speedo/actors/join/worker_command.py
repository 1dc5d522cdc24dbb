"""`speedo worker`: waits for a master, takes part until the run ends, and waits again if the master is lost."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from speedo.actors.join.find_master import wait_for_master
from speedo.actors.join.session_process import (
    LEAVE_S,
    Crashed,
    Ending,
    Failed,
    Lost,
    Over,
    Request,
    Stopped,
)
from speedo.actors.ray_node import session
from speedo.actors.signals import stop_signals
from speedo.actors.token import load_token
from speedo.data import default_data_root
from speedo.errors import ClusterError, ConfigError, EngineError
from speedo.monitor.console import Watch
from speedo.monitor.status import Status
from speedo.remote.uris import uri_of
from speedo.run_dir.directory import make_own_folders
from speedo.system.background_process import start_in_background
from speedo.system.cores import Bind, Core
from speedo.system.private_folders import make_private_folder
from speedo.system.workplace import check_names

LOOK_S: Final = 0.2
CRASHES: Final = 3  # a stay that breaks is tried again so often
HEALTHY_S: Final = 60.0  # one that lasted so long counts as a first


def serve_worker(
    address: str,
    count: int,
    watch: Watch,
    *,
    timeout_s: float,
    data_root: Path | None,
    token_file: Path | None,
    threads: str | None = None,
    bind: Bind | None = None,
    cores: tuple[tuple[Core, ...], ...] = (),
    device: str | None = None,
    logs: Path | None = None,
) -> Status:
    """Join the master at `address` with `count` workers and take part until the run ends. Raises `SpeedoError`.

    With a count of 0 this host only serves a range of the center. `threads`, `bind`, `cores` (of each worker) and
    `device` replace the master's for this host's workers. If the master is lost, waits up to `timeout_s` seconds for
    it, each time, and joins again. `logs` is a folder that keeps the logs; without it they go with a run that ended
    well.
    """
    if ignored := session.ignored_settings():
        watch.note(ignored)
    check_names({"the data root": data_root})
    kept = logs is not None
    logs = make_private_folder("speedo-worker-") if logs is None else _made(logs)
    root = data_root or default_data_root()
    if uri_of(root) is None:
        root = root.absolute()
    name = f"{socket.gethostname()}:{secrets.token_hex(2)}"
    stays = crashes = 0
    while True:
        try:
            since = time.monotonic()
            token = _patient_token(token_file, timeout_s, watch.note)
            wait_for_master(address, token, timeout_s, watch.note, returning=stays > 0, since=since)
        except BaseException:
            with suppress(OSError):
                logs.rmdir()  # kept if workers have left their words there
            raise
        stays += 1
        request = Request(
            address,
            token,
            count,
            timeout_s,
            name=name,
            logs=logs / f"stay-{stays}",
            folder=make_private_folder("speedo-ray-"),
            data_root=root,
            threads=threads,
            bind=bind,
            cores=cores,
            device=device,
        )
        began = time.monotonic()
        ending = _stay(request, watch)
        if isinstance(ending, Over):
            if not kept:
                shutil.rmtree(logs, ignore_errors=True)
            return ending.status
        if isinstance(ending, Failed):
            raise ending.error or RuntimeError(ending.bug)
        if isinstance(ending, Lost):
            crashes = 0
            watch.note(
                f"the master at {address} is gone ({ending.why}); this host's workers were stopped; "
                f"waiting up to {timeout_s:.0f} s for a master to come back there"
            )
            continue
        crashes = 1 if time.monotonic() - began > HEALTHY_S else crashes + 1
        if crashes >= CRASHES:
            raise EngineError(
                f"this host's session in the cluster failed {crashes} times in a row, the last time: {ending}; "
                f"see {request.logs}"
            )
        watch.note(f"this host's session in the cluster failed: {ending}; it joins again")


def _made(logs: Path) -> Path:
    try:
        make_own_folders(logs)
    except OSError as error:
        raise ConfigError(
            f"the folder of logs {logs} cannot be made: {error.strerror}; give another with --logs"
        ) from None
    return logs.absolute()


def _stay(request: Request, watch: Watch) -> Over | Lost | Failed | str:
    """How a session ended; a text is the cause of death of its process. Raises what a signal asks for."""
    request.logs.mkdir(parents=True)
    ours, theirs = Pipe()
    with stop_signals() as stopped, ours, open(request.logs / "host.log", "wb") as log:
        with theirs:
            child = start_in_background(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "speedo.actors.join.session_process",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        try:
            ours.send(request)
            ending = _follow(ours, child, stopped, watch)
            child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            pass  # it has said all; what hangs is ended below
        finally:
            _end(child)
            shutil.rmtree(request.folder, ignore_errors=True)
    if stopped:
        if stopped[0] == "Ctrl-C":
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.Signals[stopped[0]])
    if isinstance(ending, Crashed):
        return ending.why
    if ending is None or isinstance(ending, Stopped):
        return _death(child.returncode)
    return ending


def _follow(
    connection: Connection, child: subprocess.Popen[bytes], stopped: list[str], watch: Watch
) -> Ending | None:
    """Show the child's notes until it reports how it ended; None if it died before or does not end."""
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        if stopped and deadline is None:
            deadline = time.monotonic() + LEAVE_S
            with suppress(OSError):
                connection.send(stopped[0])
        try:
            if not connection.poll(LOOK_S):
                continue
            told = connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(told, str):
            watch.note(told)
        elif isinstance(told, Status):
            watch.show(told)
        else:
            ending: Ending = told
            return ending
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child, and with it its node: Ray's processes end with the process that started them."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _death(status: int) -> str:
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"its own process died ({how})"


def _patient_token(file: Path | None, timeout_s: float, note: Callable[[str], None]) -> str:
    """The token, waited for: on the master's machine its file may not exist before the master starts."""
    deadline = time.monotonic() + timeout_s
    said = False
    while True:
        try:
            return load_token(file)
        except ClusterError as error:
            if "there is no token" not in str(error) or time.monotonic() >= deadline:
                raise
            if not said:
                note(
                    f"no token yet; waiting up to {timeout_s:.0f} s for a master on this machine to create it"
                )
                said = True
            time.sleep(0.5)
