"""The store on a Redis server, shared by all processes of a run.

redis-py opens the connection (TCP, TLS or unix socket). Then `RespStream` takes over the socket and moves bodies to
and from the caller's memory without a copy. `RedisBlobs` defines the format of a blob in the server.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import redis
import redis.connection

from speedo.errors import StoreError, StoreUnavailableError
from speedo.storage.base import Arrived, View
from speedo.storage.conditional import Decide, Guard
from speedo.storage.keys import check_blob
from speedo.storage.redis.blobs import PAGE_KEYS, RedisBlobs
from speedo.storage.redis.certificate import trusting
from speedo.storage.redis.errors import server_problems, server_warnings, store_error
from speedo.storage.redis.resp import ProtocolError, Reply, ReplyError, RespStream
from speedo.storage.redis.url import PASSWORD_VARIABLE

CHUNK_BYTES: Final = 2 << 20
RECORD_BYTES: Final = 4 << 20  # shorter bodies go as one, which saves a round trip
MAX_CHUNK_BYTES: Final = 256 << 20
"""Half of what Redis accepts as one value (proto-max-bulk-len, 512 MB)."""
SLOWEST_BYTES_PER_S: Final = 4e6
"""A call may take its timeout and its bytes' time at this rate, a third of a 100 Mbit/s link."""
_ORPHAN_S: Final = 60.0
_TRIES: Final = 10
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class RedisStore:
    """Blobs in a Redis server, version 6.0 or later; users of `access`, one per worker, need 7.0.

    `timeout_s` bounds connecting, every wait for the server and, besides the transfer time of the bytes, the whole
    call. A connection on which a call failed is closed, and the next call opens a new one, once. The password may be
    in `SPEEDO_REDIS_PASSWORD` instead of the URL; it appears in no message. With `ca_pem` a `rediss://` server must
    show a certificate for its host that this CA signed; no other CA is trusted.

    Every call may be repeated: each write uses new chunks, and its record replaces the former one, whose chunks are
    then deleted. With a `guard` each write depends on the run's epoch; it raises `FencedError`.
    """

    is_one_memory: Final = False

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        chunk_bytes: int | None = None,
        ca_pem: str = "",
        guard: Guard | None = None,
    ) -> None:
        if not 0 < timeout_s < math.inf:
            raise StoreError(f"the store's timeout is {timeout_s} s: use a number above 0")
        if chunk_bytes is not None and not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
            raise StoreError(f"chunks of {chunk_bytes} bytes: use 1 to {MAX_CHUNK_BYTES}")
        self._timeout_s = timeout_s
        self._chunk_bytes, self._guard = chunk_bytes, guard
        self._options = _parse(url)
        if ca_pem and url.startswith("rediss:"):
            self._options |= {"connection_class": _PinnedConnection, "ca_pem": ca_pem}
        self._password = self._options.pop("password", None) or os.environ.get(PASSWORD_VARIABLE)
        self._user: str | None = self._options.pop("username", None)
        self._database = int(self._options.pop("db", 0))
        self._connection: Any = None
        self._stream: RespStream | None = None
        try:
            self._new_connection()
        except (TypeError, ValueError, redis.RedisError):
            raise _not_a_url("an option after '?' is not known") from None

    def __repr__(self) -> str:
        return f"RedisStore({self.address})"

    @property
    def address(self) -> str:
        """host:port/database, or path/database of a unix socket."""
        place = self._options.get("path")
        if place is None:
            host = self._options.get("host", "localhost")
            place = f"[{host}]" if ":" in host else host
            place += f":{self._options.get('port', 6379)}"
        return f"{place}/{self._database}"

    def place(self, key: str, nbytes: int) -> memoryview | None:
        """See `Store.place`: none."""
        return None

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        """See `Store.write`; one round trip for a body of one chunk, else two."""
        check_blob(key, head)
        orphan_s = self._limit_s(len(body)) + _ORPHAN_S
        with self._talk(f"writing {key}", len(body)) as stream:
            RedisBlobs(stream, self.address).write(
                key,
                head,
                body,
                chunk_bytes=self._chunk_bytes
                or (RECORD_BYTES if len(body) <= RECORD_BYTES else CHUNK_BYTES),
                expire_ms=None if expire_s is None else max(1, math.ceil(1000 * expire_s)),
                orphan_ms=math.ceil(1000 * orphan_s),
                guard=self._guard,
            )

    def read_head(self, key: str) -> tuple[bytes, int]:
        with self._talk(f"reading the head of {key}") as stream:
            return RedisBlobs(stream, self.address).read_head(key)

    def view(self, key: str, nbytes: int) -> View | None:
        """See `Store.view`: a blob must be read."""
        return None

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        """See `Store.read`; one round trip for a body of one chunk, else two."""
        with self._talk(f"reading {key}", len(into)) as stream:
            return RedisBlobs(stream, self.address).read(key, into, arrived)

    def delete(self, *keys: str) -> None:
        """See `Store.delete`; the deadline is per thousand keys."""
        for first in range(0, len(keys), PAGE_KEYS):
            with self._talk(f"deleting {len(keys)} keys") as stream:
                page = [key.encode() for key in keys[first : first + PAGE_KEYS]]
                RedisBlobs(stream, self.address).delete(page)

    def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`; the deadline is per thousand keys of the server."""
        found: set[str] = set()
        cursor = b"0"
        while True:
            with self._talk("listing keys") as stream:
                cursor, names = RedisBlobs(stream, self.address).page_of_keys(cursor, prefix)
            found.update(names)
            if cursor == b"0":
                return sorted(found)

    def change(self, names: tuple[str, ...], decide: Decide) -> None:
        """See `Conditional.change`; two round trips if nobody else changes them."""
        for _ in range(_TRIES):
            with self._talk(f"changing {names[0]}") as stream:
                if RedisBlobs(stream, self.address).change(names, decide):
                    return
        raise StoreUnavailableError(f"others change {names[0]} in {self.address} all the time")

    def ping(self) -> None:
        with self._talk("ping") as stream:
            stream.ask(b"PING")

    def own_address(self) -> str:
        """The address of this machine on the way to the server; loopback's, by a unix socket."""
        self.ping()
        place = self._connection._sock.getsockname()
        return "127.0.0.1" if isinstance(place, str | bytes) else str(place[0])

    def close(self) -> None:
        self._drop()

    def administer(self, *arguments: str) -> Reply:
        """Run a command of Redis that is not about blobs, and return its reply. Raises `StoreError`."""
        with self._talk(" ".join(arguments[:2])) as stream:
            return stream.ask(*(argument.encode() for argument in arguments))

    def check_server(self, *, clients: int = 0) -> list[str]:
        """Settings of the server that cost speed or safety, or allow too few connections, a sentence each.

        Raises `StoreError` for those with which a run would lose weights.
        """
        try:
            with self._talk("telling its settings") as stream:
                reply = stream.ask(b"INFO")
        except StoreError as error:
            if "NOPERM" not in str(error):
                raise
            return [f"{self.address} does not show this user its settings: they are not checked"]
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        problems = server_problems(facts, self.address)
        if problems:
            raise StoreError("\n".join(problems))
        local = "path" in self._options or self._options.get("host", "localhost") in _LOOPBACK
        guarded = local or self._password is not None
        return server_warnings(facts, self.address, guarded=guarded, clients=clients)

    def _limit_s(self, volume: int) -> float:
        return self._timeout_s + volume / SLOWEST_BYTES_PER_S

    @contextmanager
    def _talk(self, what: str, volume: int = 0) -> Iterator[RespStream]:
        """Run an exchange of `volume` bytes within its deadline; every failure becomes a `StoreError`."""
        try:
            yield self._connected(self._limit_s(volume))
        except ReplyError as error:  # the connection itself is in order
            raise store_error(error, self.address, what, self._timeout_s) from None
        except (OSError, redis.RedisError, ProtocolError) as error:
            self._drop()
            raise store_error(error, self.address, what, self._timeout_s) from error
        finally:
            if self._stream is None or self._stream.pending:
                self._drop()

    def _connected(self, limit_s: float) -> RespStream:
        if self._stream is not None and not self._stream.is_quiet():
            self._drop()  # the server closed it, or something came that nobody asked for
        if self._stream is None:
            self._connection = self._new_connection()
            try:
                self._connection.connect()
            except (OSError, redis.RedisError):
                raise
            except Exception as error:  # redis-py has classes of errors beside its own base
                raise redis.ConnectionError(str(error)) from error
            sock = self._connection._sock
            if not isinstance(sock, socket.socket):
                raise StoreError(f"redis-py {redis.__version__} is not known: use redis>=5.2,<9")
            stream = RespStream(sock, stall_s=self._timeout_s)
            stream.start(limit_s)
            try:
                self._log_in(stream)
            except ConnectionError:
                refused = stream.parting_refusal()
                if refused is not None:  # the cause, as of a server that has no room for us
                    raise refused from None
                raise
            self._stream = stream
        self._stream.start(limit_s)
        return self._stream

    def _log_in(self, stream: RespStream) -> None:
        if self._password is not None:
            user = () if self._user is None else (self._user.encode(),)
            stream.ask(b"AUTH", *user, self._password.encode())
        if self._database:
            stream.ask(b"SELECT", self._database)

    def _new_connection(self) -> Any:
        options = dict(self._options)
        opener: Callable[..., Any] = options.pop("connection_class", redis.connection.Connection)
        return opener(
            **options,
            protocol=2,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            redis_connect_func=lambda _: None,  # AUTH and SELECT are spoken by our own stream
        )

    def _drop(self) -> None:
        connection, self._connection, self._stream = self._connection, None, None
        if connection is not None:
            with suppress(OSError, redis.RedisError):
                connection.disconnect()


class _PinnedConnection(redis.connection.SSLConnection):
    """TLS to a server whose certificate must come from this one CA, for the host that we connect to.

    A redis-py without the method that this replaces would use the system's CAs, and refuse the server.
    """

    def __init__(self, *, ca_pem: str, **options: Any) -> None:
        super().__init__(**options)
        self._ca_pem = ca_pem

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return trusting(self._ca_pem).wrap_socket(sock, server_hostname=self.host)


def _parse(url: str) -> dict[str, Any]:
    """redis-py's options for this URL; raises `StoreError`, which does not quote the URL."""
    parse: Callable[[str], dict[str, Any]] = redis.connection.parse_url
    try:
        options = parse(url)
        path = urlsplit(url).path.strip("/")
    except ValueError:
        raise _not_a_url("its scheme, its port or an option is wrong") from None
    if url.startswith("unix:"):
        if "path" not in options:
            raise _not_a_url("the path of the socket is missing")
    elif path and not path.isdigit():
        raise _not_a_url("the database must be a number")
    return options


def _not_a_url(problem: str) -> StoreError:
    return StoreError(
        f"not the URL of a Redis: {problem}; use redis://[:PASSWORD@]HOST:PORT[/DB], rediss://... "
        "for TLS, or unix:///PATH[?db=DB]; special characters in a password are written as %XX"
    )
