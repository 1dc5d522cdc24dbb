"""A Ray cluster of our own, with our settings: the token, and nothing of the user's that leads past it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from speedo.actors.ray_node import ports
from speedo.actors.ray_node.driver import driver
from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.lean_import import import_ray
from speedo.actors.ray_node.node import REFUSED, Node, starting_node
from speedo.actors.ray_node.private_names import PIPED, take_addresses_literally
from speedo.actors.ray_node.probe import why_not
from speedo.errors import ClusterError
from speedo.system.import_order import with_our_path

NAMESPACE: Final = "speedo"
TRIES: Final = 3  # to look whether Ray wants the token: on a busy machine it may not answer in time
USERS: Final = "SPEEDO_USERS_RAY"  # the user's settings of Ray, for a script of the user's
# Processes of actors begin to load with the node, and not only once it has a driver.
_AT_ONCE: Final = {"RAY_enable_worker_prestart": "1"}
# What Ray looks after many times a second, by default, for services that we do not use: on a machine whose cores all
# train, workers have less for it. Deaths and joins are reported in other ways.
_RARELY: Final = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_io_context_event_loop_lag_collection_interval_ms": "0",
    "RAY_local_fs_monitor_interval_ms": "10000",
    "RAY_raylet_check_gc_period_milliseconds": "10000",
    "RAY_report_worker_backlog_interval_ms": "10000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}
# All that is left of the user's own settings of Ray: how much it writes into its logs. Any other may lead it
# elsewhere, past the token, or into code of the user's (RAY_RUNTIME_ENV_HOOK, RAY_USE_TLS, RAY_ADDRESS, ...).
_KEPT: Final = ("RAY_BACKEND_LOG_LEVEL",)


def environment(token: str) -> dict[str, str]:
    """The environment variables by which a process, and all that it starts, configures Ray."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Its monitor would end the master, or a worker, where any other program has taken the memory.
        "RAY_memory_monitor_refresh_ms": "0",
        # Ray's own 15 leaves a run, beside any other program, a fraction of what a plain Caffe would get there.
        "RAY_worker_niceness": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **PIPED,
        **_AT_ONCE,
        **_RARELY,
    }


def set_environment(token: str) -> None:
    """Set our variables in this process, overriding the user's environment."""
    cleaned = clean_environment(token)
    for name in os.environ.keys() - cleaned.keys():
        del os.environ[name]
    os.environ.update(cleaned)


def clean_environment(token: str) -> dict[str, str]:
    """This process's environment with our variables for Ray, and of the user's only a few harmless ones."""
    others = {name: value for name, value in os.environ.items() if not _is_of_ray(name)}
    users = {name: value for name, value in os.environ.items() if _is_of_ray(name)}
    others.setdefault(USERS, json.dumps(users))  # the first time they are the user's
    return {**with_our_path(others), **environment(token)}


def users_environment() -> dict[str, str]:
    """The environment of the user, in a process that has ours."""
    others = {name: value for name, value in os.environ.items() if not _is_of_ray(name)}
    return {**others, **json.loads(others.pop(USERS, "{}"))}


def ignored_settings() -> str:
    """A line that names the user's settings of Ray that are ignored; empty if there are none."""
    # The last is set by Ray itself when it is imported
    ours = {*environment(""), "RAY_CLIENT_MODE"}
    names = sorted(name for name in os.environ if _is_of_ray(name) and name not in ours)
    if not names:
        return ""
    return (
        f"note: ignored in the environment, because a run configures Ray itself: {', '.join(names)}"
    )


def _is_of_ray(name: str) -> bool:
    return name.upper().startswith("RAY_") and name not in _KEPT


def load_ray(token: str) -> None:
    """Import Ray with our settings. Raises `ClusterError` if this process has imported it with others."""
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_TOKEN") != token:
        raise ClusterError(
            "Ray was imported in this process with other settings: start the run in a process of its own"
        )
    set_environment(token)
    ray = import_ray()
    # It warns of a small /dev/shm, where it would keep objects; we have none.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    if ray.is_initialized():
        raise ClusterError("Ray already runs in this process: call ray.shutdown() before a run")


@contextmanager
def head(
    token: str, host: str, port: int | None, note: Callable[[str], None], actors: int = 1
) -> Iterator[StartingHead]:
    """Start a Ray head as children of this process; without `port` on any free one, for this machine alone.

    For `actors` see `starting_node`.
    """
    address = ports.resolved(host)
    with ExitStack() as stack:
        held = stack.enter_context(ports.master_ports(address, port))
        folder = ray_folder(stack)
        started = stack.enter_context(
            starting_node(
                *(address, held, folder, clean_environment(token)), actors=actors, tell=note
            )
        )
        yield StartingHead(started, token, note)


@dataclass(frozen=True, slots=True)
class StartingHead:
    """A head that may not be there yet; `started` waits for its node."""

    started: Callable[[], Node]
    token: str
    note: Callable[[str], None]

    def load(self) -> None:
        """Import Ray meanwhile."""
        load_ray(self.token)

    @contextmanager
    def connected(self) -> Iterator[Head]:
        """Make this process a driver of the cluster, once the head is there."""
        self.load()
        node = self.started()
        if node.note:
            self.note(node.note)
        take_addresses_literally()
        with driver(node.gcs, NAMESPACE):
            yield Head(node)


@dataclass(frozen=True, slots=True)
class Head:
    """The node of a cluster of our own. `dead` names what of it has died, if something has."""

    node: Node

    def dead(self) -> str | None:
        """Ray itself notices only after a minute, and then ends this process natively."""
        return self.node.dead()

    def require_token(self) -> None:
        """Raises `ClusterError` unless Ray says that it refuses a program without the token."""
        others = {name: value for name, value in os.environ.items() if not _is_of_ray(name)}
        others |= {"RAY_AUTH_MODE": "disabled"}
        for _ in range(TRIES):
            words = why_not(self.node.gcs, others, literally=True)
            if not words:
                raise ClusterError(
                    f"Ray serves {self.node.gcs} to programs without the token, so no run starts: install "
                    "another Ray; the tests run with 2.56 and 2.60"
                )
            if any(word in words for word in REFUSED):
                return
        raise ClusterError(
            f"whether Ray at {self.node.gcs} refuses programs without the token could not be checked, so no run "
            f"starts: {words}; start it again"
        )
