"""How the leaders of hosts connect to a ring: each to the one after it, with proofs that both are who they say.

Each leader listens, and writes where into the run's store, with a random key. The store is authenticated, so a process
that knows the keys of both ends is a member. Both prove that by HMAC over nonces of both, before anything else is read;
with TLS inside it, whose certificate stands beside the key. Nobody listens any more once the leader before has
connected. From keys and nonces follows the key of the checksums of all that goes over this connection later.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

import xxhash

from speedo.errors import ConfigError, MissingKeyError, PayloadError, StoreError, TeamBrokenError
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.storage.redis.certificate import CERTIFICATE, KEY, make_certificate, trusting
from speedo.system.json_lines import line_of, values_of

ANY_PORT: Final = (0,)
BACKLOG: Final = 128
MOST_STRANGERS: Final = 32  # whose proofs are awaited at once; the first of more is dropped
PROOF_S: Final = 5.0  # for a connection, and for the proof of both ends
TRY_S: Final = 20.0  # to connect to one that listens
AGAIN_S: Final = 0.1
LOOK_S: Final = 0.005  # into the store, and who has connected
ASK_S: Final = 0.5  # whether a member is gone
NONCE: Final = 32  # bytes; a proof has as many
KEPT: Final = 2.0  # times the patience; nobody waits longer for what stands in the store
CONNECTS: Final = b"speedo ring 2, connects"
ACCEPTS: Final = b"speedo ring 2, accepts"
CHECKS: Final = b"speedo ring 2, checks"
BROKEN: Final = b"broken "  # this leader takes part no more: its members are gone, or it has left
DIFFERS: Final = b"differs "  # the same, because its members call different things
MOST_WORDS: Final = 2000


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the leaders of hosts find each other: under keys of the run's store that `among` names.

    `address` is that of this host, measured, and `ports` are those at which it may listen.
    """

    store: Store
    run: str
    among: str
    address: str
    ports: Sequence[int] = ANY_PORT
    tls: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a leader that listens."""

    address: str
    port: int
    key: bytes
    certificate: str

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


@dataclass(slots=True)
class LinkEnd:
    """One end of a connection; `key` is that of its checksums, for both ends. Bytes go over it one way only."""

    socket: socket.socket
    key: int
    _messages: int = 0

    def checksum(self, *parts: memoryview | bytes) -> int:
        """64-bit xxh3 of the next message, seeded with the key and its number.

        So the other end finds one that is damaged, lost, repeated, or from a process that does not know the key.
        """
        found = xxhash.xxh3_64(seed=(self.key + self._messages) % (1 << 64))
        self._messages += 1
        for part in parts:
            found.update(part)
        return found.intdigest()


class HostLinks:
    """The ends of leader `own`: what comes from the leader before it, what goes to the one after it.

    For one thread. `gone` says which member is gone, as a sentence; empty while all are there.
    """

    def __init__(
        self,
        at: Rendezvous,
        leaders: Sequence[int],
        own: int,
        patience_s: float,
        gone: Callable[[], str],
    ) -> None:
        self._at, self._leaders, self.own = at, leaders, own
        self._patience_s, self._gone = patience_s, gone
        self.prior, self.next = (own - 1) % len(leaders), (own + 1) % len(leaders)
        self._found: dict[int, _Place] = {}
        self._ends: dict[int, LinkEnd] = {}  # whence, whither
        self._came: SimpleQueue[tuple[int, LinkEnd | str]] = SimpleQueue()
        self._awaited: deque[socket.socket] = deque()
        self._obstacle = "it does not answer"
        self._is_closed = False
        self._server: ssl.SSLContext | None = None
        self._listener: socket.socket | None = None
        self._place = _Place(at.address, 0, secrets.token_bytes(NONCE), "")

    def connect(self) -> tuple[LinkEnd, LinkEnd]:
        """The end from the leader before, and that to the one after. Raises `TeamBrokenError`, `ConfigError`."""
        listener = self._listen()
        began = asked = time.monotonic()
        while len(self._ends) < 2:
            self._look()
            if self.prior in self._found and 0 not in self._ends:
                self._accept(listener)
            self._take()
            now = time.monotonic()
            if now - asked > ASK_S:
                asked = now
                if gone := self._gone():
                    raise TeamBrokenError(gone)
            if now - began > self._patience_s:
                raise TeamBrokenError(self._who_is_missing())
            time.sleep(LOOK_S)
        listener.close()
        return self._ends[0], self._ends[1]

    def why(self, host: int) -> None:
        """Raise what the leader of this host has said in the store, if it has left."""
        with suppress(StoreError):
            _raise_said(self._at.store.read_head(self._key(host))[0])

    def close(self, why: str, *, differs: bool = False) -> None:
        """Close all sockets, once it stands in the store why."""
        with suppress(StoreError, PayloadError):
            self._write((DIFFERS if differs else BROKEN) + why.encode()[:MOST_WORDS])
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        self._at.store.close()
        for one in (*self._awaited, *(end.socket for end in self._ends.values())):
            _shut(one)
        self._take()

    # ------------------------------------------------------------ the store

    def _listen(self) -> socket.socket:
        """Listen, and say in the store where."""
        certificate = ""
        with _store_fails():
            if self._at.tls:
                certificate, self._server = _own_certificate(self._at.address)
            listener = self._listener = _listener(self._at)
            own = replace(self._place, port=listener.getsockname()[1], certificate=certificate)
            values = {"address": own.address, "port": own.port, "key": own.key.hex()}
            self._write(line_of({**values, "certificate": own.certificate}))
        self._place = own
        return listener

    def _key(self, host: int) -> str:
        return keys.collective(self._at.run, self._leaders[host], self._at.among)

    def _write(self, head: bytes) -> None:
        expire_s = KEPT * self._patience_s
        self._at.store.write(self._key(self.own), head, memoryview(b"\0"), expire_s=expire_s)

    def _look(self) -> None:
        """Whether the neighbours listen by now, or have left."""
        for host in {self.prior, self.next}:
            if (0 if host == self.prior else 1) in self._ends and host != self.next:
                continue
            with _store_fails(), suppress(MissingKeyError):
                head = self._at.store.read_head(self._key(host))[0]
                _raise_said(head)
                is_new = host not in self._found
                self._found[host] = _place_in(head, self._leaders[host])
                if is_new and host == self.next:
                    place = self._found[host]
                    threading.Thread(target=self._reach, args=(place,), daemon=True).start()

    # ------------------------------------------------------------ both ends

    def _accept(self, listener: socket.socket) -> None:
        """Hear in threads of their own who has connected; few at once, so that a member has the time to prove it."""
        for _ in range(MOST_STRANGERS // 2):
            try:
                other, _ = listener.accept()
            except OSError:
                return
            same = other.dup()  # TLS takes `other` away, and closes it
            self._awaited.append(same)
            if len(self._awaited) > MOST_STRANGERS:
                _shut(self._awaited.popleft())
            threading.Thread(target=self._hear, args=(other, same), daemon=True).start()

    def _hear(self, other: socket.socket, same: socket.socket) -> None:
        """Take this connection, of two sockets, if it is that of the leader before; strangers are dropped."""
        deadline = time.monotonic() + PROOF_S
        try:
            other.settimeout(PROOF_S)
            if self._server is not None:
                other = self._server.wrap_socket(other, server_side=True)
            key = self._place.key + self._found[self.prior].key
            theirs = _read(other, deadline)
            ours = secrets.token_bytes(NONCE)
            other.sendall(ours)
            if not hmac.compare_digest(_read(other, deadline), _proof(key, CONNECTS, theirs, ours)):
                raise ConnectionError
            other.sendall(_proof(key, ACCEPTS, theirs, ours))
            end = _end(other, key, theirs, ours)
        except (OSError, ValueError):
            _shut(other)
            _shut(same)
            return
        self._came.put((0, end))

    def _reach(self, there: _Place) -> None:
        """Connect to the leader after this one."""
        deadline = time.monotonic() + min(TRY_S, self._patience_s)
        while not self._is_closed:
            try:
                self._came.put((1, self._proven(there)))
                return
            except (OSError, ValueError, StoreError) as error:
                self._obstacle = getattr(error, "strerror", None) or str(error)
            if time.monotonic() > deadline:
                break
            time.sleep(AGAIN_S)
        self._came.put((1, self._obstacle))

    def _proven(self, there: _Place) -> LinkEnd:
        other = socket.create_connection((there.address, there.port), PROOF_S)
        deadline = time.monotonic() + PROOF_S
        try:
            if there.certificate:
                other = trusting(there.certificate).wrap_socket(
                    other, server_hostname=there.address
                )
            key, ours = there.key + self._place.key, secrets.token_bytes(NONCE)
            other.sendall(ours)
            theirs = _read(other, deadline)
            other.sendall(_proof(key, CONNECTS, ours, theirs))
            if not hmac.compare_digest(_read(other, deadline), _proof(key, ACCEPTS, ours, theirs)):
                raise ConnectionError("something else listens there")
            return _end(other, key, ours, theirs)
        except BaseException:
            other.close()
            raise

    def _take(self) -> None:
        """What the threads have come to."""
        with suppress(Empty):
            while True:
                end, found = self._came.get_nowait()
                if isinstance(found, str):
                    if not self._is_closed:
                        raise TeamBrokenError(self._cannot_reach(found))
                elif self._is_closed or end in self._ends:
                    _shut(found.socket)
                else:
                    found.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    found.socket.setblocking(False)
                    self._ends[end] = found

    # ------------------------------------------------------------ words

    def _who_is_missing(self) -> str:
        prior, after = self._found.get(self.prior), self._found.get(self.next)
        for host, place in ((self.prior, prior), (self.next, after)):
            if place is None:
                return f"worker {self._leaders[host]} does not come within {self._patience_s:g} s"
        if 1 not in self._ends:
            return self._cannot_reach(self._obstacle)
        return (
            f"worker {self._leaders[self.prior]} at {prior.address if prior else ''} does not reach worker "
            f"{self._leaders[self.own]} at {self._place}: open this port between the hosts"
        )

    def _cannot_reach(self, why: str) -> str:
        return (
            f"worker {self._leaders[self.own]} at {self._place.address} cannot reach worker "
            f"{self._leaders[self.next]} at {self._found[self.next]} ({why}): open this port between the hosts"
        )


def _raise_said(head: bytes) -> None:
    if head.startswith(DIFFERS):
        raise ConfigError(head.removeprefix(DIFFERS).decode(errors="replace"))
    if head.startswith(BROKEN):
        raise TeamBrokenError(head.removeprefix(BROKEN).decode(errors="replace"))


def _place_in(head: bytes, worker: int) -> _Place:
    try:
        said = values_of(head)
        key = bytes.fromhex(said["key"])
        return _Place(str(said["address"]), int(said["port"]), key, str(said["certificate"]))
    except (ValueError, TypeError, KeyError):
        raise TeamBrokenError(f"where worker {worker} listens is damaged in the store") from None


def _own_certificate(address: str) -> tuple[str, ssl.SSLContext]:
    with TemporaryDirectory() as folder:
        text = make_certificate(Path(folder), address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Left unread at the other end, they would have it reset what it closes.
        context.num_tickets = 0
        context.load_cert_chain(Path(folder) / CERTIFICATE, Path(folder) / KEY)
    return text, context


def _listener(at: Rendezvous) -> socket.socket:
    why = ""
    for port in at.ports:
        one = socket.socket(socket.AF_INET6 if ":" in at.address else socket.AF_INET)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((at.address, port))
            one.listen(BACKLOG)
        except OSError as error:
            one.close()
            why = error.strerror or str(error)
        else:
            one.setblocking(False)
            return one
    ports = "a free port" if at.ports == ANY_PORT else f"the ports {at.ports[0]} to {at.ports[-1]}"
    raise TeamBrokenError(
        f"the workers of other hosts cannot be listened for at {at.address}, {ports} ({why}): stop what listens there"
    )


def _read(one: socket.socket, deadline: float) -> bytes:
    """As many bytes as a nonce has, by then."""
    found = b""
    while len(found) < NONCE:
        one.settimeout(max(0.01, deadline - time.monotonic()))
        data = one.recv(NONCE - len(found))
        if not data or time.monotonic() > deadline:
            raise ConnectionError("it ends the connection")
        found += data
    return found


def _proof(key: bytes, what: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, what + first + second, "sha256")


def _end(one: socket.socket, key: bytes, first: bytes, second: bytes) -> LinkEnd:
    return LinkEnd(one, int.from_bytes(_proof(key, CHECKS, first, second)[:8], "little"))


def _shut(one: socket.socket) -> None:
    """Close it, also for a thread that waits for it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def _store_fails() -> Iterator[None]:
    """The store's troubles, too, are the end of an exchange."""
    try:
        yield
    except (StoreError, PayloadError) as error:
        raise TeamBrokenError(str(error)) from error
