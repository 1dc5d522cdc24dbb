"""The servers as the master sees them, over Ray: which host has which, who may use their stores, who is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from speedo.actors.servers.server_actor import ServerOrder
from speedo.actors.servers.server_calls import Asked, Found, ServerCalls, ServerLost
from speedo.engines.solver_update import Recipe
from speedo.errors import ClusterError, RunInterrupted, SpeedoError, TrainingStopped
from speedo.exchange.ranges import Range, ranges_of
from speedo.exchange.served_vectors import Stores
from speedo.exchange.vector import Layout
from speedo.master.servers.server_requests import Answer, Request
from speedo.master.slots import Assignment, ServerAddress
from speedo.run.open_store import server_store
from speedo.run.settings import RunSettings
from speedo.storage.redis.users import StoreUsers
from speedo.watch.status import ServerStatus

# A server waits for its store for as long as the run allows, and then says so.
MARGIN_S: Final = 30.0
# A server whose host was not heard of for this long is lost, whatever Ray says.
CUT_OFF_S: Final = 20.0
SOON_S: Final = 1.0  # within which a server that is well answers, as a rule
LOOK_S: Final = 0.1
FEWER_S: Final = 20.0  # in a run that begins again, after the first host: others may have gone


@dataclass(eq=False)
class _Server:
    """One server: its range, its host, and once it is there how it is reached. `state` is for people."""

    range: Range
    host: str
    handle: Any = None
    calls: ServerCalls | None = None
    address: ServerAddress | None = None
    access: StoreUsers | None = None
    store: Any = None
    state: str = "starting"


class _Asked:
    """Implements `speedo.master.servers.server_requests.Pending` over what servers will answer."""

    def __init__(self, asked: Sequence[Asked], answer: Callable[[int, Asked], Found]) -> None:
        self._asked, self._answer = asked, answer
        self._found: Sequence[Found] | None = None

    def done(self) -> bool:
        return self._found is not None or all(one.done() for one in self._asked)

    def when_done(self, then: Callable[[], None]) -> None:
        left, lock = [len(self._asked)], threading.Lock()

        def one_more(_: Any) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                then()

        for one in self._asked:
            one.add_done_callback(one_more)

    def answers(self) -> Sequence[Answer]:
        if self._found is None:
            self._found = [self._answer(index, one) for index, one in enumerate(self._asked)]
        found = self._found
        for answer in found:
            if isinstance(answer, SpeedoError):
                raise answer
        return [answer for answer in found if not isinstance(answer, SpeedoError)]


class RayServers:
    """Implements `speedo.master.servers.server_requests.Servers`. `wanted` is as in `--servers`: nobody waits for "0".

    A run that begins again may do so with `min_workers`, as a host may have gone. Its methods are called from several
    threads. `trouble` takes what is wrong with the users of a store.
    """

    def __init__(
        self,
        settings: RunSettings,
        wanted: str,
        start_s: float,
        min_workers: int,
        trouble: Callable[[str | None], object],
    ) -> None:
        self._settings, self._wanted, self._start_s = settings, wanted, start_s
        self._min_workers, self._trouble = min_workers, trouble
        self._first_host: float | None = None  # when it was enlisted
        self._layout: Layout | None = None
        self._solver: Recipe | None = None
        self._hosts: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._servers: list[_Server] = []
        self._stopped = ""
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        return max(len(self._servers), 1)

    def use(self, layout: Layout, solver: Recipe | None = None) -> None:
        """What is to be divided, and the solver whose update servers apply."""
        with self._changed:
            self._layout, self._solver = layout, solver
            self._divide()

    # ------------------------------------------------------------ hosts

    def enlist(self, host: str, workers: int) -> None:
        """A host that can serve, and has this many workers."""
        with self._changed:
            self._hosts[host] = workers
            self._first_host = self._first_host or time.monotonic()
            self._heard[host] = time.monotonic()
            self._divide()

    def _divide(self) -> None:
        """Decide who has which range, once the workers are all announced and it is known what is divided."""
        if self._is_complete() or self._layout is None or not self._are_enough():
            return
        hosts = places_of(self._wanted, self._hosts)
        ranges = ranges_of(self._layout, len(hosts))
        self._servers = [_Server(one, host) for one, host in zip(ranges, hosts, strict=False)]
        self._changed.notify_all()

    def _are_enough(self) -> bool:
        there = sum(self._hosts.values())
        if self._first_host is None or there >= self._settings.workers:
            return there >= self._settings.workers
        waited = time.monotonic() >= self._first_host + FEWER_S
        return bool(self._settings.master_restarts) and waited and there >= self._min_workers

    def discharge(self, host: str) -> None:
        """This host has left."""
        with self._changed:
            self._hosts.pop(host, None)
            self._heard.pop(host, None)
            self._changed.notify_all()

    def orders(self, host: str) -> tuple[ServerOrder, ...] | None:
        """The servers that this host is to run; None while that is not decided."""
        with self._changed:
            self._heard[host] = time.monotonic()
            self._divide()
            if not self._is_complete():
                return None
            return tuple(
                ServerOrder(index, one.range, self._solver)
                for index, one in enumerate(self._servers)
                if one.host == host
            )

    def has(self, host: str) -> bool:
        """Whether this host has servers."""
        with self._changed:
            return any(one.host == host for one in self._servers)

    def join(self, index: int, address: ServerAddress, handle: Any) -> None:
        """A server has started. Raises `StoreError` if its store cannot be used."""
        access = StoreUsers(
            address.url,
            self._settings.keyspace,
            ca_pem=address.ca,
            saved=True,
            patience_s=self._settings.timeout_s,
            on_trouble=self._trouble,
        )
        access.problem()  # asks it
        store = server_store(address, self._settings, self._trouble)
        with self._changed:
            server = self._servers[index]
            server.address, server.access, server.store = address, access, store
            server.calls, server.handle = ServerCalls(handle), handle
            server.state = "serving"
            self._changed.notify_all()

    # ------------------------------------------------------------ who may use their stores

    def _is_complete(self) -> bool:
        """Whether it is decided who has which range."""
        return bool(self._servers) or self._wanted == "0"

    def all_there(self) -> bool:
        """Whether every server can be reached."""
        with self._changed:
            return self._is_complete() and all(one.handle is not None for one in self._servers)

    def admit_worker(self, place: Assignment, beside: int | None = None) -> Assignment:
        """The place with a user of its own at every server; see `Access.admit_worker`.

        Raises `ClusterError` while a server is missing.
        """
        return replace(
            place,
            servers=self._admitted(
                lambda access: access.admit_worker(place.worker, place.incarnation, beside)
            ),
        )

    def admit_reader(self) -> tuple[ServerAddress, ...]:
        """Where the tester reads."""
        deadline = time.monotonic() + self._start_s
        while not self.all_there() and time.monotonic() < deadline and not self._stopped:
            time.sleep(LOOK_S)
        return self._admitted(lambda access: access.admit_reader())

    def dismiss(self, worker: int, incarnation: int) -> None:
        """Shut a worker out."""
        with self._changed:
            accesses = [one.access for one in self._servers]
        for access in filter(None, accesses):
            access.dismiss(worker, incarnation)

    def close(self) -> None:
        """Shut out everyone."""
        with self._changed:
            accesses = [one.access for one in self._servers]
        for access in filter(None, accesses):
            access.close()

    def _admitted(self, admit: Callable[[StoreUsers], str]) -> tuple[ServerAddress, ...]:
        with self._changed:
            known = [(one.address, one.access) for one in self._servers]
        if not self.all_there():
            raise ClusterError("not all servers are there yet")
        found = []
        for address, access in known:
            assert address is not None
            assert access is not None
            found.append(replace(address, url=admit(access)))
        return tuple(found)

    # ------------------------------------------------------------ Servers

    def stop(self, reason: str) -> None:
        """Wait no longer for servers that are still to come."""
        with self._changed:
            self._stopped = reason
            self._changed.notify_all()

    def ready(self) -> None:
        deadline = time.monotonic() + self._start_s
        with self._changed:
            while not self.all_there():
                if self._stopped:
                    raise TrainingStopped(f"nothing was trained: {self._stopped}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ClusterError(self._who_is_missing())
                self._changed.wait(left)

    def _who_is_missing(self) -> str:
        if not self._servers:
            there, wanted = sum(self._hosts.values()), self._settings.workers
            return f"only {there} of {wanted} workers were announced within {self._start_s:.0f} s"
        there = sum(one.handle is not None for one in self._servers)
        return f"only {there} of {len(self._servers)} servers started within {self._start_s:.0f} s"

    def ask(self, request: Request) -> _Asked:
        calls = [one.calls for one in self._servers if one.calls is not None]
        return _Asked([one.ask(request) for one in calls], self._answer)

    def stores(self) -> Sequence[Stores]:
        with self._changed:
            return [Stores(one.store) for one in self._servers]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is asked inside goes to each server in one call, at the end; no answer is waited for in between."""
        those = [one.calls for one in self._servers if one.calls is not None]
        for calls in those:
            calls.hold()
        try:
            yield
        finally:
            for calls in those:
                calls.let_go()

    def _answer(self, index: int, asked: Asked) -> Found:
        answer = self._awaited(index, asked)
        if not isinstance(answer, ServerLost):
            return answer
        server = self._servers[index]
        server.state = f"lost: {answer.cause}"
        return RunInterrupted(f"server {index} at {server.host} is lost: {answer.cause}")

    def _awaited(self, index: int, asked: Asked) -> Found | ServerLost:
        limit = self._settings.timeout_s + MARGIN_S
        began = time.monotonic()
        while True:
            with suppress(TimeoutError):
                return asked.result(SOON_S)
            host, now = self._servers[index].host, time.monotonic()
            if now > began + limit:
                return ServerLost(f"no answer for {limit:.0f} s")
            if now > began + CUT_OFF_S and self._heard.get(host, 0.0) < now - CUT_OFF_S:
                return ServerLost(f"nothing was heard of {host} for {CUT_OFF_S:.0f} s")

    # ------------------------------------------------------------ for people

    def status(self) -> tuple[ServerStatus, ...]:
        """Of each server what `speedo status` shows."""
        with self._changed:
            return tuple(
                ServerStatus(index, one.host, one.range.layout.nbytes, one.state)
                for index, one in enumerate(self._servers)
            )

    def trouble_of(self, index: int, problem: str) -> None:
        """Why a server waits for its store; empty if it does not."""
        with self._changed:
            server = self._servers[index]
            if server.handle is not None:
                server.state = f"waiting: {problem}" if problem else "serving"


def places_of(wanted: str, hosts: Mapping[str, int]) -> list[str]:
    """The host of each server. `hosts`: their workers, in the order in which they joined; `wanted`: a number, or auto.

    Hosts without workers come first: they are here to serve. With more servers than hosts it goes around again.
    """
    order = sorted(hosts, key=lambda name: hosts[name] > 0)
    count = len(order) if wanted == "auto" else int(wanted)
    return [order[index % len(order)] for index in range(count)]
