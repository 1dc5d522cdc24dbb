"""Whole runs: `train` on one machine, `serve_master` and `serve_worker` for a cluster."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from speedo.actors.ray_node import session
from speedo.actors.ray_node.ports import (
    is_loopback,
    redis_port,
    require_free_port,
    resolved,
)
from speedo.actors.run_stores import goes_without_redis, near, redis
from speedo.actors.signals import stop_signals
from speedo.actors.token import how_to_join, load_token, new_token
from speedo.data.remote.run_copy import RunCopy
from speedo.engines.record_watch import RecordWatch
from speedo.errors import ConfigError, EngineError, SpeedoError, StoreError
from speedo.run.config.run_config import RunConfig
from speedo.run.exchange_way import factors_of, way_of
from speedo.run.headline import exchange, headline
from speedo.run.host_memory import with_host_memory
from speedo.run.prepare import (
    Prepared,
    check_nets,
    checked_records,
    prepare,
    with_division,
    with_workers,
)
from speedo.run.prepare_script import prepare_script
from speedo.run.result import RunResult
from speedo.run.scratch import scratch_folder
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import checkpoints_in
from speedo.run_dir.directory import CHECKPOINTS, CONFIG, LOCK, LOGS, discard_run_dir
from speedo.run_dir.fence import claim, owned
from speedo.run_dir.process_logs import LogTimes
from speedo.run_dir.resume import Resumed
from speedo.system.appended import AppendedLines, length_of
from speedo.system.daemon_thread import within
from speedo.version import VERSION
from speedo.watch.console import Watch
from speedo.watch.first_failure import first_failure_told

if TYPE_CHECKING:
    from speedo.actors.fleet.fleet import Fleet
    from speedo.actors.worker_host import WorkerHost

LOOK_S: Final = 0.5  # how often this process looks whether it was asked to stop
STATUS_S: Final = 1.0  # how often it asks the master how it goes
FAREWELL_S: Final = 15.0
ANSWER_S: Final = 60.0


def train(config: RunConfig, watch: Watch) -> RunResult:
    """Train on this machine with `config.workers` workers. Raises `SpeedoError`."""
    with ExitStack() as stack:
        head = session.head(new_token(), config.host, None, watch.note)
        prepared = (prepare_script if config.own else prepare)(config, watch.note)
        servers = _start(prepared, watch, stack, head, None)
        prepared, settings, scratch = servers.prepared, servers.settings, servers.scratch
        from speedo.actors.control_answers import under_control
        from speedo.actors.server_host import ServerHost
        from speedo.actors.worker_host import WorkerHost

        master = _spawn_master(servers, takes_hosts=False)
        folders = (prepared.run_dir / LOGS, scratch, prepared.data_root)
        own = stack.enter_context(with_host_memory(settings.for_others()))
        host = WorkerHost(master, own, "here", *folders, watch.note)
        stack.callback(host.stop, "the run is over")  # it must not outlive Ray
        if settings.serves:
            logs = prepared.run_dir / LOGS
            serving = ServerHost(master, own, "here", logs, config.host)
            stack.callback(serving.stop)
            serving.start()
        # They take a while to load, and the master to draw its weights.
        host.warm_up(config.workers)
        run = _begin_run(master, prepared)
        stack.enter_context(under_control(master, _known(prepared), watch))
        with _told_of(prepared):
            host.begin(config.workers)
        with stop_signals() as stopped:  # the first worker to join may train at once
            with _told_of(prepared):
                host.hand_over(stopped)
            tester = _start_tester(master, prepared)  # beside the first turns: nobody waits for it
            result = _follow(master, run, servers, watch, stopped, tester, host)
        if config.own:
            with stop_signals() as stopped:
                failures = host.let_scripts_end(result.version, stopped, servers.show_output)
            result = replace(result, script_failures=tuple(failures))
        host.stop("the run is over")
        _let_go(master)
        return servers.kept_elsewhere(result)


def serve_master(
    config: RunConfig, watch: Watch, token_file: Path | None, token: str = ""
) -> RunResult:
    """Wait for workers on other nodes, train with them, and release them. Raises `SpeedoError`.

    The token is that of the file, or usual place, unless it is given.
    """
    token = token or load_token(token_file, create=True)
    require_free_port(resolved(config.host), config.port)
    with ExitStack() as stack:
        head = session.head(token, config.host, config.port, watch.note)
        made = (prepare_script if config.own else prepare)(config, watch.note)
        servers = _start(made, watch, stack, head, config.port)
        prepared = servers.prepared
        from speedo.actors.control_answers import under_control
        from speedo.actors.fleet.fleet import Fleet

        fleet = Fleet(prepared, watch.note, hosts=True)
        stack.callback(fleet.end)
        if not is_loopback(resolved(config.host)) and servers.head is not None:
            servers.head.require_token()
        master = _spawn_master(servers, takes_hosts=True)
        run = _begin_run(master, prepared)
        address = f"{config.host}:{config.port}"
        stack.enter_context(under_control(master, _known(prepared, address), watch))
        fleet.start(master, prepared)
        watch.note(
            f"waiting for {config.workers} workers, up to {config.timeout:.0f} s; "
            + how_to_join(address, token_file, own=config.own)
        )
        try:
            tester = _start_tester(master, prepared)
            with stop_signals() as stopped:
                result = _follow(master, run, servers, watch, stopped, tester)
            result = _with_scripts_ended(result, fleet, config)
        finally:
            fleet.release_scripts()
            _let_go(master)
            fleet.leave("the run is over")
        return servers.kept_elsewhere(result)


def train_on_ray(config: RunConfig, watch: Watch) -> RunResult:
    """Train with actors of the Ray cluster `config.ray`, of which this machine is a node. Raises `SpeedoError`."""
    from speedo.actors.fleet.connection import connected
    from speedo.actors.fleet.fleet import Fleet

    assert config.ray is not None
    with ExitStack() as stack:
        # Redis and the master are reached by the name that the cluster has for this node.
        here = stack.enter_context(connected(config.ray, watch.note))
        prepare_it = prepare_script if config.own else prepare
        prepared = prepare_it(config.model_copy(update={"host": here}), watch.note)
        fleet = Fleet(prepared, watch.note)
        stack.callback(fleet.end)
        try:
            prepared = with_workers(prepared, fleet.place())
        except BaseException:
            if not isinstance(prepared.resumed, Resumed):
                discard_run_dir(prepared.run_dir)
            raise
        servers = _start(prepared, watch, stack, nullcontext(), None)
        from speedo.actors.control_answers import under_control

        master = _spawn_master(servers, takes_hosts=True)
        stack.callback(_kill, master)  # before its store and its memory go
        run = _begin_run(master, servers.prepared)
        stack.enter_context(under_control(master, _known(servers.prepared), watch, fleet.scale))
        fleet.start(master, servers.prepared)
        try:
            tester = _start_tester(master, servers.prepared)
            died = "no node of the Ray cluster can train any more, the last"
            with stop_signals() as stopped:
                result = _follow(master, run, servers, watch, stopped, tester, fleet, died)
            result = _with_scripts_ended(result, fleet, config)
        finally:
            fleet.leave("the run is over")
            _let_go(master)
        return servers.kept_elsewhere(result)


# ---------------------------------------------------------------- parts of a run


@dataclass(frozen=True, slots=True)
class Servers:
    """A run whose Redis and Ray are up; `head` is our own Ray's.

    `scratch` is a folder for small files, which goes with the command; `records` notices bad records.
    """

    prepared: Prepared
    settings: RunSettings
    head: session.Head | None
    scratch: Path
    records: RecordWatch
    copy: RunCopy | None = None
    show_output: Callable[[], None] = lambda: None  # of a script, as far as there is any

    def kept_elsewhere(self, result: RunResult) -> RunResult:
        """The result once the run directory is copied to `--copy-to`; what could not be is one of its problems."""
        if self.copy is None:
            return result
        problem = self.copy.finish(self.prepared.config.timeout)
        if not problem:
            return result
        told = f"{self.copy.uri} lacks a part of the run: {problem}; {result.run_dir} has all of it"
        return replace(result, problems=(*result.problems, told))


def _start(
    prepared: Prepared,
    watch: Watch,
    stack: ExitStack,
    ray: AbstractContextManager[session.Head | None],
    port: int | None,
) -> Servers:
    """Start Redis and Ray while Caffe builds the nets once in a child."""
    config = prepared.config
    stack.push(partial(_discard_if_refused, prepared))  # once its processes have ended
    stack.enter_context(owned(prepared.run_dir, take_over=config.take_over))
    stack.enter_context(first_failure_told(prepared.run_dir, platform.node(), watch.note))
    stack.enter_context(LogTimes(prepared.run_dir / LOGS))
    watch.begin(prepared.run_dir)
    try:
        scratch = stack.enter_context(scratch_folder())
        if config.ray is None and (ignored := session.ignored_settings()):
            watch.note(ignored)
        with ExitStack() as node, ThreadPoolExecutor(1) as pool:
            checking = pool.submit(check_nets, prepared, scratch) if not config.own else None
            redis_url, redis_ca, socket = "", "", ""
            if alone := goes_without_redis(config, port):
                watch.note("redis-server is not installed: vectors go through shared memory alone")
            else:
                redis_url, redis_ca, socket = redis(
                    prepared, watch, stack, redis_port(config.host, port)
                )
            head = node.enter_context(ray)
            facts = None if checking is None else checking.result()
            if head is not None:
                node.enter_context(head.connected())
            if facts is not None:
                prepared = with_division(prepared, facts, watch.note)
                for line in headline(prepared):
                    watch.note(line)
                way = way_of(prepared.config, prepared.settings)
                watch.note(exchange(prepared.settings.compression, facts, way))
                if port is not None or config.ray is not None:
                    for line in factors_of(prepared.config, prepared.settings, facts):
                        watch.note(line)
            records = RecordWatch(() if facts is None else facts.unchecked, checked_records())
            stack.callback(records.close)
            # The size of a script's model is not known yet.
            size = 0 if facts is None else facts.nbytes
            nearby = near(prepared.config, size, socket, watch, stack, alone=alone)
            stack.push(node.pop_all())  # ends before what its processes use
    except SpeedoError:
        if not isinstance(prepared.resumed, Resumed):
            discard_run_dir(prepared.run_dir)
        raise
    epoch = claim(prepared.run_dir) if isinstance(prepared.resumed, Resumed) else 0
    settings = prepared.settings.started(redis_url, redis_ca, nearby, epoch)
    copy = None
    if config.copy_to is not None:
        copy = RunCopy(
            prepared.run_dir,
            config.copy_to,
            watch.note,
            watched=(CHECKPOINTS, CONFIG),
            skip=(LOCK,),
        )
        copy.start()
        stack.callback(copy.finish, 0.0)
    output = prepared.run_dir / LOGS / "worker-0.log"
    said = AppendedLines(output, length_of(output))  # a run that is resumed has some
    shown = config.own and port is None and config.ray is None  # else its node's keeper tells

    def show_output() -> None:
        for line in said.new() if shown else ():
            watch.note(line)

    return Servers(prepared, settings, head, scratch, records, copy, show_output)


def _discard_if_refused(prepared: Prepared, kind: object, error: object, trace: object) -> None:
    """Leave no directory of a run that a mistake of its user kept from beginning, found by the master or a script."""
    if isinstance(error, ConfigError) and not isinstance(prepared.resumed, Resumed):
        discard_run_dir(prepared.run_dir, logs=True)


def _known(prepared: Prepared, address: str | None = None) -> dict[str, Any]:
    """What `speedo status` says of this run before its state."""
    return {
        "run": prepared.run,
        "run_dir": prepared.run_dir,
        "address": address,
        "pid": os.getpid(),
        "speedo": VERSION,
        "solver": prepared.settings.spec.path,
        "expected_workers": prepared.config.workers,
        "min_workers": prepared.config.min_workers,
    }


def _spawn_master(servers: Servers, *, takes_hosts: bool) -> Any:
    """The master actor, which begins to build its engine."""
    from speedo.actors.master_actor import NAME, MasterActor
    from speedo.actors.ray_node.actor_class import actor_class

    prepared = servers.prepared
    return actor_class(MasterActor, name=NAME, threads=16).remote(
        prepared.config,
        servers.settings,
        prepared.run_dir,
        servers.scratch,
        prepared.records,
        None if prepared.resumed is None else prepared.resumed.path,
        takes_hosts,
    )


def _begin_run(master: Any, prepared: Prepared) -> Any:
    """The reference of its run, once its engine is built."""
    from speedo.actors.worker_process import started

    started(master.ready.remote(), prepared.run_dir / LOGS / "master.log", "the master")
    return master.run.remote()


def _start_tester(master: Any, prepared: Prepared) -> Any:
    """The reference of the tester's start; None for a run without tests."""
    return master.start_tester.remote() if prepared.settings.spec.has_test else None


def _follow(
    master: Any,
    run: Any,
    servers: Servers,
    watch: Watch,
    stopped: Sequence[str],
    tester: Any = None,
    host: WorkerHost | Fleet | None = None,
    died: str = "every worker died, the last",
) -> RunResult:
    """Show progress until the run is over; being `stopped` ends it early, and the model is still exported.

    The death of the last worker of `host` also ends it, if no other worker can join. It ends with an error if one of
    Ray's processes dies or the start of `tester` fails. A bad record ends it early; the message names the record.
    """
    import ray

    prepared = servers.prepared
    told = False
    next_status = 0.0
    with _told_of(prepared, servers.head):
        while not ray.wait([run], timeout=LOOK_S)[0]:
            if stopped and not told:
                watch.note(f"{stopped[0]}: stopping; the model so far is tested and exported")
                master.stop.remote(f"stopped by {stopped[0]}")
                told = True
            if host is not None and host.last_died is not None and not told:
                master.stop.remote(f"{died}: {host.last_died}")
                told = True
            if (bad := servers.records.problem()) is not None and not told:
                master.stop.remote(bad)
                told = True
            if tester is not None and ray.wait([tester], timeout=0)[0]:
                ray.get(tester)
                tester = None
            if time.monotonic() >= next_status:
                next_status = time.monotonic() + STATUS_S - 0.5 * LOOK_S
                watch.show(ray.get(master.status.remote(), timeout=ANSWER_S))
            servers.show_output()
            if servers.head is not None and (kind := servers.head.dead()):
                raise EngineError(f"Ray's {kind} process on this machine died{_way_on(prepared)}")
        watch.show(ray.get(master.status.remote(), timeout=ANSWER_S))
        result: RunResult = ray.get(run)
        return result


@contextmanager
def _told_of(prepared: Prepared, head: session.Head | None = None) -> Iterator[None]:
    """Turns Ray's errors about the master's process into ours."""
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    from speedo.actors.death_causes import cause_in

    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, SpeedoError):
            raise error.cause from None
        if isinstance(error.cause, OSError):
            raise EngineError(f"the master failed: {error.cause}{_way_on(prepared)}") from None
        raise
    except GetTimeoutError:
        raise EngineError(
            f"the master's process did not answer for {ANSWER_S:.0f} s{_way_on(prepared)}"
        ) from None
    except RayError:  # its process is gone, whatever the kind
        log = prepared.run_dir / LOGS / "master.log"
        what = f"the master's process died: {cause_in(log) or 'killed'}; see {log}"
        if head is not None and (kind := head.node.lost_process()):
            what = f"Ray's {kind} process on this machine died"
        raise EngineError(f"{what}{_way_on(prepared)}") from None


def _way_on(prepared: Prepared) -> str:
    try:
        kept = within(ANSWER_S, lambda: checkpoints_in(prepared.run_dir / CHECKPOINTS))
    except OSError:  # its disk hangs
        return ""
    return f"; continue with --resume {prepared.run_dir}" if kept else ""


def _let_go(master: Any) -> None:
    """Wait for the hosts to leave, then remove the run's keys from the store, which may be the user's own."""
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(master.wait_for_hosts.remote(FAREWELL_S), timeout=FAREWELL_S + ANSWER_S)
        ray.get(master.clean_store.remote(), timeout=ANSWER_S)
    except (RayError, StoreError):
        return  # master or store are gone, or another master has the run: there is nothing of ours to tidy


def _with_scripts_ended(result: RunResult, fleet: Fleet, config: RunConfig) -> RunResult:
    """The result once all scripts have ended, with what is to say of those that ended badly."""
    if not config.own:
        return result
    with stop_signals() as stopped:
        bad_ends = fleet.let_scripts_end(result.version, stopped)
    return replace(result, problems=(*result.problems, *bad_ends))


def _kill(actor: Any) -> None:
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):
        ray.kill(actor)
