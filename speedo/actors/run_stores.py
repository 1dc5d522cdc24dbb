"""Where the vectors of a run are: its Redis, and the folder and the socket for workers on this machine.

They outlive an attempt at the run, so that the next one finds its newest center there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from speedo.engines.update_rules import RULES
from speedo.errors import StoreError
from speedo.run.config.run_config import RunConfig
from speedo.run.open_store import this_machine
from speedo.run.prepare import PreparedRun
from speedo.run.settings import Near
from speedo.sgd_modes.registry import needs_update, rule_class
from speedo.storage.redis.errors import clients_of
from speedo.storage.redis.server import MAX_CLIENTS, PROGRAM, PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import url_with_password
from speedo.storage.redis.users import StoreUsers
from speedo.storage.retrying_store import Patience, noting
from speedo.storage.shared_memory.folder import SharedMemory, room_for
from speedo.watch.console import Watch


def goes_without_redis(config: RunConfig, port: int | None) -> bool:
    """Whether a run of this machine alone uses only shared memory, because there is no Redis."""
    here = port is None and config.ray is None and config.redis is None and not config.serves
    by_memory = config.same_node == "shared-memory"
    return here and by_memory and shutil.which(PROGRAM) is None


class OpenRedis(NamedTuple):
    """The master's URL, the certificate of its CA, its unix socket; `keep` starts one of ours again that is gone."""

    url: str = ""
    ca_pem: str = ""
    socket: str = ""
    keep: Callable[[], None] = lambda: None


@dataclass
class RunStores:
    """Opened by the first attempt at a run that asks for them, until `close`."""

    _redis: OpenRedis | None = None
    _near: Near | None = None
    _redis_ends: ExitStack = field(default_factory=ExitStack)
    _memory_ends: ExitStack = field(default_factory=ExitStack)

    def redis(
        self, prepared: PreparedRun, watch: Watch, port: int | None, *, is_known: bool = False
    ) -> OpenRedis:
        """The user's own server, or a private one: another one if that of before does not answer.

        A user's server that `is_known` has answered in this run, and is waited for.
        """
        if self._redis is not None and prepared.config.redis is not None:
            return self._redis
        if self._redis is not None:
            with suppress(StoreError):
                self._redis.keep()
                _checked(self._redis, prepared.config)
                return self._redis
            self._redis_ends.close()
        with ExitStack() as stack:
            self._redis = _redis(prepared, watch, stack, port, is_known=is_known)
            self._redis_ends = stack.pop_all()
        return self._redis

    def near(
        self, config: RunConfig, model_bytes: int, socket: str, watch: Watch, *, alone: bool = False
    ) -> Near:
        """The folder and the socket that workers on this machine use instead of the network.

        If the run is `alone`, without Redis, raises `StoreError` where shared memory has no room.
        """
        if self._near is None:
            with ExitStack() as stack:
                self._near = _near(config, model_bytes, watch, stack, alone=alone)
                self._memory_ends = stack.pop_all()
        self._near = replace(self._near, socket=socket)
        return self._near

    def close(self) -> None:
        """End what was started, and remove the folder."""
        self._memory_ends.close()
        self._redis_ends.close()
        self._redis = self._near = None


def _near(
    config: RunConfig, model_bytes: int, watch: Watch, stack: ExitStack, *, alone: bool
) -> Near:
    path = None
    if config.same_node == "shared-memory":
        room = room_for(config.workers, model_bytes, _kept(config))
        memory = stack.enter_context(SharedMemory(room))
        path = memory.path
        if path is None and alone:
            raise StoreError(
                f"{memory.problem}, and redis-server is not installed: make room there, or install redis-server"
            )
        if path is None:
            watch.note(f"{memory.problem}: vectors go through Redis on this machine too")
    by_memory = path is not None
    if path is None:
        path = stack.enter_context(SharedMemory(0, Path(tempfile.gettempdir()))).path
    return Near(this_machine(), str(path or ""), by_memory=by_memory)


def _kept(config: RunConfig) -> int:
    """The most vectors that the merge rule, or the solver's update, keeps beside the center."""
    rules = [rule_class(part) for part in config.phases or (config,)]
    history = max(one.vectors for one in RULES.values()) if needs_update(config) else 0
    return history + max(len(rule.vectors) for rule in rules)


def _redis(
    prepared: PreparedRun, watch: Watch, stack: ExitStack, port: int | None, *, is_known: bool
) -> OpenRedis:
    config = prepared.config
    patience = Patience(
        config.timeout if is_known else 0.0, on_trouble=noting(watch.note), has_worked=is_known
    )
    if config.redis is None:
        server = stack.enter_context(
            PrivateRedis(
                host=config.host,
                port=port,
                tls=config.redis_tls,
                unix_socket=True,
                max_clients=max(MAX_CLIENTS, 2 * clients_of(config.workers)),
                tell=watch.note,
            )
        )
        opened = OpenRedis(server.url, server.ca_pem, server.socket_path, server.keep)
    else:
        opened = OpenRedis(url_with_password(config.redis))
    for warning in patience.call(lambda: _checked(opened, config)):
        watch.note(f"warning: {warning}")
    access = StoreUsers(opened.url, prepared.run, ca_pem=opened.ca_pem, patience_s=config.timeout)
    problem = access.problem()
    access.close()
    if problem is not None:
        watch.note(f"warning: {problem}")
    return opened


def _checked(opened: OpenRedis, config: RunConfig) -> list[str]:
    """What is wrong with a server that answers. Raises `StoreError`."""
    with closing(RedisStore(opened.url, ca_pem=opened.ca_pem)) as store:
        return store.check_server(clients=clients_of(config.workers))
