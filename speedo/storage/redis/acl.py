"""Who may do what in Redis: the rules of each role, as `ACL SETUSER` and an ACL file take them.

A worker reads centers and writes under its own prefixes; a reader reads centers; nobody but the
master lists keys or makes users. Rules of a key apart for reading (`%R~`) need Redis 7.0.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/
"""

from __future__ import annotations

import hashlib
from typing import Final

from speedo.storage import keys

MASTER: Final = "master"
_CALL: Final = ("+ping", "+select")
_READ: Final = ("+get", "+getrange")
_WRITE: Final = ("+set", "+unlink", "+persist", "+pexpire", "+multi", "+exec")
_OVERSEE: Final = (
    "+del",
    "+scan",
    "+info",
    "+acl|setuser",
    "+acl|deluser",
    "+acl|users",
    "+acl|save",
)
_KEEP_DOOR: Final = ("+client|list", "+client|kill")  # speedo.storage.redis.strangers


def secret(password: str) -> str:
    """The rule that admits with this password and does not contain it."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"


def worker_rules(keyspace: str, worker: int) -> tuple[str, ...]:
    """Read centers; read, write and delete payloads and states of its own."""
    return (
        "-@all",
        *_CALL,
        *_READ,
        *_WRITE,
        f"%R~{keys.pattern(keys.centers(keyspace))}",
        f"~{keys.pattern(keys.payloads(keyspace, worker))}",
        f"~{keys.pattern(keys.states(keyspace, worker))}",
    )


def reader_rules(keyspace: str) -> tuple[str, ...]:
    """Read centers."""
    return "-@all", *_CALL, *_READ, f"%R~{keys.pattern(keys.centers(keyspace))}"


def acl_file(password: str) -> str:
    """The users of a server of our own when it first starts: the master, and nobody by default."""
    rules = " ".join(("-@all", *_CALL, *_READ, *_WRITE, *_OVERSEE, *_KEEP_DOOR))
    return (
        "user default off resetpass resetkeys -@all\n"
        f"user {MASTER} on {secret(password)} ~* {rules}\n"
    )
