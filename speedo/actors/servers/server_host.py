"""The servers of a host: a Redis and a process for each that the master orders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray.exceptions import RayError

from speedo.actors.ray_errors import raised_by
from speedo.actors.ray_node.actor_class import actor_class
from speedo.actors.servers.server_actor import ServerActor, ServerOrder
from speedo.actors.worker_process import started
from speedo.errors import SpeedoError
from speedo.exchange.channel import first_line
from speedo.master.slots import ServerAddress
from speedo.run.open_store import this_machine
from speedo.run.settings import RunSettings
from speedo.storage.redis.errors import clients_of
from speedo.storage.redis.server import MAX_CLIENTS, PrivateRedis

LOOK_S: Final = 0.1
ATTEND_S: Final = 1.0  # how often the master is asked for orders
ANSWER_S: Final = 20.0
START_S: Final = 60.0
STOP_S: Final = 5.0
AGAIN_S: Final = 1.0  # before a server that could not start is tried again


@dataclass(eq=False)
class _Server:
    order: ServerOrder
    redis: PrivateRedis
    actor: Any = None
    process: psutil.Process | None = None
    has_joined: bool = False

    def end(self) -> None:
        """End the process for sure."""
        if self.actor is not None:
            with suppress(RayError):
                ray.kill(self.actor)
        if self.process is not None:
            with suppress(psutil.Error):
                self.process.kill()
        self.actor = self.process = None


class ServerHost:
    """Servers of one run on this node, whose Redis listens at `address`, at ports that `port` gives (None: any).

    Their own words go to files in `logs`. `note` gets what could not be started.
    """

    def __init__(
        self,
        master: Any,
        settings: RunSettings,
        name: str,
        logs: Path,
        address: str,
        port: Callable[[], int | None] = lambda: None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._master, self._settings, self._name = master, settings, name
        self._logs, self._address, self._port, self._note = logs, address, port, note
        self._servers: dict[int, _Server] = {}
        self._stopping = threading.Event()
        self._decided = False
        self._said = ""
        self._watcher = threading.Thread(target=self._watch, name="server-watch", daemon=True)

    def start(self) -> None:
        """Do as the master orders, from now on."""
        self._watcher.start()

    def stop(self) -> None:
        """End the servers and their Redis. May be called twice."""
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join(STOP_S)
        for server in list(self._servers.values()):
            server.end()
            server.redis.stop()
        self._servers.clear()

    def _watch(self) -> None:
        pause, asked = 0.0, 0.0
        while not self._stopping.wait(pause):
            pause, asked = LOOK_S, asked + LOOK_S
            try:
                if not self._decided or asked >= ATTEND_S:
                    asked = 0.0
                    self._attend()
            except (RayError, SpeedoError, OSError, psutil.Error) as error:
                pause = AGAIN_S
                cause = raised_by(error) or error
                if isinstance(cause, SpeedoError) and (text := first_line(cause)) != self._said:
                    self._said = text
                    self._note(f"warning: no server can be started here: {text}")

    def _attend(self) -> None:
        orders = ray.get(self._master.server_orders.remote(self._name), timeout=ANSWER_S)
        if orders is None:
            return
        self._decided = True
        problems = []
        for order in orders:
            try:
                server = self._servers.get(order.index) or self._begin(order)
                if not server.has_joined:
                    server.end()
                    self._start(server)
            except (RayError, SpeedoError, OSError, psutil.Error) as error:
                problems.append(error)  # the others start nevertheless
        if problems:
            raise problems[0]

    def _begin(self, order: ServerOrder) -> _Server:
        redis = PrivateRedis(
            host=self._address,
            port=self._port(),
            tls=self._settings.redis_tls,
            unix_socket=True,
            max_clients=max(MAX_CLIENTS, 2 * clients_of(self._settings.workers)),
            tell=self._note,
        )
        redis.__enter__()
        server = self._servers[order.index] = _Server(order, redis)
        return server

    def _start(self, server: _Server) -> None:
        order, redis = server.order, server.redis
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"server-{order.index}.log"
        address = ServerAddress(redis.url, redis.ca_pem, this_machine(), redis.socket_path)
        server.actor = actor_class(ServerActor).remote()
        starting = server.actor.start.remote(self._settings, order, address, log, self._master)
        number = started(starting, log, f"server {order.index}", timeout_s=START_S)
        with suppress(psutil.NoSuchProcess):
            server.process = psutil.Process(number)
        joining = self._master.server_joined.remote(order.index, address, server.actor)
        ray.get(joining, timeout=self._settings.timeout_s + ANSWER_S)
        server.has_joined = True
