"""Makes one of our errors of each error of Redis's, and says in it what is wrong and what to change.

What that means for a call is decided in `speedo.storage.meaning`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Final

from redis import exceptions

from speedo.errors import (
    StoreAccessError,
    StoreCrowdedError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from speedo.storage.redis.resp import ProtocolError, ReplyError

# What it fetches by, what it publishes by where turns overlap, and its history's.
PER_WORKER: Final = 3
# The master's three, the tester's, those that watch users, strangers and the server.
OTHERS: Final = 8
_REMEDIES: Final = {
    "OOM": "it is out of memory: raise its maxmemory (keep maxmemory-policy noeviction), "
    "or let payloads expire sooner",
    "MISCONF": "it cannot save to its disk and therefore takes no writes: free the disk, "
    "or switch saving off (save '', appendonly no)",
    "READONLY": "it is a read-only replica: give the --redis URL of the primary",
    "LOADING": "it is still loading its data from disk: wait, or start it empty",
    "NOAUTH": "it requires a password: put it into SPEEDO_REDIS_PASSWORD or the --redis URL",
    "WRONGPASS": "it does not accept this user and password: "
    "correct SPEEDO_REDIS_PASSWORD or the --redis URL",
    "NOPERM": "its access rules refuse this user: allow the commands and keys that SpeeDO uses",
    "DENIED": "it runs in protected mode: set a password, or bind it to loopback only",
    "BUSY": "it is busy with a script: end that script",
    "WRONGTYPE": "another program uses this key: use another run name or database",
    "MASTERDOWN": "it is a replica without its primary: give the --redis URL of the primary",
    "MOVED": "it is part of a cluster: give the --redis URL of a server of its own",
}
_CROWDED: Final = "max number of clients"
_NO_ROOM: Final = (
    "it has as many connections as it takes (maxclients): end other programs' connections, raise its maxclients, "
    "or raise the limit of open files (ulimit -n) that it was started under"
)
_STRANGER: Final = ("NOAUTH", "WRONGPASS")
# What the user has to change. All other refusals may pass, also those that are not known here.
_FINAL: Final = ("ERR", "NOPERM", "DENIED", "WRONGTYPE", "NOPROTO", "MOVED", "ASK", "CROSSSLOT")
# How TLS tells that the other side has closed, without a word and with one: no fault of a certificate.
ENDED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_NO_LOGIN: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)
_NO_SERVER_OF_ITS_OWN: Final = (
    exceptions.AskError,
    exceptions.ClusterCrossSlotError,
    exceptions.InvalidResponse,
)


def store_error(error: Exception, address: str, what: str, timeout_s: float) -> StoreError:
    """Our error for one of redis-py's, of a socket or of the protocol, in the exchange that is named `what`."""
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return StoreTimeoutError(
            f"{address} did not answer in time ({what}, timeout {timeout_s:g} s): "
            "it is stopped, overloaded or cut off; check it, or raise the store's timeout"
        )
    if isinstance(error, ReplyError):
        return _refusal_kind(error)(_refusal(error, address, what))
    return _connection_kind(error)(_connection_error(error, address, what))


def _refusal_kind(error: ReplyError) -> type[StoreError]:
    """The kind of a refused command: an unknown user, final, or a passing problem."""
    if _CROWDED in str(error):
        return StoreCrowdedError
    code = _code(error) or error.code
    if code in _STRANGER:
        return StoreAccessError
    return StoreError if code in _FINAL else StoreUnavailableError


def _connection_kind(error: BaseException) -> type[StoreError]:
    """Whether a connection that failed or broke may come back by itself."""
    if isinstance(error, exceptions.MaxConnectionsError):
        return StoreCrowdedError
    for cause in _causes(error):
        if isinstance(cause, _NO_LOGIN):
            return StoreAccessError
        if isinstance(cause, (ProtocolError, PermissionError, *_NO_SERVER_OF_ITS_OWN)):
            return StoreError
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ENDED):
            return StoreError
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return StoreError
    return StoreUnavailableError


def _refusal(error: ReplyError, address: str, what: str) -> str:
    """What to do about a command that the server refused."""
    said = str(error)
    if "without any password" in said:
        return (
            f"{address} has no password, but one was given: "
            "remove it from the --redis URL and from SPEEDO_REDIS_PASSWORD"
        )
    if "DB index" in said:
        return f"{address} has no such database: use a smaller number in the --redis URL"
    if _CROWDED in said:
        return f"{address} accepts no more clients: {_NO_ROOM}"
    code = _code(error)
    remedy = _REMEDIES[code] if code else "see the server's log"
    return f"{address} refused {what}: {remedy} ({said[:200]})"


def _connection_error(error: BaseException, address: str, what: str) -> str:
    """What to do about a connection that failed or broke."""
    causes = _causes(error)
    if any(isinstance(c, (ConnectionRefusedError, FileNotFoundError)) for c in causes):
        return f"no Redis answers at {address}: start it or give another --redis URL"
    if any(isinstance(c, socket.gaierror) for c in causes):
        return f"the host of {address} is not known: correct the --redis URL"
    opening = not isinstance(error, OSError)  # redis-py's own kind: nothing had been said yet
    if any(
        isinstance(c, ENDED) or (opening and isinstance(c, ConnectionResetError)) for c in causes
    ):
        return (
            f"{address} closed the connection at once: it accepts no more clients (maxclients), "
            "has just ended, or is not a Redis with TLS"
        )
    if any(isinstance(c, ssl.SSLError) for c in causes):
        return (
            f"{address} offers no TLS that can be verified: see its certificate, "
            f"or name its authority with ?ssl_ca_certs=FILE ({error})"
        )
    return f"the connection to {address} broke ({what}: {error}): see whether the server still runs"


def server_problems(facts: Mapping[str, str], address: str) -> list[str]:
    """Settings (from INFO) with which a run would lose weights."""
    problems = []
    version = facts.get("redis_version", "0")
    if int(version.split(".")[0]) < 6:
        problems.append(
            f"{address} is Redis {version}: use 6.0 or later, or 7.0 for a user per worker"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
        problems.append(
            f"{address} drops weights when its memory is full (maxmemory-policy {policy}): "
            "set maxmemory-policy noeviction"
        )
    if facts.get("role", "master") != "master":
        problems.append(f"{address} is a replica: give the --redis URL of the primary")
    return problems


def clients_of(workers: int) -> int:
    """The largest number of connections that a run with this many workers has at once."""
    return PER_WORKER * workers + OTHERS


def server_warnings(
    facts: Mapping[str, str], address: str, *, guarded: bool, clients: int = 0
) -> list[str]:
    """Settings (from INFO) that cost speed or safety, or allow too few connections."""
    warnings = []
    if facts.get("aof_enabled", "0") != "0":
        warnings.append(
            f"{address} writes every delta to its disk (appendonly yes): set appendonly no"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") == "0" and policy != "noeviction":
        warnings.append(
            f"{address} would drop weights once a maxmemory is set (maxmemory-policy {policy}): "
            "set maxmemory-policy noeviction"
        )
    most, there = (int(facts.get(name, "0")) for name in ("maxclients", "connected_clients"))
    if most and most - there < clients:
        warnings.append(
            f"{address} takes {most} clients at once, of which {there} are there, and this run may want {clients}: "
            f"set maxclients {there + clients} or more, and start it with as many open files (ulimit -n)"
        )
    if not guarded:
        warnings.append(f"{address} can be reached without a password: set one (requirepass)")
    return warnings


def _code(error: ReplyError) -> str | None:
    """The code of a refusal; an aborted transaction names its cause only in its text."""
    said = str(error)
    return next((c for c in _REMEDIES if error.code == c or f" {c} " in said), None)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and its causes, which redis-py wraps."""
    return [e for e in (error, error.__cause__, error.__context__) if e is not None]
