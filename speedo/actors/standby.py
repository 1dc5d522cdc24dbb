"""`speedo master --standby`: follows a run on another machine, and goes on with it when its master is gone.

It asks the master once, as a node of its cluster, and then needs only the run's Redis. Center, journal and lease are
there, and the files of the run come through there (`speedo.run.standby_copy`).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from speedo.actors.attempts import Followed
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
from speedo.engines.net_trial import CaffeFacts
from speedo.errors import ClusterError, FencedError, SpeedoError, StoreError, TrainingStopped
from speedo.run.kept_lease import KeptLease
from speedo.run.open_store import lease_of
from speedo.run.prepare import Prepared
from speedo.run.result import RunResult
from speedo.run.standby_copy import RunFollower
from speedo.run.standby_terms import StandbyTerms
from speedo.storage.lease import LEASE_S, Holder
from speedo.storage.redis.store import RedisStore
from speedo.watch.console import Watch

LOOK_S: Final = 0.2
TOO_BUSY: Final = "timed out during startup"  # in Ray's words, of a node
ANSWER_S: Final = 60.0
CHILD_S: Final = 120.0
LAPSE_S: Final = 2.0  # a lease that had more at the last look has not run out
LAST_S: Final = 20.0  # for the files of a run that is over to come


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
    standby = _Standby(prepared, facts, address, timeout_s, watch.note)
    with stop_signals() as stopped:
        followed = standby.follow(stopped)
    if followed is None:
        return NeverNeeded(prepared.run_dir)
    return serve_master(prepared.config, watch, token_file, token, followed)


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


class _Standby:
    """Follows a run until it is over, or this machine has its lease."""

    def __init__(
        self,
        prepared: Prepared,
        facts: CaffeFacts,
        master: str,
        timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        config, settings = prepared.config, prepared.settings
        self._prepared, self._facts, self._master = prepared, facts, master
        self._timeout_s, self._note = timeout_s, note
        self._address = f"{config.host}:{config.port}"
        store = RedisStore(settings.redis_url, ca_pem=settings.redis_ca)
        self._copy = RunFollower(store, settings.run, prepared.run_dir, self._address)
        self._lease = lease_of(settings, self._address)
        self._answered = time.monotonic()
        self._over_since: float | None = None
        self._left_s = 0.0  # of the lease, at the last look

    def follow(self, stopped: list[str]) -> Followed | None:
        """The run, once this machine has its lease; None once it is over, and its files are here."""
        self._note(
            f"follows the run of the master at {self._master} into {self._prepared.run_dir}; takes over at "
            f"{self._address} {LEASE_S:.0f} s after the master was last heard of"
        )
        said = False
        while not stopped:
            before = self._copy.taken
            try:
                self._copy.follow()
                holder = self._holder()
            except StoreError as error:
                waited = time.monotonic() - self._answered
                if waited > self._timeout_s:
                    raise StoreError(f"{error}; this standby has waited {waited:.0f} s") from None
                time.sleep(LOOK_S)
                continue
            self._answered = time.monotonic()
            if self._copy.over or self._is_over(holder):
                self._require_good_end()
                return None
            if before and self._copy.taken == before and not said:
                self._note("has all files of the run so far")
                said = True
            if not holder.is_expired:
                self._left_s = holder.left_s
            elif (followed := self._taken_over(holder)) is not None:
                return followed
            time.sleep(LOOK_S)
        with suppress(StoreError):
            self._copy.leave()
        self._note(f"{stopped[0]}: leaves; the run goes on without this standby")
        end_as(stopped[0])

    def _holder(self) -> Holder:
        """Who has the run. Raises `StoreError`, also if Redis does not know."""
        holder = self._lease.holder()
        if holder.epoch < 0:
            raise StoreError(
                "the run's Redis was restarted and has lost which master has the run, so no other one can take over "
                "until that master has written it again"
            )
        return holder

    def _is_over(self, holder: Holder) -> bool:
        """Whether the run has ended without a word to this standby, which has waited for one."""
        if not holder.is_over:
            return False
        now = time.monotonic()
        self._over_since = self._over_since or now
        return now > self._over_since + LAST_S

    def _require_good_end(self) -> None:
        """Raises `TrainingStopped` for a run that is over, and not as it should be."""
        if not self._copy.over:
            raise TrainingStopped(
                f"the run is over, but its last files did not come: {self._prepared.run_dir} lacks a part of it"
            )
        if self._copy.why:
            raise TrainingStopped(
                f"the master at {self._master} has ended the run: {self._copy.why}"
            )

    def _taken_over(self, holder: Holder) -> Followed | None:
        """The run with its lease; None if its master, or another one, has it after all."""
        began = time.monotonic()
        try:
            self._lease.claim(holder.epoch)
        except FencedError:
            return None  # it, or another one, has renewed it meanwhile
        why = f"the master at {self._master} has not been heard of for {LEASE_S:.0f} s"
        if self._left_s > LAPSE_S:
            why = f"the master at {self._master} has handed the run over"
        self._note(f"warning: {why}: this machine takes over")
        kept = KeptLease(self._lease, self._note)
        self._copy.take_rest()
        self._note(
            f"all files that were on the way are here, after {time.monotonic() - began:.1f} s"
        )
        return Followed(self._prepared, self._facts, kept, why)


if __name__ == "__main__":
    main()
