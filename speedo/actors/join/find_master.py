"""Waits until something listens where the master should be. Imports no Ray."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from speedo.actors.ray_node.ports import resolved
from speedo.errors import ClusterError

LOOK_S = 0.3


def wait_for_master(
    address: str,
    timeout_s: float,
    note: Callable[[str], None],
    *,
    returning: bool = False,
    since: float | None = None,
) -> None:
    """Return once `address` accepts a connection; raises `ClusterError` with what to do.

    `returning` says that there was a master before. The `timeout_s` seconds count from `since`, or from now.
    """
    host, _, port = address.rpartition(":")
    deadline = (time.monotonic() if since is None else since) + timeout_s
    said = returning
    resolved(host)
    while True:
        try:
            connection_to(address, min(5.0, timeout_s)).close()
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise ClusterError(_missing(host, port, timeout_s, returning)) from None
            if not said:
                note(f"waiting for a master at {address}, up to {timeout_s:.0f} s")
                said = True
            time.sleep(LOOK_S)


def connection_to(address: str, timeout_s: float) -> socket.socket:
    """A connection to host:port; raises `OSError` if nothing accepts it."""
    host, _, port = address.rpartition(":")
    try:
        return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "it is not the name of a machine") from None


def _missing(host: str, port: str, timeout_s: float, returning: bool) -> str:
    if returning:
        return (
            f"the master did not come back at {host}:{port} within {timeout_s:.0f} s: start it again there "
            "with --resume, and this command too"
        )
    return (
        f"no master answered at {host}:{port} within {timeout_s:.0f} s: start `speedo master --host {host} "
        f"--port {port}` there, or correct --master"
    )
