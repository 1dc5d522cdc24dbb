"""Which names a server of ours answers to: a foreign name that was made to point here (DNS rebinding) is none."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether an address, or `localhost`, is reached from this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def names_us(host: str, names: Collection[str] = (), *, any_address: bool = False) -> bool:
    """Whether a `Host` header names this server: an address, or one of its names. The port may be a tunnel's."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "80"
    name = name.strip("[]").lower()
    if not port.isdecimal():
        return False
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost" or name in names
    return any_address or is_loopback(name)
