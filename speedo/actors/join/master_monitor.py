"""Monitors the master's TCP port, because Ray takes a minute to notice that a master is gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from speedo.actors.join.find_master import connection_to

LOOK_S: Final = 1.0
ANSWER_S: Final = 2.0
REFUSED: Final = 3  # refusals in a row: the machine is there, the master is not
SILENT_S: Final = 10.0  # a machine that vanished, or a broken network, which may mend


class MasterMonitor:
    """Holds a connection to the master's port, reopened every second; calls `lost` once, from its own thread.

    `lost` is called at once if the master's end closes the connection, because then its process has ended; after 3 s if
    the port refuses connections; after 10 s if it does not respond.
    """

    def __init__(self, address: str, lost: Callable[[str], None]) -> None:
        self._address, self._lost = address, lost
        self._closed = False
        self._telling = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="master-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """From now on `lost` is not called."""
        with self._telling:
            self._closed = True

    def _watch(self) -> None:
        held: socket.socket | None = None
        refused, answered = 0, time.monotonic()
        why = ""
        while not self._closed and not why:
            looked = time.monotonic()
            try:
                fresh = connection_to(self._address, ANSWER_S)
            except ConnectionRefusedError:
                refused += 1
                if refused >= REFUSED:
                    why = "it refuses connections"
            except OSError as error:
                refused, silent = 0, time.monotonic() - answered
                if silent >= SILENT_S:
                    why = f"no answer for {silent:.0f} s: {error.strerror or error}"
            else:
                refused, answered = 0, time.monotonic()
                if held is not None:
                    held.close()
                held = fresh
            if held is not None and _hangs_up(held, looked + LOOK_S):
                why = "it closed the connection"
            elif (rest := looked + LOOK_S - time.monotonic()) > 0:
                time.sleep(rest)
        if held is not None:
            held.close()
        with self._telling:
            if not self._closed:
                self._lost(why)


def _hangs_up(connection: socket.socket, deadline: float) -> bool:
    """Whether the other end closes before the deadline, which may have passed; what it says is dropped."""
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            if not connection.recv(4096):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
