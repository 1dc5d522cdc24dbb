"""The Ray node of a host that joins a master, and what Ray's words mean if it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from speedo.actors.ray_node import ports
from speedo.actors.ray_node.node import REFUSED, START_S, Node, starting_node
from speedo.actors.ray_node.session import clean_environment
from speedo.errors import ClusterError

# In Ray's words: what the head has, and then what this host has.
_VERSIONS: Final = re.compile(r"was started with:\s+Ray: (\S+)\s+Python: (\S+)")
_NOBODY: Final = ("Failed to connect to GCS", "DEADLINE_EXCEEDED", "UNAVAILABLE")


class NotAMasterError(ClusterError):
    """Something accepts connections where the master should be, and is none, or not yet."""


@contextmanager
def host_node(
    address: str,
    token: str,
    folder: Path,
    resources: Mapping[str, float],
    environment: Mapping[str, str],
    words: Path | None = None,
    limit_s: float = START_S,
) -> Iterator[tuple[Node, int]]:
    """Join the cluster at `address` (host:port) with a node that offers `resources`, until the context ends.

    Its files are in `folder`, and `words` is a file for what Ray says. It may take `limit_s` seconds. Yields also the
    first of the ports that are held for this host; 0 if any may be taken.
    Raises `ClusterError`.
    """
    host, _, port = address.rpartition(":")
    master = ports.resolved(host)
    here = ports.is_this_machine(master)
    ours = master if here else ports.own_address_towards(master)
    with ExitStack() as stack:
        held = stack.enter_context(ports.member_ports(ours, int(port)))
        try:
            started = stack.enter_context(
                starting_node(
                    ours,
                    held,
                    str(folder),
                    {**clean_environment(token), **environment},
                    master=f"{master}:{port}",
                    resources=json.dumps(dict(resources)),
                    words=words,
                    limit_s=limit_s,
                )
            )
            node = started()
        except ClusterError as error:
            raise _error(address, str(error)) from None
        yield node, held.gcs


def _error(address: str, words: str) -> ClusterError:
    if any(word in words for word in REFUSED):
        return ClusterError(
            f"the master at {address} refused our token: copy the token file from the master's node "
            "(mode 0600), or set SPEEDO_TOKEN or SPEEDO_TOKEN_FILE"
        )
    if len(found := _VERSIONS.findall(words)) == 2:
        theirs, ours = found
        name, at = ("Ray", 0) if theirs[0] != ours[0] else ("Python", 1)
        remedy = (
            f"pip install ray=={theirs[0]}"
            if name == "Ray"
            else f"use Python {theirs[1]} on this node"
        )
        return ClusterError(
            f"{name} differs: the master at {address} has {theirs[at]}, this node {ours[at]}: {remedy}"
        )
    if any(word in words for word in _NOBODY):
        return NotAMasterError(
            f"the program at {address} is not a SpeeDO master, or it does not answer: correct --master"
        )
    return ClusterError(
        f"the master at {address} answers, but this machine's Ray did not join it: open the ports from the master's "
        f"--port on, on both machines ({words})"
    )
