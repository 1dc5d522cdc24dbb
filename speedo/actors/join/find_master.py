"""Finds a master: checks that it answers, accepts our token and runs the same versions. Imports no Ray."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from speedo.actors.ray_node.ports import resolved
from speedo.actors.ray_node.session import clean_environment
from speedo.errors import ClusterError

LOOK_S = 0.3
PROBE_S, LEAST_PROBE_S = (
    20.0,
    15.0,
)  # the child imports Ray first, which takes seconds where much else runs


def wait_for_master(
    address: str,
    token: str,
    timeout_s: float,
    note: Callable[[str], None],
    *,
    returning: bool = False,
    since: float | None = None,
) -> None:
    """Return once a master answers at `address` and accepts us; raises `ClusterError` with the reason.

    `returning` says that there was a master before. The `timeout_s` seconds count from `since`, or from now.
    """
    host, _, port = address.rpartition(":")
    deadline = (time.monotonic() if since is None else since) + timeout_s
    said = returning
    resolved(host)
    while True:
        try:
            connection_to(address, min(5.0, timeout_s)).close()
            break
        except OSError:
            if time.monotonic() >= deadline:
                raise ClusterError(_missing(host, port, timeout_s, returning)) from None
            if not said:
                note(f"waiting for a master at {address}, up to {timeout_s:.0f} s")
                said = True
            time.sleep(LOOK_S)
    _check_peer(address, token, timeout_s, deadline, note)


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


def _check_peer(
    address: str, token: str, timeout_s: float, deadline: float, note: Callable[[str], None]
) -> None:
    """Compare versions and token with the master's, in a child, because Ray retries and logs natively."""
    said = False
    while True:
        answer, words = _probe(address, token, deadline)
        if "InvalidAuthToken" in words or "Unauthenticated" in words:
            raise ClusterError(
                f"the master at {address} refused our token: copy the token file from the master's node "
                "(mode 0600), or set SPEEDO_TOKEN or SPEEDO_TOKEN_FILE"
            )
        if answer is not None:
            break
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"the program at {address} is not a SpeeDO master, or it does not answer: "
                "correct --master"
            )
        if not said:
            note(
                f"{address} accepts the connection, but no master answers there yet; "
                f"waiting up to {timeout_s:.0f} s"
            )
            said = True
        time.sleep(0.5)
    ours = answer["ours"]
    for what, remedy in (("Ray", "pip install ray=={}"), ("Python", "use Python {} on this node")):
        theirs = answer["theirs"][what]
        same = ours[what] == theirs if what == "Ray" else _minor(ours[what]) == _minor(theirs)
        if not same:
            raise ClusterError(
                f"{what} differs: the master at {address} has {theirs}, this node {ours[what]}: "
                + remedy.format(theirs)
            )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _probe(address: str, token: str, deadline: float) -> tuple[dict[str, Any] | None, str]:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "speedo.actors.join.version_probe", address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(token),
    )
    try:
        left = deadline - time.monotonic()
        out, words = child.communicate(timeout=min(PROBE_S, max(left, LEAST_PROBE_S)))
    except subprocess.TimeoutExpired:
        child.kill()
        out, words = child.communicate()
    except BaseException:
        child.kill()
        child.communicate()
        raise
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return (json.loads(lines[-1]) if lines else None), words
