"""The servers as the master sees them, over Ray: which host has which, who may use their stores, who is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.server_actor import ServerOrder
from speedo.actors.server_calls import Asked, Found, ServerCalls
from speedo.engines.solver_update import Recipe
from speedo.errors import ClusterError, SpeedoError, StoreError, TrainingStopped
from speedo.exchange.ranges import Range, ranges_of
from speedo.exchange.served_vectors import Stores
from speedo.exchange.vector import Layout
from speedo.master.server_requests import Answer, Probe, Request, ServerLost
from speedo.master.slots import Assignment, ServerAddress
from speedo.run.open_store import server_store
from speedo.run.settings import RunSettings
from speedo.storage.redis.users import Access
from speedo.watch.status import ServerStatus

SILENT_S: Final = 10.0  # a host that was not heard of for this long does not bring its server back
# A server waits for its store for as long as the run allows, and then says so.
MARGIN_S: Final = 30.0
# A server whose host was not heard of for this long is lost, whatever Ray says.
CUT_OFF_S: Final = 20.0
SOON_S: Final = 1.0  # within which a server that is well answers, as a rule
LOOK_S: Final = 0.1


@dataclass(eq=False)
class _Server:
    """One server: its range, its host, and once it is there how it is reached. `state` is for people."""

    range: Range
    host: str
    incarnation: int = 1
    handle: Any = None
    calls: ServerCalls | None = None  # to this process
    address: ServerAddress | None = None
    access: Access | None = None
    store: Any = None
    state: str = "starting"


class _Asked:
    """Implements `speedo.master.server_requests.Pending` over what servers will answer; None where nobody was asked."""

    def __init__(
        self, asked: Sequence[Asked | None], answer: Callable[[int, Asked | None], Found]
    ) -> None:
        self._asked, self._answer = asked, answer
        self._found: Sequence[Found] | None = None

    def done(self) -> bool:
        return self._found is not None or all(one is None or one.done() for one in self._asked)

    def when_done(self, then: Callable[[], None]) -> None:
        there = [one for one in self._asked if one is not None]
        left, lock = [len(there)], threading.Lock()
        if not there:
            return then()

        def one_more(_: Any) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                then()

        for one in there:
            one.add_done_callback(one_more)

    def answers(self) -> Sequence[Answer | ServerLost]:
        if self._found is None:
            self._found = [self._answer(index, one) for index, one in enumerate(self._asked)]
        found = self._found
        for answer in found:
            if isinstance(answer, SpeedoError):
                raise answer
        return [answer for answer in found if not isinstance(answer, SpeedoError)]


class RayServers:
    """Implements `speedo.master.server_requests.Servers`. `wanted` is as in `--servers`.

    Its methods are called from several threads. `moved` is notified when a server has got another address: who has the
    former one can do nothing with it. `trouble` takes what is wrong with the users of a store.
    """

    def __init__(
        self,
        settings: RunSettings,
        wanted: str,
        start_s: float,
        moved: Callable[[str], None],
        trouble: Callable[[str | None], object],
    ) -> None:
        self._settings, self._wanted, self._start_s = settings, wanted, start_s
        self._moved, self._trouble = moved, trouble
        self._layout: Layout | None = None
        self._solver: Recipe | None = None
        self._hosts: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._servers: list[_Server] = []
        self._began = False
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
            self._heard[host] = time.monotonic()
            self._divide()

    def _divide(self) -> None:
        """Decide who has which range, once the workers are all announced and it is known what is divided."""
        enough = sum(self._hosts.values()) >= self._settings.workers
        if self._servers or self._layout is None or not enough:
            return
        hosts = places_of(self._wanted, self._hosts)
        ranges = ranges_of(self._layout, len(hosts))
        self._servers = [_Server(one, host) for one, host in zip(ranges, hosts, strict=False)]
        self._changed.notify_all()

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
            if not self._servers:
                return None
            return tuple(
                ServerOrder(index, one.incarnation, one.range, self._solver)
                for index, one in enumerate(self._servers)
                if one.host == host
            )

    def has(self, host: str) -> bool:
        """Whether this host has servers."""
        with self._changed:
            return any(one.host == host for one in self._servers)

    def join(
        self, host: str, index: int, incarnation: int, address: ServerAddress, handle: Any
    ) -> None:
        """A server has started, for the first time or again. Raises `StoreError` if its store cannot be used."""
        with self._changed:
            server = self._servers[index]
            if (server.host, server.incarnation) != (host, incarnation):
                return
            known = server.address
        access, store = server.access, server.store
        if known is None or known.url != address.url:
            access = Access(
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
            if (server.host, server.incarnation) != (host, incarnation):
                return
            server.address, server.access, server.store = address, access, store
            server.handle, server.calls, server.state = handle, ServerCalls(handle), "serving"
            self._changed.notify_all()
        if known is not None and known.url != address.url:
            self._moved(f"server {index} is at another host now")

    # ------------------------------------------------------------ who may use their stores

    def all_there(self) -> bool:
        """Whether every server can be reached."""
        with self._changed:
            return bool(self._servers) and all(one.handle is not None for one in self._servers)

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

    def _admitted(self, admit: Callable[[Access], str]) -> tuple[ServerAddress, ...]:
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
            self._began = True

    def _who_is_missing(self) -> str:
        if not self._servers:
            there, wanted = sum(self._hosts.values()), self._settings.workers
            return f"only {there} of {wanted} workers were announced within {self._start_s:.0f} s"
        there = sum(one.handle is not None for one in self._servers)
        return f"only {there} of {len(self._servers)} servers started within {self._start_s:.0f} s"

    def ask(self, request: Request) -> _Asked:
        return _Asked(
            [self._ask(index, request) for index in range(len(self._servers))], self._answer
        )

    def ask_one(self, index: int, request: Request) -> Answer | ServerLost:
        answer = self._answer(index, self._ask(index, request))
        if isinstance(answer, SpeedoError):
            raise answer
        return answer

    def replace(self, index: int, cause: str) -> None:
        deadline = time.monotonic() + self._settings.timeout_s
        if self._is_well(index):  # its host has started it again before we knew
            return
        with self._changed:
            server = self._servers[index]
            old, server.handle, server.state = server.handle, None, f"gone: {cause}"
            server.incarnation += 1
        if server.calls is not None:
            server.calls.end(cause)
        if old is not None:
            with suppress(RayError):
                ray.kill(old)
        with self._changed:
            while server.handle is None:
                now = time.monotonic()
                if now >= deadline or self._stopped:
                    raise StoreError(
                        f"server {index} at {server.host} is lost ({cause}), and no host started it again within "
                        f"{self._settings.timeout_s:.0f} s"
                    )
                if self._heard.get(server.host, 0.0) < now - SILENT_S:
                    self._give_to_another(server, now)
                self._changed.wait(LOOK_S)

    def _is_well(self, index: int) -> bool:
        asked = self._ask(index, Probe())
        try:
            answer = None if asked is None else asked.result(SOON_S)
        except (TimeoutError, RayError):
            return False
        return isinstance(answer, int) or (isinstance(answer, ServerLost) and answer.fresh)

    def _give_to_another(self, server: _Server, now: float) -> None:
        """To the host that was heard of lately and has the fewest servers; if there is none it is waited for."""
        lately = [name for name, heard in self._heard.items() if heard >= now - SILENT_S / 2]
        if lately:
            load = {name: sum(one.host == name for one in self._servers) for name in lately}
            server.host = min(lately, key=lambda name: load[name])
            server.incarnation += 1
            server.state = "starting"

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

    def _ask(self, index: int, request: Request) -> Asked | None:
        server = self._servers[index]
        if server.handle is None or server.calls is None:
            return None
        return server.calls.ask(request)

    def _answer(self, index: int, asked: Asked | None) -> Found:
        if asked is None:
            return ServerLost("its process is gone")
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
