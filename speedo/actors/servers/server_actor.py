"""The server actor: one process with one range of the center, doing what the master asks for."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speedo.engines.native_failures import capture_stderr
from speedo.engines.solver_update import Recipe
from speedo.errors import SpeedoError
from speedo.exchange.ranges import Range
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.server_requests import Answer, Request
from speedo.master.slots import ServerAddress
from speedo.run.open_store import log_trouble, server_store
from speedo.run.settings import RunSettings
from speedo.sgd_modes.foreign import look_in, rule_at
from speedo.system import failpoints


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """Have server `index` run here, for this range. `solver` is there if servers apply its update."""

    index: int
    range: Range
    solver: Recipe | None = None


class ServerActor:
    """A thin shell around `speedo.master.servers.range_server.RangeServer`."""

    def start(
        self,
        settings: RunSettings,
        order: ServerOrder,
        address: ServerAddress,
        log: Path,
        master: Any,
    ) -> int:
        """Connect with its store, whose troubles are reported to `master`; returns the process id."""
        capture_stderr(log)
        failpoints.i_am_worker(order.index)
        faulthandler.enable()
        look_in(settings.code_from)
        for place in settings.rules:  # each merge is asked with its rule
            rule_at(place)
        self._index, self._master = order.index, master
        store = server_store(address, settings, self._trouble)
        self._server = RangeServer(
            settings.keyspace,
            order.range.layout,
            store,
            settings.epoch,
            settings.compression,
            time.monotonic,
            None if order.solver is None else partial(order.solver.update_of, order.range.place),
        )
        return os.getpid()

    def do_all(self, requests: Sequence[Request]) -> list[Answer | SpeedoError]:
        """As `RangeServer.do`, one after another; an error of ours is the answer to the request that raised it."""
        answers: list[Answer | SpeedoError] = []
        for request in requests:
            try:
                answers.append(self._server.do(request))
            except SpeedoError as error:
                answers.append(error)
        return answers

    def _trouble(self, trouble: str | None) -> None:
        log_trouble(trouble)
        with suppress(Exception):  # a master that cannot be reached is noticed by the host
            self._master.trouble_of_server.remote(self._index, trouble or "")
