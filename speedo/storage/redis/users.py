"""A Redis user for every worker of a run, with only the rights that it needs.

The master creates the user when it admits a worker, and removes it with its connections when the worker leaves. A
private server keeps its users across a restart. On any other server, `StoreUsers` checks every second that they still
exist. If users cannot be created, all processes share the master's URL.

A worker reads centers and writes under its own prefixes; a reader reads centers; a host writes the one range that it
copies back to a server that lost it; only the master lists keys or creates users. Key rules for reading alone (`%R~`)
need Redis 7.0.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from speedo.errors import StoreAccessError, StoreError, StoreUnavailableError
from speedo.storage import keys
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import Patience, Result

WATCH_S: Final = 1.0
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
    """The rule that accepts this password and does not contain it."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"


def worker_rules(keyspace: str, worker: int) -> tuple[str, ...]:
    """A worker's rights: read centers and what others bring to collectives; read, write and delete its own."""
    return (
        "-@all",
        *_CALL,
        *_READ,
        *_WRITE,
        f"%R~{keys.pattern(keys.centers(keyspace))}",
        f"%R~{keys.pattern(keys.collectives(keyspace))}",
        f"~{keys.pattern(keys.collectives(keyspace, worker))}",
        f"~{keys.pattern(keys.payloads(keyspace, worker))}",
        f"~{keys.pattern(keys.states(keyspace, worker))}",
    )


def reader_rules(keyspace: str) -> tuple[str, ...]:
    """A reader's rights: read centers."""
    return "-@all", *_CALL, *_READ, f"%R~{keys.pattern(keys.centers(keyspace))}"


def acl_file(password: str) -> str:
    """The initial users of a private server: the master, and no default user."""
    rules = " ".join(("-@all", *_CALL, *_READ, *_WRITE, *_OVERSEE, *_KEEP_DOOR))
    return (
        "user default off resetpass resetkeys -@all\n"
        f"user {MASTER} on {secret(password)} ~* {rules}\n"
    )


@dataclass(frozen=True, slots=True)
class _User:
    rules: tuple[str, ...]
    password: str = field(repr=False, default_factory=lambda: secrets.token_hex(24))


class NoUsers:
    """For `StoreUsers` where there is no Redis: the folder in shared memory is this user's, and has no URL."""

    def admit_worker(self, worker: int, incarnation: int, beside: int | None = None) -> str:
        return ""

    def admit_reader(self) -> str:
        return ""

    def dismiss(self, worker: int, incarnation: int) -> None:
        pass

    def close(self) -> None:
        pass


class StoreUsers:
    """Manages the users of the store at `url`, the master's URL, for the keys of `keyspace`.

    `keyspace` is a run, or a run and its epoch (`ab12cd34:1`). `saved` says that the server keeps its users in a file,
    as a private one does. With `keeps_former` the users of former epochs stay until the end. Threads may share it.
    Calls that add users are repeated for `patience_s` seconds while the server is away; `on_trouble` is called then.
    They raise `StoreError`. URLs hold passwords.
    """

    def __init__(
        self,
        url: str,
        keyspace: str,
        *,
        ca_pem: str = "",
        saved: bool = False,
        keeps_former: bool = False,
        patience_s: float = 30.0,
        on_trouble: Callable[[str | None], object] = lambda _: None,
    ) -> None:
        run, _, epoch = keyspace.partition(":")
        self._url, self._keyspace, self._saved = url, keyspace, saved
        self._keeps_former = keeps_former
        self._run = f"speedo-{re.sub(r'[^A-Za-z0-9_]', '_', run)}-"
        self._epoch = int(epoch) if epoch.isdigit() else 0
        self._store = RedisStore(url, ca_pem=ca_pem)
        self._patience = Patience(patience_s, on_trouble=on_trouble)
        self._lock = threading.Lock()
        self._users: dict[str, _User] = {}
        self._leaving: set[str] = set()
        self._problem: str | None = None
        self._has_begun = False
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"Access({self._store.address}, {self._keyspace})"

    def problem(self) -> str | None:
        """Why workers share one password, in a sentence; None if each has its own.

        The first call asks the server, and removes users of a former epoch of this run.
        """
        return self._patiently(self._begin)

    def admit_worker(self, worker: int, incarnation: int, beside: int | None = None) -> str:
        """A URL for this incarnation of a worker; all others but `beside` lose their access."""
        stem = f"{self._run}{self._epoch}-w{worker}-"
        kept = f"{stem}{beside}"
        earlier = [name for name in list(self._users) if name.startswith(stem) and name != kept]
        self._dismiss(*earlier)
        return self._admit(f"{stem}{incarnation}", worker_rules(self._keyspace, worker))

    def admit_reader(self) -> str:
        """The URL for the tester."""
        return self._admit(f"{self._run}{self._epoch}-reader", reader_rules(self._keyspace))

    def dismiss(self, worker: int, incarnation: int) -> None:
        """Remove a worker's user and connections; if the server is away, as soon as it is back."""
        self._dismiss(f"{self._run}{self._epoch}-w{worker}-{incarnation}")

    def restore(self) -> int:
        """Recreate the users that the server has lost; returns how many. Tries once."""
        with self._lock:
            if self._problem is not None or self._closed.is_set():
                return 0
            there = self._there()
            lost = [name for name in self._users if name not in there]
            for name in lost:
                self._set(name)
            self._settle(changed=bool(lost))
        return len(lost)

    def close(self) -> None:
        """Remove all users of this run, except those of a newer master. Tries once."""
        self._closed.set()
        with self._lock:
            self._users.clear()
            if self._has_begun and self._problem is None:
                with suppress(StoreError):
                    self._leaving |= self._ours(up_to=self._epoch)
                    self._settle()
            self._store.close()

    def _admit(self, name: str, rules: tuple[str, ...]) -> str:
        if self.problem() is not None:
            return self._url
        with self._lock:
            user = self._users.setdefault(name, _User(rules))
            self._keep_watch()
        self._patiently(lambda: self._make(name))
        return _with_login(self._url, name, user.password)

    def _dismiss(self, *names: str) -> None:
        with self._lock, suppress(StoreError):
            known = [name for name in names if self._users.pop(name, None) is not None]
            self._leaving.update(known)
            self._settle()

    def _patiently(self, what: Callable[[], Result]) -> Result:
        """Retries; the lock is taken for each try only, so that other threads need not wait for all of them."""

        def one_try() -> Result:
            with self._lock:
                return what()

        return self._patience.call(one_try)

    def _look(self) -> None:
        while not self._closed.wait(WATCH_S):
            with suppress(StoreError):
                self.restore()

    # ------------------------------------------------------------ with the lock

    def _begin(self) -> str | None:
        if not self._has_begun:
            probe = f"{self._run}{self._epoch}-probe"
            try:
                self._store.administer("ACL", "SETUSER", probe, *reader_rules(self._keyspace))
                former = set() if self._keeps_former else self._ours(up_to=self._epoch - 1)
                self._leaving |= {probe} | former
                self._settle()
            except (StoreUnavailableError, StoreAccessError):
                raise
            except StoreError as error:
                if " refused ACL " not in str(error):
                    raise
                self._problem = (
                    f"{self._store.address} cannot create users for workers: all of them share one password. "
                    "Use Redis 7.0 or later, and a user who may ACL SETUSER, DELUSER and USERS"
                )
            self._has_begun = True
        return self._problem

    def _make(self, name: str) -> None:
        if name in self._users:  # it may have been dismissed meanwhile
            self._set(name)
            self._settle(changed=True)

    def _set(self, name: str) -> None:
        user = self._users[name]
        rules = ("reset", "on", secret(user.password), *user.rules)
        self._store.administer("ACL", "SETUSER", name, *rules)

    def _settle(self, *, changed: bool = False) -> None:
        """Remove the users of workers that left, and make the server save its users if any have changed."""
        if self._leaving:
            self._store.administer("ACL", "DELUSER", *sorted(self._leaving))
            self._leaving.clear()
            changed = True
        if changed and self._saved:
            try:
                self._store.administer("ACL", "SAVE")
            except StoreUnavailableError:
                raise
            except StoreError:  # its disk is full, say
                self._saved = False
                self._keep_watch()

    def _keep_watch(self) -> None:
        if self._watch is None and not self._saved:
            self._watch = threading.Thread(target=self._look, name="store-users", daemon=True)
            self._watch.start()

    def _there(self) -> set[str]:
        reply = self._store.administer("ACL", "USERS")
        names = reply if isinstance(reply, list) else []
        return {name.decode(errors="replace") for name in names if isinstance(name, bytes)}

    def _ours(self, *, up_to: int) -> set[str]:
        """The users of this run, of epochs up to this one."""
        found = set()
        for name in self._there():
            epoch = name.removeprefix(self._run).split("-")[0]
            if name.startswith(self._run) and epoch.isdigit() and int(epoch) <= up_to:
                found.add(name)
        return found


def _with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{place}"))
