"""Whether a master is at its TCP port: waited for first, then watched, for Ray takes a minute to notice its end.

Imports no Ray.
"""

from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from speedo.actors.ray_node.ports import resolved
from speedo.errors import ClusterError

LOOK_S: Final = 0.3
BEAT_S: Final = 1.0  # how often a connection is opened again
ANSWER_S: Final = 2.0
REFUSED: Final = 4  # refusals in a row: the machine is there, the master is not
SILENT_S: Final = 10.0  # a machine that vanished, or a broken network, which may mend


def wait_for_master(
    addresses: Sequence[str],
    timeout_s: float,
    note: Callable[[str], None],
    *,
    returning: bool = False,
    since: float | None = None,
) -> str:
    """The first of `addresses` that accepts a connection; raises `ClusterError` with what to do.

    `returning` says that there was a master before. The `timeout_s` seconds count from `since`, or from now.
    """
    deadline = (time.monotonic() if since is None else since) + timeout_s
    said = returning
    for address in addresses:
        resolved(address.rpartition(":")[0])
    # Where there are two, one of their machines is likely to be gone, and no answer of it is to come.
    patience_s = min(5.0 if len(addresses) == 1 else ANSWER_S, timeout_s)
    while True:
        for address in addresses:
            with suppress(OSError):
                connection_to(address, patience_s).close()
                return address
        if time.monotonic() >= deadline:
            raise ClusterError(_missing(addresses, timeout_s, returning))
        if not said:
            note(f"waiting for a master at {addresses[0]}, up to {timeout_s:.0f} s")
            said = True
        time.sleep(LOOK_S)


def connection_to(address: str, timeout_s: float) -> socket.socket:
    """A connection to host:port; raises `OSError` if nothing accepts it.

    On the master's machine the system may take the very port for our end, and TCP connects that to itself.
    """
    host, _, port = address.rpartition(":")
    try:
        made = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "it is not the name of a machine") from None
    if made.getsockname() == made.getpeername():
        made.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return made


def _missing(addresses: Sequence[str], timeout_s: float, returning: bool) -> str:
    host, _, port = addresses[0].rpartition(":")
    if returning:
        places = " or ".join(addresses)
        return (
            f"the master did not come back at {places} within {timeout_s:.0f} s: start it again there with --resume, "
            "and this command too"
        )
    return (
        f"no master answered at {host}:{port} within {timeout_s:.0f} s: start `speedo master --host {host} "
        f"--port {port}` there, or correct --master"
    )


class MasterMonitor:
    """Holds a connection to the master's port, reopened every second; calls `lost` once, from its own thread.

    `lost` is called once the port has refused connections for 3 s: Ray's control service, which listens there, may be
    started again after it died. After 10 s if it does not respond.
    """

    def __init__(self, address: str, lost: Callable[[str], None]) -> None:
        self._address, self._lost = address, lost
        self._closed = False
        self._answers = True  # at the last look
        self._interrupted = -math.inf
        self._telling = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="master-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """From now on `lost` is not called."""
        with self._telling:
            self._closed = True

    def interrupted_within(self, seconds: float) -> bool:
        """Whether the port refused or closed a connection not longer ago: what answers there may be another master."""
        return time.monotonic() - self._interrupted < seconds

    def came_back_within(self, seconds: float) -> bool:
        """As `interrupted_within`, and the port accepts connections again."""
        return self._answers and self.interrupted_within(seconds)

    def _watch(self) -> None:
        held: socket.socket | None = None
        refused, answered = 0, time.monotonic()
        why = ""
        while not self._closed and not why:
            looked = time.monotonic()
            try:
                fresh = connection_to(self._address, ANSWER_S)
            except ConnectionRefusedError:
                refused, self._interrupted, self._answers = refused + 1, looked, False
            except OSError as error:
                refused, silent, self._answers = 0, time.monotonic() - answered, False
                if silent >= SILENT_S:
                    why = f"no answer for {silent:.0f} s: {error.strerror or error}"
            else:
                answered, self._answers = time.monotonic(), True
                if held is not None:
                    held.close()
                held = fresh
            if held is not None and _hangs_up(held, looked + BEAT_S):
                held.close()
                held, refused = None, refused + 1
                self._interrupted, self._answers = looked, False
                time.sleep(LOOK_S)
            elif answered >= looked:
                refused = 0
            elif (rest := looked + BEAT_S - time.monotonic()) > 0:
                time.sleep(rest)
            if refused >= REFUSED:
                why = "it refuses connections"
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
