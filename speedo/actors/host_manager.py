"""Manages the hosts from the master: workers per host, workers that must end, workers that change their shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError

from speedo.actors.ray_cluster import CAUSE_WAIT_S, Gone, RayCluster
from speedo.actors.ray_errors import raised_by, why
from speedo.engines.solver.holding import Holding
from speedo.errors import ClusterError, ConfigError, SpeedoError
from speedo.exchange.channel import first_line
from speedo.master.reasons import heard_again, not_heard
from speedo.master.restarts import spread
from speedo.master.sharding import Resharding, sharding_for
from speedo.master.slots import Assignment, Roster
from speedo.run.config.run_config import LARGEST_WORKERS
from speedo.system.bounds import DataShare
from speedo.watch.status import StatusBoard

MASTERS_OWN: Final = "here"  # the host whose workers are of the master's own command
QUIET_S: Final = 6.0  # a host asks every second; it may need some to end a process that hangs
# A host that was not heard of for this long is left out where workers are spread.
SILENT_S: Final = 30.0
REBUILD_S: Final = 120.0  # for the turn under way to end, and again for an engine to be built


@dataclass(frozen=True, slots=True)
class EndOfWorker:
    """A worker whose process its host must end; with `for_good` it is not restarted."""

    worker: int
    incarnation: int
    reason: str
    for_good: bool

    def is_of(self, place: Assignment) -> bool:
        return (self.worker, self.incarnation) == (place.worker, place.incarnation)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host must do: run `count` workers, end those in `end`, and record the new places in `moved`.

    `round` counts the requests for a number of workers: each request also restarts workers that were given up.
    Within `leave_s` seconds it must leave, if that is not None.
    """

    count: int
    round: int
    end: tuple[EndOfWorker, ...]
    moved: tuple[Assignment, ...]
    leave_s: float | None = None


@dataclass(slots=True)
class _Host:
    count: int
    cores: int
    heard: float
    trains: bool = True
    leaves: bool = False  # it gets no workers any more
    leave_s: float | None = None  # somebody wants it to leave
    asks: bool = False  # it does once its workers have their places
    silent: bool = False


def left_because(why: str) -> str:
    """The cause of the end of workers whose host leaves."""
    return f"its host leaves: {why}"


def check_records(host: str, there: int | None, here: int | None, share: DataShare) -> None:
    """Raises `ClusterError` if a host cannot share in that way, because its number of records is not the master's."""
    if share != "own" and there is not None and here is not None and here != there:
        raise ClusterError(
            f"host {host} has {there:,} training records, but the master {here:,}, and with --data-share {share} "
            "all need the same: copy the master's data to this host, or start the master with --data-share own"
        )


class HostManager:
    """Belongs to the master; its methods are called from several threads.

    `admit` gives a place its own access to the store, and may wait for it. A host starts a worker that died
    `restarts` times again. The data is redistributed `reshard_after_s` seconds after the set of workers last changed,
    in batches of `batch_size` or, with `split`, in shares of one.
    """

    def __init__(
        self,
        cluster: RayCluster,
        roster: Roster,
        board: StatusBoard,
        admit: Callable[[Assignment, int | None], Assignment],
        shut_out: Callable[[int, int], None],
        *,
        restarts: int,
        reshard_after_s: float,
        batch_size: int,
        split: bool,
    ) -> None:
        self._cluster, self._roster, self._board = cluster, roster, board
        self._admit, self._shut_out, self._restarts = admit, shut_out, restarts
        self._resharding = Resharding(reshard_after_s)
        self._batch_size, self._split = batch_size, split
        self._hosts: dict[str, _Host] = {}
        self._round = 0
        self._wanted_by_user: int | None = None
        self._lock = threading.Lock()

    def enlist(self, host: str, count: int, cores: int, holding: Holding | None = None) -> int:
        """Register a host that will run this many workers; returns how often it restarts one that died.

        Raises `ClusterError` if its records cannot be those of the run.
        """
        with self._lock:
            if count and holding is not None:
                self._take_records(host, count, holding)
            self._hosts[host] = _Host(count, max(cores, 1), time.monotonic(), count > 0)
            self._tell_wanted()
        return self._restarts

    def discharge(self, host: str) -> None:
        """Unregister a host."""
        with self._lock:
            self._hosts.pop(host, None)
            self._roster.discharge(host)
            self._count_own_records()
            self._tell_wanted()

    def scale(self, workers: int) -> str:
        """Distribute this many workers over the hosts, which follow within a second; returns each host's change."""
        if not 1 <= workers <= LARGEST_WORKERS:
            raise ConfigError(
                f"{workers} workers: use 1 to {LARGEST_WORKERS}; `speedo stop` ends the run"
            )
        with self._lock:
            hosts = self._there(time.monotonic())
            there = {name: host for name, host in hosts.items() if host.trains}
            if not there:
                raise ClusterError("no host has joined: start `speedo worker` on one first")
            self._round += 1
            counts = spread(
                workers,
                {name: host.count for name, host in there.items()},
                {name: host.cores for name, host in there.items()},
            )
            for name, count in counts.items():
                there[name].count = count
            self._tell_wanted()
        shares = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        return f"{workers} workers wanted: {shares}"

    def want(self, workers: int) -> None:
        """Somebody else decides where the workers run; this many are wanted in all."""
        with self._lock:
            self._wanted_by_user = workers
            self._tell_wanted()

    def tell_to_leave(self, name: str, within_s: float) -> str:
        """Have a host leave, or all of a machine, within this time; returns a sentence that names them."""
        with self._lock:
            others = {one: host for one, host in self._hosts.items() if one != MASTERS_OWN}
            found = [one for one in sorted(others) if name in (one, one.partition(":")[0])]
            if not found:
                names = f"they are {', '.join(sorted(others))}" if others else "no host has joined"
                raise ClusterError(f"{name} is no host of this run that could leave: {names}")
            for one in found:
                others[one].leave_s = within_s
        return f"{', '.join(found)}: leaving, within {within_s:g} s"

    def host_leaves(self, host: str, places: Iterable[Assignment], why: str) -> bool:
        """Let the workers of this host go, each once its present turns are merged; whether any is still there.

        May be called again, for those that join meanwhile.
        """
        with self._lock:
            known = self._hosts.get(host)
            if known is not None and not known.leaves:
                known.leaves = True
                self._board.notice(f"{host} leaves: {why}; its workers hand in what they have")
                self._tell_wanted()
        there = [self._roster.now_at(place.worker, place.incarnation) for place in places]
        for place in filter(None, there):
            self._cluster.leave(place.worker, place.incarnation, left_because(why))
        return any(there)

    def attend(self, host: str, alive: tuple[tuple[int, int], ...]) -> Orders:
        """Takes the list of a host's workers and returns its orders; also checks whether to redistribute the data."""
        now = time.monotonic()
        with self._lock:
            known = self._hosts.get(host)
            if known is None:
                raise ClusterError(f"host {host} is not known here: it must register first")
            known.heard, known.asks = now, True
            self._look_for_silent(now)
            self._tell_wanted()  # a host that started for long counts again
            self._reshard_if_due(now)
        places = {key: self._roster.now_at(*key) for key in alive}
        end = tuple(self._end(*key) for key, place in places.items() if place is None)
        moved = tuple(
            place
            for key, place in places.items()
            if place is not None and place.incarnation != key[1]
        )
        return Orders(known.count, self._round, end, moved, known.leave_s)

    def samples(self) -> int:
        """The sample at which a new reader of a shard begins: in a running run, in the present pass over the data."""
        board = self._board
        if board.started and board.records and self._roster.share == "shard":
            return board.samples % board.records
        return board.samples  # of another way of sharing the roster knows the passes

    def tell_silent(self) -> None:
        """Look whether a host is not heard of any more: where there is only one, no other one asks meanwhile."""
        with self._lock:
            self._look_for_silent(time.monotonic())

    # ------------------------------------------------------------ inside

    def _take_records(self, host: str, count: int, holding: Holding) -> None:
        check_records(host, holding.records, self._board.records, self._roster.share)
        known = host in self._hosts
        self._roster.enlist(host, count, holding)
        self._count_own_records()
        others = self._roster.others_with(host)
        if self._roster.share == "own" and others and not known:
            after_s = self._resharding.after_s
            when = (
                f"they divide them {after_s:g} s after the last worker has joined (--data-share reshard_after)"
                if after_s
                else "they do not divide them, as --data-share has reshard_after=0"
            )
            self._board.notice(
                f"{host} has the records of {', '.join(others)} on the same machine, and the workers of each command "
                f"read all of them: {when}; one command with --workers N divides them from the start"
            )

    def _count_own_records(self) -> None:
        """In `own` an epoch is as many samples as the hosts have records together."""
        if self._roster.share == "own" and not self._board.over:
            self._board.records = self._roster.records()

    def _look_for_silent(self, now: float) -> None:
        """Say of a host once that it is not heard of, and once that it is again: its workers fail with it."""
        for name, host in self._hosts.items():
            silent = host.asks and now > host.heard + QUIET_S and name != MASTERS_OWN
            if silent != host.silent and not self._board.over:
                host.silent = silent
                self._board.notice(
                    f"warning: {not_heard(name, now - host.heard)}" if silent else heard_again(name)
                )

    def _there(self, now: float) -> dict[str, _Host]:
        return {
            name: host
            for name, host in self._hosts.items()
            if host.heard > now - SILENT_S and not host.leaves
        }

    def _tell_wanted(self) -> None:
        if self._board.over:
            return  # hosts leave one after another: what was wanted of the run stays as it was
        hosts = self._there(time.monotonic()).values()
        wanted = self._wanted_by_user
        self._board.wanted = sum(host.count for host in hosts) if wanted is None else wanted

    def _end(self, worker: int, incarnation: int) -> EndOfWorker:
        gone = self._cluster.gone(worker, incarnation) or Gone("the master does not know it")
        return EndOfWorker(worker, incarnation, gone.cause, gone.for_good)

    def _reshard_if_due(self, now: float) -> None:
        board, roster = self._board, self._roster
        if not board.started or board.finishing:
            return
        live = self._cluster.live()
        slots = frozenset(worker for worker, _ in live)
        if not self._resharding.due(slots, roster.present(slots), now):
            return
        sharding = sharding_for(
            slots, self._batch_size, split=self._split, records=board.records, share=roster.share
        )
        if sharding is None:
            return
        board.given_up.redistributed(sharding.count, board.iteration)
        for former, place in roster.reshard(sharding, live, self.samples()):
            cause = (
                f"takes a new shard: {place.rank + 1} of {place.count}, batch {place.batch_size}"
            )
            board.expect(place.worker, "rebuilding")
            actor = self._cluster.withdraw(former.worker, former.incarnation, cause)
            if actor is None:
                self._cluster.lost(place.worker, place.incarnation, "it died before its new shard")
            else:
                threading.Thread(
                    target=self._rebuild, args=(actor, former, place), daemon=True
                ).start()

    def _rebuild(self, actor: Any, former: Assignment, place: Assignment) -> None:
        """Let the worker finish its turns, rebuild its engine, and admit it again.

        Until its engine is rebuilt it may still use the store as the former incarnation: where turns overlap, it
        answers while it trains.
        """
        worker, incarnation = place.worker, place.incarnation
        try:
            ray.get(actor.process.remote(), timeout=REBUILD_S)
            admitted = self._admit(place, former.incarnation)
            ready = ray.get(actor.rebuild.remote(admitted), timeout=REBUILD_S)
        except GetTimeoutError:
            cause = f"it did not take its new shard within {REBUILD_S:.0f} s"
        except RayError as error:
            cause = why(error)
            if raised_by(error) is not None:
                cause = f"it could not take its new shard: {cause}"
            else:
                time.sleep(CAUSE_WAIT_S)  # its host knows better, and says so first
        except SpeedoError as error:
            cause = first_line(error)
        else:
            self._cluster.join(worker, incarnation, actor, ready)
            return
        finally:
            self._shut_out(former.worker, former.incarnation)
        self._cluster.lost(worker, incarnation, cause)
