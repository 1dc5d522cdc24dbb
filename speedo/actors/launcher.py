"""Whole runs: `train` on one machine, `serve_master` and `serve_worker` for a cluster."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import speedo
from speedo.actors import session
from speedo.config import RunConfig
from speedo.data import default_data_root
from speedo.errors import ClusterError, EngineError, SpeedoError
from speedo.preparation import Prepared, check_nets, make_dataset, prepare
from speedo.status import Status
from speedo.storage.redis_server import PrivateRedis
from speedo.storage.redis_store import RedisStore
from speedo.token import load_token
from speedo.training import RunResult, RunSettings

if TYPE_CHECKING:
    from speedo.actors.host import WorkerHost

STATUS_S: Final = 0.5
FAREWELL_S: Final = 15.0
ANSWER_S: Final = 60.0


class Watch(Protocol):
    """Who is told how it goes."""

    def note(self, text: str) -> None: ...

    def begin(self, run_dir: Path) -> None: ...

    def show(self, status: Status) -> None: ...


def train(config: RunConfig, watch: Watch) -> RunResult:
    """Train on this machine with `config.workers` workers. Raises `SpeedoError`."""
    with ExitStack() as stack:
        prepared, settings = _start(config, watch, stack, session.own_token(), port=None)
        from speedo.actors.host import WorkerHost

        master, run = _launch_master(prepared, settings)
        host = WorkerHost(master, settings, "here", prepared.run_dir / "logs", prepared.data_root)
        host.start(config.workers)
        result = _follow(master, run, prepared, watch, host)
        host.stop("the run is over")
        return result


def serve_master(config: RunConfig, watch: Watch, token_file: Path | None) -> RunResult:
    """Wait for workers on other nodes, train with them, and let them go. Raises `SpeedoError`."""
    token = load_token(token_file, create=True)
    session.require_free_port(config.host, config.port)
    with ExitStack() as stack:
        prepared, settings = _start(config, watch, stack, token, port=config.port)
        import ray

        master, run = _launch_master(prepared, settings)
        watch.note(
            f"waiting for {config.workers} workers, up to {config.timeout:.0f} s; on each node: "
            f"speedo worker --master {config.host}:{config.port}"
        )
        try:
            return _follow(master, run, prepared, watch)
        finally:
            ray.get(master.wait_for_hosts.remote(FAREWELL_S), timeout=FAREWELL_S + ANSWER_S)


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
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speedo-worker-")))
        stack.enter_context(session.member(token, address))
        from speedo.actors.host import WorkerHost

        master = _find_master(address, timeout_s)
        name = f"{socket.gethostname()}:{logs.name[-4:]}"
        settings = _settings(master, name, address)
        try:
            root = (data_root or default_data_root()).absolute()
            if settings.bundled_data is not None:
                make_dataset(root, settings.bundled_data, watch.note)
            host = WorkerHost(master, settings, name, logs, root)
            host.start(count)
            watch.note(
                f"joined the master at {address} with {count} worker{'s' if count > 1 else ''}"
            )
            return _stay(master, host, address, watch)
        finally:
            _say_farewell(master, name)


# ---------------------------------------------------------------- parts of a run


def _start(
    config: RunConfig, watch: Watch, stack: ExitStack, token: str, port: int | None
) -> tuple[Prepared, RunSettings]:
    """Prepare, then start Redis and Ray while Caffe builds the nets once in a child."""
    prepared = prepare(config, watch.note)
    watch.begin(prepared.run_dir)
    for line in prepared.headline():
        watch.note(line)
    pool = stack.enter_context(ThreadPoolExecutor(1))
    checking = pool.submit(check_nets, prepared)
    if config.redis is None:
        redis_url = stack.enter_context(PrivateRedis(host=config.host)).url
    else:
        redis_url = config.redis
        store = RedisStore(redis_url)
        for warning in store.check_server():
            watch.note(f"warning: {warning}")
        store.close()
    stack.enter_context(session.head(token, config.host, port))
    facts = checking.result()
    watch.note(
        f"{facts.parameters:,} parameters in {facts.blobs} blobs, {facts.nbytes / 1e6:.1f} MB per exchange"
    )
    return prepared, RunSettings.make(
        config, prepared.spec, prepared.run, redis_url, prepared.dataset
    )


def _launch_master(prepared: Prepared, settings: RunSettings) -> tuple[Any, Any]:
    """The master actor with its tester, and the reference of its run."""
    import ray

    from speedo.actors.host import started
    from speedo.actors.master import NAME, MasterActor
    from speedo.actors.spawn import spawn
    from speedo.actors.tester import TesterActor

    logs = prepared.run_dir / "logs"
    testing = None
    if prepared.spec.has_test:
        tester = spawn(TesterActor, settings, logs / "tester.log")
        testing = tester.start.remote()
    master = spawn(
        MasterActor,
        prepared.config,
        settings,
        prepared.run_dir,
        prepared.records,
        name=NAME,
        threads=16,
    )
    started(master.ready.remote(), logs / "master.log", "the master")
    if testing is not None:
        started(testing, logs / "tester.log", "the tester")
        ray.get(master.use_tester.remote(tester))
    return master, master.run.remote()


def _follow(
    master: Any, run: Any, prepared: Prepared, watch: Watch, host: WorkerHost | None = None
) -> RunResult:
    """Show how it goes until the run is over; Ctrl-C or SIGTERM lets it end early, exported all the same.

    So does the death of the last worker of `host`, where no other can come.
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    from speedo.actors.host import cause_in

    with _stop_signals() as stopped:
        told = False
        try:
            while not ray.wait([run], timeout=STATUS_S)[0]:
                if stopped and not told:
                    watch.note(f"{stopped[0]}: stopping; the model so far is tested and exported")
                    master.stop.remote(f"stopped by {stopped[0]}")
                    told = True
                if host is not None and host.last_died is not None and not told:
                    master.stop.remote(f"every worker died, the last: {host.last_died}")
                    told = True
                watch.show(ray.get(master.status.remote(), timeout=ANSWER_S))
            watch.show(ray.get(master.status.remote(), timeout=ANSWER_S))
            result: RunResult = ray.get(run)
            return result
        except RayTaskError as error:
            if isinstance(error.cause, SpeedoError):
                raise error.cause from None
            raise
        except RayActorError:
            log = prepared.run_dir / "logs" / "master.log"
            raise EngineError(
                f"the master's process died: {cause_in(log) or 'killed'}; see {log}"
            ) from None


@contextmanager
def _stop_signals() -> Iterator[list[str]]:
    """Names of the signals that asked for an end; a second Ctrl-C interrupts at once."""
    received: list[str] = []

    def on_signal(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    former = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------- parts of a worker's stay


def _patient_token(file: Path | None, timeout_s: float, note: Callable[[str], None]) -> str:
    """The token; on the master's own machine its file may appear only when the master starts."""
    import time

    deadline = time.monotonic() + timeout_s
    said = False
    while True:
        try:
            return load_token(file)
        except ClusterError as error:
            if "there is no token" not in str(error) or time.monotonic() >= deadline:
                raise
            if not said:
                note(f"{error}; waiting for it, up to {timeout_s:.0f} s")
                said = True
            time.sleep(0.5)


def _find_master(address: str, timeout_s: float) -> Any:
    import time

    import ray

    from speedo.actors.master import NAME

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ray.get_actor(NAME, namespace=session.NAMESPACE)
        except ValueError:
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"there is no SpeeDO master in the cluster at {address}"
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
    import time

    import ray
    from ray.exceptions import RayError

    with _stop_signals() as stopped:
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
