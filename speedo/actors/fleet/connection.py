"""Makes this process a driver of a Ray cluster that exists already, with the user's own settings of Ray."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from speedo.actors.ray_node.driver import driver
from speedo.actors.ray_node.lean_import import import_ray
from speedo.actors.ray_node.probe import why_not
from speedo.errors import ClusterError

AUTO: Final = "auto"
ADDRESS: Final = "RAY_ADDRESS"
TOKEN: Final = "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"


def address_of(given: str) -> str:
    """The address for Ray of what `--ray` was given. Raises `ClusterError`."""
    if given != AUTO:
        return given
    named = os.environ.get(ADDRESS, "")
    if "://" in named:
        raise ClusterError(
            f"{ADDRESS} is {named!r}, which only Ray's clients understand: run this command on a machine of the "
            "cluster with --ray auto and without it, or by `ray job submit`"
        )
    return named or AUTO


@contextmanager
def connected(given: str, note: Callable[[str], None]) -> Iterator[str]:
    """Yields the address by which the cluster knows this machine. Raises `ClusterError`."""
    address = address_of(given)
    ray = import_ray()
    if ray.is_initialized():
        raise ClusterError("Ray already runs in this process: call ray.shutdown() before a run")
    if problem := why_not(address):
        raise ClusterError(_refusal(given, problem))
    with ExitStack() as stack:
        try:
            stack.enter_context(driver(address, f"speedo-{secrets.token_hex(6)}"))
        except Exception as error:  # of many kinds, among them gRPC's
            raise ClusterError(_refusal(given, " ".join(str(error).split()))) from None
        nodes = len([node for node in ray.nodes() if node["Alive"]])
        note(
            f"on the Ray cluster of {nodes} node{'s' if nodes > 1 else ''} at "
            f"{ray.get_runtime_context().gcs_address}, Ray {ray.__version__}"
        )
        yield ray.util.get_node_ip_address()


def _refusal(given: str, words: str) -> str:
    """What Ray said, as a sentence with the remedy."""
    lower = words.lower()
    if given == AUTO and "could not find any running ray instance" in lower:
        return (
            f"no Ray cluster was found on this machine: give --ray HOST:PORT or {ADDRESS}, or start a node here "
            "with `ray start`"
        )
    if "version mismatch" in lower:
        return f"the Ray cluster at {given} has another version: {words}"
    if "authtoken" in lower or "unauthenticated" in lower or "authentication" in lower:
        return f"the Ray cluster at {given} refuses this command's token: set {TOKEN}"
    if "failed to connect to gcs" in lower:
        return f"no Ray cluster answers at {given}: correct --ray, or start its head"
    return (
        f"the Ray cluster at {given} cannot be joined: {words}; this machine must be a node of it, or the command a "
        "job (`ray job submit`)"
    )
