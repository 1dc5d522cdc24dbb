"""Whole runs: `train` on one machine, `serve_master` and `serve_worker` for a cluster."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from speedo.actors.attempts import ANSWER_S, Attempt, FollowedRun, in_attempts, parting, told_of
from speedo.actors.ray_node import session
from speedo.actors.ray_node.ports import is_loopback, redis_port, require_free_port, resolved
from speedo.actors.run_servers import RunningServices, with_mirror
from speedo.actors.run_stores import OpenRedis, goes_without_redis
from speedo.actors.signals import stop_signals
from speedo.actors.token import how_to_join, load_token, new_token
from speedo.data.remote.run_copy import RunCopy
from speedo.engines.net_trial import CaffeFacts
from speedo.engines.record_watch import RecordWatch
from speedo.errors import ConfigError, SpeedoError, StoreError
from speedo.run.config.run_config import RunConfig
from speedo.run.exchange_way import factors_of, way_of
from speedo.run.headline import exchange, headline
from speedo.run.host_memory import with_host_memory
from speedo.run.open_store import lease_of
from speedo.run.prepare import PreparedRun, checked_records, with_division, with_workers
from speedo.run.result import RunResult
from speedo.run.scratch import scratch_folder
from speedo.run.standby_terms import can_have_standby
from speedo.run_dir.directory import CHECKPOINTS, CONFIG, LOCK, LOGS, discard_run_dir
from speedo.run_dir.fence import owned
from speedo.run_dir.process_logs import LogTimes
from speedo.system.appended import AppendedLines, length_of
from speedo.version import VERSION
from speedo.watch.console import Watch
from speedo.watch.first_failure import first_failure_told

if TYPE_CHECKING:
    from speedo.actors.fleet.fleet import Fleet
    from speedo.actors.master_process import MasterProcess
    from speedo.actors.worker_host import WorkerHost

LOOK_S: Final = 0.5  # how often this process looks whether it was asked to stop
STATUS_S: Final = 1.0  # how often it asks the master how it goes
FAREWELL_S: Final = 15.0


def train(config: RunConfig, watch: Watch) -> RunResult:
    """Train on this machine with `config.workers` workers. Raises `SpeedoError`."""
    return in_attempts(config, watch.note, partial(_train, watch, new_token()))


def _train(watch: Watch, token: str, attempt: Attempt) -> RunResult:
    config = attempt.config
    with ExitStack() as stack, ExitStack() as node:
        head = session.head(token, config.host, None, watch.note, actors=1 + config.workers)
        starting = node.enter_context(head)
        prepared = attempt.prepared(watch.note)
        servers = _start(prepared, attempt, watch, stack, node, starting, None)
        prepared, settings, scratch = servers.prepared, servers.settings, servers.scratch
        from speedo.actors.control_answers import under_control
        from speedo.actors.master_process import MasterProcess
        from speedo.actors.servers.server_host import ServerHost
        from speedo.actors.worker_host import WorkerHost

        master = MasterProcess(servers, attempt, watch.note, takes_hosts=False)
        stack.callback(master.close)
        stack.callback(servers.show_output)  # also the last words of a script that does not start
        folders = (prepared.run_dir / LOGS, scratch, prepared.data_root)
        own = stack.enter_context(with_host_memory(settings.for_others()))
        host = WorkerHost(master.actor, own, "here", *folders, watch.note)
        stack.callback(host.stop, "the run is over")  # it must not outlive Ray
        if settings.serves:
            serving = ServerHost(master.actor, own, "here", folders[0], config.host)
            stack.callback(serving.stop)
            serving.start()
        master.begin()
        stack.enter_context(under_control(master, _known(prepared), watch))
        host.begin(config.workers, servers.workers)
        with attempt.signals() as stopped:  # the first worker to join may train at once
            host.hand_over(stopped)
            attempt.trains()
            master.start_tester()  # beside the first turns: nobody waits for it
            result = _follow(master, servers, watch, stopped, host, "every worker died, the last")
        if config.own:
            with stop_signals() as stopped:
                failures = host.let_scripts_end(result.version, stopped, servers.show_output)
            result = replace(result, script_failures=tuple(failures))
        host.stop("the run is over")
        _let_go(master)
        return servers.kept_elsewhere(result)


def serve_master(
    config: RunConfig,
    watch: Watch,
    token_file: Path | None,
    token: str = "",
    followed: FollowedRun | None = None,
) -> RunResult:
    """Wait for workers on other nodes, train with them, and release them. Raises `SpeedoError`.

    The token is that of the file, or usual place, unless it is given. With `followed` this command goes on with a run
    that it has followed.
    """
    token = token or load_token(token_file, create=True)
    once = partial(_serve_master, watch, token, token_file)
    return in_attempts(config, watch.note, once, followed)


def _serve_master(watch: Watch, token: str, token_file: Path | None, attempt: Attempt) -> RunResult:
    config = attempt.config
    require_free_port(resolved(config.host), config.port)
    with ExitStack() as stack, ExitStack() as node:
        starting = node.enter_context(session.head(token, config.host, config.port, watch.note))
        made = attempt.prepared(watch.note)
        servers = _start(made, attempt, watch, stack, node, starting, config.port)
        prepared = servers.prepared
        from speedo.actors.control_answers import under_control
        from speedo.actors.fleet.fleet import Fleet
        from speedo.actors.master_process import MasterProcess

        assert servers.head is not None
        fleet = Fleet(prepared, watch.note, hosts=True, gone=servers.head.dead)
        stack.callback(fleet.end)
        # The Ray of a restart is the same; that of a standby has not been tried.
        if attempt.tries_token and not is_loopback(resolved(config.host)):
            servers.head.require_token()
        master = MasterProcess(servers, attempt, watch.note, takes_hosts=True)
        stack.callback(master.close)
        master.begin()
        address = f"{config.host}:{config.port}"
        if attempt.lease is not None:
            servers = with_mirror(servers, attempt.lease, lambda: master.actor, watch.note, stack)
        stack.enter_context(under_control(master, _known(prepared, address), watch))
        fleet.start(master.actor, prepared)
        watch.note(
            f"waiting for {config.workers} workers, up to {config.timeout:.0f} s; "
            + how_to_join(address, token_file, own=config.own)
        )
        leave = partial(fleet.leave, "the run is over")
        steps = (fleet.release_scripts, partial(_let_go, master), leave)
        with parting(*steps, otherwise=fleet.abandon, has_standby=servers.has_standby):
            master.start_tester()
            attempt.trains()
            with attempt.signals() as stopped:
                result = _follow(master, servers, watch, stopped, fleet)
            if stopped[:1] == ["SIGTERM"] and not result.complete:
                servers.hand_over()
            result = _with_scripts_ended(result, fleet, config)
        return servers.kept_elsewhere(result)


def train_on_ray(config: RunConfig, watch: Watch) -> RunResult:
    """Train with actors of the Ray cluster `config.ray`, of which this machine is a node. Raises `SpeedoError`."""
    return in_attempts(config, watch.note, partial(_train_on_ray, watch))


def _train_on_ray(watch: Watch, attempt: Attempt) -> RunResult:
    from speedo.actors.fleet.connection import connected
    from speedo.actors.fleet.fleet import Fleet

    assert attempt.config.ray is not None
    with ExitStack() as stack:
        # Redis and the master are reached by the name that the cluster has for this node.
        here = stack.enter_context(connected(attempt.config.ray, watch.note))
        config = attempt.config = attempt.config.model_copy(update={"host": here})
        prepared = attempt.prepared(watch.note)
        fleet = Fleet(prepared, watch.note)
        stack.callback(fleet.end)
        try:
            prepared = with_workers(prepared, fleet.place())
        except BaseException:
            if not prepared.continues:
                discard_run_dir(prepared.run_dir)
            raise
        servers = _start(prepared, attempt, watch, stack, ExitStack(), None, None)
        from speedo.actors.control_answers import under_control
        from speedo.actors.master_process import MasterProcess

        master = MasterProcess(servers, attempt, watch.note, takes_hosts=True)
        stack.callback(master.close)
        stack.callback(_kill, master)  # before its store and its memory go
        master.begin()
        stack.enter_context(under_control(master, _known(servers.prepared), watch, fleet.scale))
        fleet.start(master.actor, servers.prepared)
        with parting(partial(fleet.leave, "the run is over"), partial(_let_go, master)):
            master.start_tester()
            died = "no node of the Ray cluster can train any more, the last"
            attempt.trains()
            with attempt.signals() as stopped:
                result = _follow(master, servers, watch, stopped, fleet, died)
            result = _with_scripts_ended(result, fleet, config)
        return servers.kept_elsewhere(result)


# ---------------------------------------------------------------- parts of a run


def _start(
    prepared: PreparedRun,
    attempt: Attempt,
    watch: Watch,
    stack: ExitStack,
    node: ExitStack,
    starting: session.StartingHead | None,
    port: int | None,
) -> RunningServices:
    """Start Redis, and load master and workers, while Caffe builds the nets once in a child.

    `starting` is our own Ray, whose end is in `node`, and then in `stack`.
    """
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
        with ThreadPoolExecutor(1) as pool:
            facts: CaffeFacts | None = None
            checking = pool.submit(attempt.facts, prepared, scratch) if not config.own else None
            store = OpenRedis()
            if alone := goes_without_redis(config, port):
                watch.note("redis-server is not installed: vectors go through shared memory alone")
            else:
                at, known = redis_port(config.host, port), bool(attempt.causes)
                store = attempt.stores.redis(prepared, watch, at, is_known=known)
            if starting is not None:
                starting.load()
            from speedo.actors.master_process import load_master
            from speedo.actors.worker_process import load_workers

            head = None if starting is None else node.enter_context(starting.connected())
            master = load_master()
            here = config.ray is None and port is None and not config.own
            workers = load_workers(prepared.settings, config.workers) if here else []
            if checking is not None:
                facts = checking.result()
                prepared = with_division(prepared, facts, watch.note)
                for line in headline(prepared):
                    watch.note(line)
                way = way_of(prepared.config, prepared.settings)
                watch.note(exchange(prepared.settings.compression, facts, way))
                if port is not None or config.ray is not None:
                    for line in factors_of(prepared.config, prepared.settings, facts):
                        watch.note(line)
            records = RecordWatch(
                () if facts is None else facts.unchecked,
                checked_records(),
                lambda text: watch.note(f"warning: {text}"),
                () if facts is None else facts.notes,
            )
            stack.callback(records.close)
            # The size of a script's model is not known yet.
            size = 0 if facts is None else facts.nbytes
            nearby = attempt.stores.near(prepared.config, size, store.socket, watch, alone=alone)
            stack.push(node.pop_all())  # ends before what its processes use
    except SpeedoError:
        if not prepared.continues:
            discard_run_dir(prepared.run_dir)
        raise
    settings = prepared.settings.started(store.url, store.ca_pem, nearby, 0)
    leased = port is not None and can_have_standby(config, settings)
    address = f"{config.host}:{port}"
    epoch = attempt.claims(
        prepared.run_dir,
        continues=prepared.continues,
        lease=(lambda: (lease_of(settings, address, config.timeout, watch.note), watch.note))
        if leased
        else None,
    )
    settings = replace(
        settings,
        epoch=epoch,
        leased=leased,
        moved=attempt.takes_over,
        master_restarts=attempt.causes,
    )
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

    servers = RunningServices(
        *(prepared, settings, head, master, workers, scratch, records, store.keep, copy),
        lease=attempt.lease,
        show_output=show_output,
    )
    stack.enter_context(told_of(prepared, servers.lost))
    return servers


def _discard_if_refused(prepared: PreparedRun, kind: object, error: object, trace: object) -> None:
    """Leave no directory of a run that a mistake of its user kept from beginning, found by the master or a script."""
    if isinstance(error, ConfigError) and not prepared.continues:
        discard_run_dir(prepared.run_dir, logs=True)


def _known(prepared: PreparedRun, address: str | None = None) -> dict[str, Any]:
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


def _follow(
    master: MasterProcess,
    servers: RunningServices,
    watch: Watch,
    stopped: Sequence[str],
    host: WorkerHost | Fleet,
    died: str = "",
) -> RunResult:
    """Show progress until the run is over; being `stopped` ends it early, and the model is still exported.

    If the master's process dies or hangs, another one goes on with the workers of `host`. The death of the last of
    these also ends the run if no other can join: `died` says how that is told. It ends with an error if one of Ray's
    processes dies or the start of the tester fails. A bad record ends it early; the message names the record.
    """
    from ray.exceptions import RayError

    from speedo.actors.ray_errors import raised_by

    replaced = False
    with told_of(servers.prepared, servers.lost):
        while True:
            try:
                if replaced:
                    host.follow(master.actor, master.settings.for_others())
                return _follow_one(master, servers, watch, stopped, host, died)
            except RayError as error:
                # The master, or the tester's start, has failed by itself.
                if raised_by(error) is not None:
                    raise
                servers.require()
                if not master.replace(error):
                    raise
                replaced = True


def _follow_one(
    master: MasterProcess,
    servers: RunningServices,
    watch: Watch,
    stopped: Sequence[str],
    host: WorkerHost | Fleet,
    died: str,
) -> RunResult:
    """The part of one master's process in `_follow`."""
    import ray

    from speedo.actors.master_process import HUNG_S

    told = False
    next_status = 0.0
    while not ray.wait([master.run], timeout=LOOK_S)[0]:
        reason, within_s = "", 0.0
        if stopped:
            reason = f"stopped by {stopped[0]}"
            within_s = servers.prepared.config.grace if stopped[0] == "SIGTERM" else 0.0
        elif master.asked_to_stop:
            reason = master.asked_to_stop
        elif died and host.last_died is not None:
            reason = f"{died}: {host.last_died}"
        elif (bad := servers.records.problem()) is not None:
            reason = bad
        if reason and not told:
            if stopped:
                text = f"{stopped[0]}: stopping; the model so far is tested and exported"
                watch.note(f"{text}, within {within_s:g} s" if within_s else text)
            master.actor.stop.remote(reason, within_s)
            told = True
        if master.tester is not None and ray.wait([master.tester], timeout=0)[0]:
            tester, master.tester = master.tester, None
            ray.get(tester)
        if time.monotonic() >= next_status:
            next_status = time.monotonic() + STATUS_S - 0.5 * LOOK_S
            watch.show(ray.get(master.actor.status.remote(), timeout=HUNG_S))
        servers.show_output()
        servers.require()
    watch.show(ray.get(master.actor.status.remote(), timeout=ANSWER_S))
    result: RunResult = ray.get(master.run)
    return result


def _let_go(master: MasterProcess) -> None:
    """Wait for the hosts to leave, then remove the run's keys from the store, which may be the user's own."""
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(master.actor.wait_for_hosts.remote(FAREWELL_S), timeout=FAREWELL_S + ANSWER_S)
        ray.get(master.actor.clean_store.remote(), timeout=ANSWER_S)
    except (RayError, StoreError):
        return  # master or store are gone, or another master has the run: there is nothing of ours to tidy


def _with_scripts_ended(result: RunResult, fleet: Fleet, config: RunConfig) -> RunResult:
    """The result once all scripts have ended, with what is to say of those that ended badly."""
    if not config.own:
        return result
    with stop_signals() as stopped:
        bad_ends = fleet.let_scripts_end(result.version, stopped)
    return replace(result, problems=(*result.problems, *bad_ends))


def _kill(master: MasterProcess) -> None:
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):
        ray.kill(master.actor)
