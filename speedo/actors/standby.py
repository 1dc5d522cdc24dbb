"""`speedo master --standby`: follows a run on another machine, and goes on with it when its master is gone.

It asks the master once, as a node of its cluster, and then needs only the run's Redis. Center, journal and lease are
there, and the files of the run come through there (`speedo.run.standby_copy`).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from speedo.actors.attempts import FollowedRun
from speedo.actors.join.find_master import wait_for_master
from speedo.actors.join.host_node import NotAMasterError, host_node
from speedo.actors.launch import serve_master
from speedo.actors.ray_node import session
from speedo.actors.ray_node.driver import driver
from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.ports import own_address_towards, require_free_port, resolved
from speedo.actors.ray_node.private_names import take_addresses_literally
from speedo.actors.signals import end_as, stop_signals
from speedo.actors.token import load_token
from speedo.errors import ClusterError, SpeedoError
from speedo.run.open_store import lease_of
from speedo.run.result import RunResult
from speedo.run.standby_copy import RunFollower
from speedo.run.standby_terms import StandbyTerms
from speedo.run.standby_watch import LOOK_S, StandbyWatch
from speedo.storage.lease import LEASE_S
from speedo.storage.redis.store import RedisStore
from speedo.watch.console import Watch

TOO_BUSY: Final = "timed out during startup"  # in Ray's words, of a node
ANSWER_S: Final = 60.0
CHILD_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class NeverNeeded:
    """The run is over, and its directory is here."""

    run_dir: Path


def serve_standby(
    address: str,
    watch: Watch,
    *,
    host: str | None = None,
    port: int | None = None,
    run_dir: Path | None = None,
    data_root: Path | None = None,
    token_file: Path | None = None,
    timeout_s: float = 120.0,
) -> RunResult | NeverNeeded:
    """Follow the run of the master at `address`, and go on with it once its lease has run out. Raises `SpeedoError`.

    This machine then serves at `host`, by default its address towards the master, and `port`, by default the master's.
    The files of the run are in `run_dir`. The master, and later Redis, is waited for up to `timeout_s` seconds.
    """
    if ignored := session.ignored_settings():
        watch.note(ignored)
    token = load_token(token_file)
    wait_for_master([address], timeout_s, watch.note)
    terms = _patient_terms(address, token, time.monotonic() + timeout_s)
    here = host or own_address_towards(resolved(address.rpartition(":")[0]))
    prepared, facts = terms.prepared(here, port, run_dir, data_root, watch.note)
    require_free_port(resolved(here), prepared.config.port)
    config, settings = prepared.config, prepared.settings
    address_here = f"{config.host}:{config.port}"
    store = RedisStore(settings.redis_url, ca_pem=settings.redis_ca)
    standby = StandbyWatch(
        RunFollower(store, settings.run, prepared.run_dir, address_here),
        lease_of(settings, address_here, timeout_s, watch.note),
        *(prepared.run_dir, address, timeout_s, watch.note),
    )
    watch.note(
        f"follows the run of the master at {address} into {prepared.run_dir}; takes over at {address_here} "
        f"{LEASE_S:.0f} s after the master was last heard of"
    )
    with stop_signals() as stopped:
        taken = standby.follow(stopped)
    if taken is not None:
        followed = FollowedRun(prepared, facts, taken.lease, taken.why)
        return serve_master(config, watch, token_file, token, followed)
    if stopped:
        watch.note(f"{stopped[0]}: leaves; the run goes on without this standby")
        end_as(stopped[0])
    return NeverNeeded(prepared.run_dir)


def _patient_terms(address: str, token: str, deadline: float) -> StandbyTerms:
    """As `_terms`, tried again until the deadline where the master is not there yet, or this machine is too busy."""
    while True:
        try:
            return _terms(address, token)
        except ClusterError as error:
            passes = isinstance(error, NotAMasterError) or TOO_BUSY in str(error)
            if not passes or time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)


def _terms(address: str, token: str) -> StandbyTerms:
    """What the master says of its run. Raises `ClusterError`, also for a run that can have no standby.

    A child asks, run by the name of this module: Ray would keep something of the master's cluster in a process that
    later has another one, and end it.
    """
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        connection = stack.enter_context(Connection(ours.detach()))
        joined = host_node(address, token, Path(ray_folder(stack)), resources={}, environment={})
        node, _ = stack.enter_context(joined)
        with theirs:
            asking = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, node.gcs, str(theirs.fileno())],
                env=session.clean_environment(token),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        stack.callback(asking.wait)
        stack.callback(asking.kill)
        with suppress(EOFError, OSError):  # it has died
            if connection.poll(CHILD_S):
                answer: StandbyTerms | SpeedoError | None = connection.recv()
                if isinstance(answer, SpeedoError):
                    raise answer
                if answer is not None:
                    return answer
        raise NotAMasterError(
            f"Ray answers at {address}, but no master of a run: correct --standby, or wait until the run has begun"
        )


def main() -> None:
    """Asks the master in the cluster of the first argument, and answers to the descriptor of the second."""
    from speedo.actors.master_actor import NAME

    answer: StandbyTerms | SpeedoError | None = None
    take_addresses_literally()
    with driver(sys.argv[1], session.NAMESPACE):
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            master: Any = ray.get_actor(NAME)
            answer = ray.get(master.for_standby.remote(), timeout=ANSWER_S)
        except RayTaskError as error:
            if not isinstance(error.cause, SpeedoError):
                raise
            answer = error.cause
        except (ValueError, RayError):  # no such actor, or it does not answer
            answer = None
        with Connection(int(sys.argv[2])) as connection:
            connection.send(answer)


if __name__ == "__main__":
    main()
