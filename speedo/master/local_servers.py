"""Servers of this process, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speedo.exchange.served_vectors import Stores
from speedo.master.range_server import RangeServer
from speedo.master.server_requests import Answer, Request, ServerLost


@dataclass(frozen=True, slots=True)
class Answered:
    """Implements `speedo.master.server_requests.Pending` where nothing is pending."""

    found: Sequence[Answer | ServerLost]

    def done(self) -> bool:
        return True

    def when_done(self, then: Callable[[], None]) -> None:
        then()

    def answers(self) -> Sequence[Answer | ServerLost]:
        return self.found


class LocalServers:
    """Implements `speedo.master.server_requests.Servers` by servers of this process."""

    def __init__(self, servers: Sequence[RangeServer]) -> None:
        self.servers = list(servers)

    def __len__(self) -> int:
        return len(self.servers)

    def ready(self) -> None:
        pass

    def ask(self, request: Request) -> Answered:
        return Answered([self.ask_one(index, request) for index in range(len(self.servers))])

    def ask_one(self, index: int, request: Request) -> Answer | ServerLost:
        return self.servers[index].do(request)

    def replace(self, index: int, cause: str) -> None:
        old = self.servers[index]
        self.servers[index] = RangeServer(
            old.run, old.layout, old.store, old.epoch, old.compression, old.clock, old.solver
        )

    def stores(self) -> list[Stores]:
        return [Stores(server.store) for server in self.servers]
