"""Servers of this process, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speedo.exchange.served_vectors import Stores
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.server_requests import Answer, Request


@dataclass(frozen=True, slots=True)
class Answered:
    """Implements `speedo.master.servers.server_requests.Pending` where nothing is pending."""

    found: Sequence[Answer]

    def done(self) -> bool:
        return True

    def when_done(self, then: Callable[[], None]) -> None:
        then()

    def answers(self) -> Sequence[Answer]:
        return self.found


class LocalServers:
    """Implements `speedo.master.servers.server_requests.Servers` by servers of this process."""

    def __init__(self, servers: Sequence[RangeServer]) -> None:
        self.servers = list(servers)

    def __len__(self) -> int:
        return len(self.servers)

    def ready(self) -> None:
        pass

    def ask(self, request: Request) -> Answered:
        return Answered([server.do(request) for server in self.servers])

    def stores(self) -> list[Stores]:
        return [Stores(server.store) for server in self.servers]
