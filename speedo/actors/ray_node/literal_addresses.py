"""The one thing that is taken from Ray's private modules: Ray replaces 127.0.0.1 by an address of the machine.

With that, Ray would listen on every interface also for a run of one machine. A Ray that has the function under another
name does so, with the token, and the run says it.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

MODULE: Final = "ray._private.services"
NAME: Final = "resolve_ip_for_localhost"


def take_addresses_literally() -> bool:
    """Keep Ray, in this process, from replacing 127.0.0.1; whether that could be done."""
    try:
        services: Any = importlib.import_module(MODULE)
        getattr(services, NAME)
    except (ImportError, AttributeError):
        return False
    setattr(services, NAME, lambda host: host)
    return True


def note() -> str:
    """What a run on loopback says where it cannot be done."""
    return (
        f"note: this Ray has no {MODULE}.{NAME}, which keeps it on 127.0.0.1: it listens on every address of this "
        "machine, for those who have the token"
    )
