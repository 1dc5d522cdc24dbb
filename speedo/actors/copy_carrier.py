"""What a host does for a server that loses its range: it says what it has in its memory, and brings a copy."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.range_copies import BRING_S, Bring
from speedo.errors import SpeedoError
from speedo.exchange.channel import first_line
from speedo.run.host_memory import HostCopies
from speedo.run.open_store import server_store
from speedo.run.settings import RunSettings

TELL_S: Final = 1.0
SOON_S: Final = 0.1
ANSWER_S: Final = 20.0


class CopyCarrier:
    """Belongs to the host of this name; its thread waits for nothing else that a host does."""

    def __init__(self, master: Any, settings: RunSettings, name: str) -> None:
        self._master, self._settings, self._name = master, settings, name
        self._copies = HostCopies(settings.keyspace, settings.host_memory)
        self._brought = 0  # number of the last order
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="range-copies", daemon=True)

    def start(self) -> None:
        """Begin, where this host has such memory."""
        if self._settings.host_memory:
            self._thread.start()

    def stop(self) -> None:
        """Say and bring no more; what is under way ends by itself."""
        self._stopping.set()

    def _carry(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = TELL_S
            try:
                asked = self._master.tell_copies.remote(self._name, self._copies.newest())
                order, soon = ray.get(asked, timeout=ANSWER_S)
                if order is not None and order.number != self._brought:
                    self._bring(order)
            except (RayError, SpeedoError, OSError):
                continue  # a master that is gone: others notice, and stop us
            pause = SOON_S if soon else TELL_S

    def _bring(self, order: Bring) -> None:
        self._brought, problem = order.number, ""
        settings = replace(self._settings, timeout_s=BRING_S / 2)
        try:
            with closing(server_store(order.address, settings)) as store:
                self._copies.copy_to(store, order.start, order.version)
        except (SpeedoError, OSError) as error:
            problem = first_line(error)
        ray.get(self._master.range_brought.remote(order.number, problem), timeout=ANSWER_S)
