"""A host's stay in a cluster, from finding the master to the farewell."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import speedo
from speedo.actors import session
from speedo.actors.signals import stop_signals
from speedo.data import default_data_root
from speedo.errors import ClusterError, EngineError
from speedo.preparation import make_dataset, preparable_dataset
from speedo.progress import Watch
from speedo.status import Status
from speedo.token import load_token
from speedo.training import RunSettings

if TYPE_CHECKING:
    from speedo.actors.host import WorkerHost

STATUS_S: Final = 0.5
ANSWER_S: Final = 60.0


def serve_worker(
    address: str,
    count: int,
    watch: Watch,
    *,
    timeout_s: float,
    data_root: Path | None,
    token_file: Path | None,
) -> Status:
    """Join the master at `address` with `count` workers and stay until the run ends. Raises `SpeedoError`."""
    token = _patient_token(token_file, timeout_s, watch.note)
    session.wait_for_master(address, token, timeout_s, watch.note)
    with ExitStack() as stack:
        logs = Path(tempfile.mkdtemp(prefix="speedo-worker-"))
        stack.push(
            lambda kind, *_: shutil.rmtree(logs, ignore_errors=True) if kind is None else None
        )
        stack.enter_context(session.member(token, address))
        from speedo.actors.host import WorkerHost

        master = _find_master(address, timeout_s)
        name = f"{socket.gethostname()}:{logs.name[-4:]}"
        settings = _settings(master, name, address)
        try:
            root = (data_root or default_data_root()).absolute()
            missing = preparable_dataset(settings.spec.on_node(root))
            if missing is not None:
                make_dataset(root, missing, watch.note)
            host = WorkerHost(master, settings, name, logs, root)
            host.start(count)
            watch.note(
                f"joined the master at {address} with {count} worker{'s' if count > 1 else ''}"
            )
            return _stay(master, host, address, watch)
        finally:
            _say_farewell(master, name)


def _patient_token(file: Path | None, timeout_s: float, note: Callable[[str], None]) -> str:
    """The token; on the master's own machine its file may appear only when the master starts."""
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
                    f"no token yet; waiting up to {timeout_s:.0f} s for a master on this machine to make it"
                )
                said = True
            time.sleep(0.5)


def _find_master(address: str, timeout_s: float) -> Any:
    import ray

    from speedo.actors.master import NAME

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ray.get_actor(NAME, namespace=session.NAMESPACE)
        except ValueError:
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"there is no SpeeDO master in the Ray cluster at {address}: correct --master"
                ) from None
            time.sleep(0.2)


def _settings(master: Any, name: str, address: str) -> RunSettings:
    import ray

    theirs = ray.get(master.version.remote(), timeout=ANSWER_S)
    if theirs != speedo.__version__:
        raise ClusterError(
            f"SpeeDO differs: the master at {address} has {theirs}, this node {speedo.__version__}: "
            "install the same version on every node"
        )
    settings: RunSettings = ray.get(master.settings.remote(name), timeout=ANSWER_S)
    return settings


def _stay(master: Any, host: WorkerHost, address: str, watch: Watch) -> Status:
    """Watch the run until it is over."""
    import ray
    from ray.exceptions import RayError

    with stop_signals() as stopped:
        while True:
            try:
                status: Status = ray.get(master.status.remote(), timeout=ANSWER_S)
            except RayError as error:
                raise ClusterError(
                    f"the master at {address} is gone ({type(error).__name__})"
                ) from None
            watch.show(status)
            if host.last_died is not None and not status.over:
                raise EngineError(f"every worker of this host died, the last: {host.last_died}")
            if stopped:
                host.stop(f"its host was stopped by {stopped[0]}")
                if stopped[0] == "SIGTERM":
                    raise SystemExit(143)
                raise KeyboardInterrupt
            if status.over:
                host.stop("the run is over")
                return status
            time.sleep(STATUS_S)


def _say_farewell(master: Any, name: str) -> None:
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(master.farewell.remote(name), timeout=5.0)
    except RayError:
        return  # the master is gone already; there is nobody to tell
