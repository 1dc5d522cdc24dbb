"""The ports of a cluster, and the address under which this machine is reached.

A cluster of several machines listens on one block of ports only, so that a firewall can be configured for it. On
loopback any free ports are taken.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from speedo.errors import ClusterError
from speedo.system.bounds import said

BLOCK: Final = 100  # ports from the base on that a node may listen at
_SERVICES: Final = range(3)  # offsets of GCS, node manager, object manager
_REDIS: Final = 9
_SERVERS: Final = range(3, 8)  # the same of the servers of the center
_RING: Final = range(10, 18)  # workers, for those of other hosts, while they connect
_PROCESSES: Final = range(_RING.stop, BLOCK)
AGENT: Final = "dashboard-agent-listen-port"  # that which Ray does not choose by itself
# The last ports of the block
_AGENTS: Final = (
    AGENT,
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
_FEWEST: Final = 4  # of these that must be free: for command, master, tester and a worker
GONE_S: Final = 3.0  # the node of a command that was killed takes a moment to end
LINGER_S: Final = 10.0  # a node under load that ends may take some seconds


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of one node's Ray; 0 or None lets Ray take any free one.

    `agents`: of Ray's two agents, where a node has them, by the options of `ray start`.
    """

    gcs: int = 0
    node_manager: int = 0
    object_manager: int = 0
    processes: tuple[int, ...] | None = None
    agents: Mapping[str, int] = field(default_factory=lambda: {AGENT: 0})


def redis_port(host: str, base: int | None) -> int | None:
    """The port of a master's private Redis; None is any free port."""
    return None if base is None or is_loopback(resolved(host)) else base + _REDIS


def server_port(address: str, base: int) -> int | None:
    """Where the Redis of one more server of the center can listen; None is any free port."""
    if is_loopback(address):
        return None
    for offset in _SERVERS:
        if _in_the_way(address, base + offset) is None:
            return base + offset
    raise ClusterError(
        f"the ports {base + _SERVERS[0]} to {base + _SERVERS[-1]} are taken on this machine: stop what listens there, "
        f"or give fewer --servers, for a host has at most {len(_SERVERS)}"
    )


def ring_ports(base: int) -> tuple[int, ...]:
    """Where workers of this block listen for those of other hosts; empty for any free port."""
    return tuple(base + offset for offset in _RING) if base else ()


@contextmanager
def master_ports(address: str, base: int | None) -> Iterator[Ports]:
    """The ports of a master that serves `address`, reserved for it; without `base` any free ones, on loopback.

    The block is where the system takes the ports of outgoing connections from, so any of its ports may be in use for
    a while. Workers have to know that of the GCS; node and object manager take others of the block if theirs are taken.
    Raises `ClusterError` if a port that it needs is taken.
    """
    if base is None or is_loopback(address):
        yield Ports(gcs=base or 0)
        return
    if base + BLOCK > 65536:
        raise ClusterError(
            f"port {base} leaves no room for the {BLOCK} ports of a master: use at most {65536 - BLOCK}"
        )
    with ExitStack() as stack:
        if not _claim(base, stack):
            raise ClusterError(
                f"the ports {base} to {base + BLOCK - 1} belong to another SpeeDO command of this machine: "
                "give another --port, or stop it"
            )
        taken = _once_free(address, base)
        if base in taken:
            require_free_port(address, base)
        yield _block(address, base, taken)


@contextmanager
def member_ports(address: str, base: int) -> Iterator[Ports]:
    """The ports of a node with workers: the block at `base`, or the next hundred that is free."""
    if is_loopback(address):
        yield Ports()
        return
    with ExitStack() as stack:
        for first in range(base, 65537 - BLOCK, BLOCK):
            if _claim(first, stack) and not _once_free(address, first):
                yield _block(address, first)
                return
        raise ClusterError(
            f"no block of {BLOCK} ports from {base} on is free on this machine: stop what listens there, "
            "or give the master a lower --port"
        )


def require_free_port(host: str, port: int) -> None:
    """Raises `ClusterError` if something listens there or the address is not this machine's."""
    deadline = time.monotonic() + GONE_S
    while (error := _in_the_way(host, port)) is not None:
        if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if error is None:
        return
    why = (error.strerror or str(error)).lower()
    remedy = "give another --port, or stop the other master"
    if error.errno != errno.EADDRINUSE:
        remedy = "give a --host that is an address of this machine"
    raise ClusterError(f"{host}:{port} cannot be served ({why}): {remedy}") from None


def resolved(host: str) -> str:
    """An IPv4 address of this name; raises `ClusterError` if there is none.

    With an IPv6 address Ray starts, and its processes then do not find each other.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        mine = [str(place[0]) for family, *_, place in found if family == socket.AF_INET]
        if mine:
            return mine[0]
        raise ClusterError(
            f"{said(host)} has only the IPv6 address {found[0][4][0]}, and the machines of a cluster reach each other "
            "by IPv4: give an IPv4 address of the master's machine, as --host there and as --master elsewhere"
        )
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name at all
        why = getattr(error, "strerror", None) or "it is not the name of a machine"
        raise ClusterError(f"the name {said(host)} is not known ({why}): give an address") from None


def is_loopback(address: str) -> bool:
    """Whether an IP address is reached from this machine alone."""
    return ip_address(address).is_loopback


def own_address_towards(address: str) -> str:
    """The address of this machine by which `address` can reach it."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # chooses a route; nothing is sent
        except OSError as error:
            raise ClusterError(
                f"this machine cannot reach {address} ({error.strerror}): correct --master or the network"
            ) from None
        return str(probe.getsockname()[0])


def is_this_machine(address: str) -> bool:
    """Whether an address is one of this machine's (in this network namespace)."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _block(address: str, base: int, taken: Collection[int] = ()) -> Ports:
    """The ports of a block without those that are in use now; services whose ports are `taken` have others."""
    ports = (base + offset for offset in _PROCESSES)
    free = [port for port in ports if _in_the_way(address, port) is None]
    services = [base + offset for offset in _SERVICES]
    others = [free.pop(0) for port in services if port in taken and free]
    gcs, node_manager, object_manager = (
        others.pop(0) if port in taken and others else port for port in services
    )
    agents = {name: free.pop() for name in _AGENTS if free}
    if len(free) < _FEWEST:
        raise ClusterError(
            f"of the ports {base + _PROCESSES[0]} to {base + BLOCK - 1} too few are free on this machine: "
            "stop what listens there, or use another --port"
        )
    return Ports(gcs, node_manager, object_manager, tuple(free), agents)


def _once_free(address: str, base: int) -> list[int]:
    """The services' ports that are still taken after a short wait; a killed node may need a moment to end."""
    deadline = time.monotonic() + LINGER_S
    while True:
        ports = (base + offset for offset in _SERVICES)
        taken = [port for port in ports if _in_the_way(address, port) is not None]
        if not taken or time.monotonic() >= deadline:
            return taken
        time.sleep(0.2)


def _claim(base: int, stack: ExitStack) -> bool:
    """Reserve the block at `base` while `stack` is open, unless another command has reserved it.

    By a name, and not by a port, which any connection may have for its end, for a minute after its last byte. As a
    port, the name is that of this machine's network alone.
    """
    holder = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        holder.bind(f"\0speedo-ports-{base}")
    except OSError:
        return False
    return True


def free_port(address: str) -> int:
    """A port of this address that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _in_the_way(host: str, port: int) -> OSError | None:
    """What prevents listening there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except UnicodeError:
            return OSError(errno.EINVAL, "it is not the name of a machine")
        except OSError as error:
            return error
    return None
