"""Closes connections to a private Redis that have not logged in, so that members of a run can always connect.

Redis has no login timeout, and refuses all new connections at `maxclients`, silent ones included. So a thread checks
the connections every second, over a connection that it opened before the port was published. A connection that has
not logged in after 5 s is closed. If there are many such connections, all of them are closed, twenty times a second;
a member that is just logging in then tries again.

If the thread has lost its connection because the server was restarted, and cannot get a new one, it retries until the
server itself closes silent connections (`timeout` in its configuration).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from speedo.errors import StoreError
from speedo.storage.redis.store import RedisStore

LOOK_S: Final = 1.0
CROWDED_LOOK_S: Final = 0.05  # while many are there
RETURN_S: Final = 0.02  # while the server is away: before a crowd can fill it
LOGIN_S: Final = 5.0  # a member's own call ends then, too: `RedisStore`
CROWD: Final = 64  # at most; of a server that takes few clients a quarter
TELL_S: Final = 60.0
_NOBODY: Final = b" user=default "  # the user of a connection without a login; it may not log in


class LoginWatch:
    """Watches the server at `url`, whose user may CLIENT LIST and CLIENT KILL, from `start` to `close`.

    `place` is the port under attack. `tell` is called, from the watching thread and at most once a minute, if there are
    many connections without login.
    """

    def __init__(
        self,
        url: str,
        *,
        place: str,
        max_clients: int,
        ca_pem: str = "",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._place = RedisStore(url, ca_pem=ca_pem), place
        self._crowd = max(1, min(CROWD, max_clients // 4))
        self._tell, self._told = tell, -TELL_S
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="redis-door", daemon=True)

    def start(self) -> None:
        """Connect, and begin. Raises `StoreError`."""
        self._look()
        self._thread.start()

    def close(self) -> None:
        """Stop watching; may be called twice, and before `start`."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._store.close()

    def _watch(self) -> None:
        pause = LOOK_S
        while not self._over.wait(pause):
            try:
                pause = CROWDED_LOOK_S if self._look() else LOOK_S
            except StoreError:
                pause = RETURN_S

    def _look(self) -> bool:
        """Close connections without login; returns whether there were many."""
        said = self._store.administer("CLIENT", "LIST", "TYPE", "normal")
        lines = said.splitlines() if isinstance(said, bytes) else []
        strangers = [_fields(line) for line in lines if _NOBODY in line]
        if len(strangers) > self._crowd:
            self._store.administer("CLIENT", "KILL", "USER", "default")
            self._report(strangers)
            return True
        for one in strangers:
            if int(one["age"]) >= LOGIN_S:
                self._store.administer("CLIENT", "KILL", "ID", one["id"])
        return False

    def _report(self, strangers: list[dict[str, str]]) -> None:
        now = time.monotonic()
        if now - self._told < TELL_S:
            return
        self._told = now
        hosts = Counter(one["addr"].rpartition(":")[0] for one in strangers)
        host, count = hosts.most_common(1)[0]
        self._tell(
            f"warning: {len(strangers)} connections without login at {self._place}, {count} of them from "
            f"{host}: they are closed; let only the machines of this run reach that port"
        )


def _fields(line: bytes) -> dict[str, str]:
    """A line of CLIENT LIST: `id=3 addr=10.0.0.9:40112 ... age=7 ...`."""
    pairs = (word.partition("=") for word in line.decode(errors="replace").split(" "))
    return {name: value for name, _, value in pairs}
