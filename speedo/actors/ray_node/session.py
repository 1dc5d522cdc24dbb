"""Starts Ray with our settings: token authentication, no dashboard, no files left in the temporary folder."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from speedo.actors.ray_node import ports, private
from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.public_node import note_on, public_node
from speedo.errors import ClusterError
from speedo.system.import_order import with_our_path

NAMESPACE: Final = "speedo"
# What Ray looks after many times a second, by default, for services that we do not use: on a machine whose cores all
# train, workers have less for it. Deaths and joins are told by other ways.
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
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
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
    return {**with_our_path(others), **environment(token)}


def ignored_settings() -> str:
    """A line that names the user's settings of Ray that are ignored; empty if there are none."""
    ours = {
        *environment(""),
        "RAY_CLIENT_MODE",
    }  # the last is set by Ray itself when it is imported
    names = sorted(name for name in os.environ if _is_of_ray(name) and name not in ours)
    if not names:
        return ""
    return (
        f"note: ignored in the environment, because a run configures Ray itself: {', '.join(names)}"
    )


def _is_of_ray(name: str) -> bool:
    return name.upper().startswith("RAY_") and name not in _KEPT


def load_ray(token: str) -> None:
    """Import Ray with our settings; if it was imported with others, make it read them again.

    Raises `ClusterError` if it runs already.
    """
    set_environment(token)
    ray = importlib.import_module("ray")
    # It warns of a small /dev/shm, where it would keep objects; we have none.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    if ray.is_initialized():
        raise ClusterError("Ray already runs in this process: call ray.shutdown() before a run")
    config, loader = private.find("Config"), private.find("TokenLoader")
    if config is not None and loader is not None:  # else it reads them when it is imported
        config.initialize("")
        loader.instance().reset_cache()


@contextmanager
def head(
    token: str, host: str, port: int | None, note: Callable[[str], None] = lambda _: None
) -> Iterator[Callable[[], str | None]]:
    """Run a Ray head as children of this process; without `port` on any free one, for this machine alone.

    `note` is told if this Ray lacks something, so that its public command starts the head.

    Yields a function that names a process of Ray's that has died. Ray itself notices that only after a minute, and then
    ends this process natively.
    """
    load_ray(token)
    _require_authentication(host)
    address = ports.resolved(host)
    with ExitStack() as stack:
        held = stack.enter_context(ports.master_ports(address, port))
        folder = ray_folder(stack)
        if lacking := private.lacking():
            note(note_on(lacking))
            public = stack.enter_context(public_node(address, held, folder))
            stack.enter_context(_connected(public.gcs_address, address))
            yield public.dead
            return
        from speedo.actors.ray_node.node import dead_process, ray_node

        node = stack.enter_context(ray_node(address, held, folder))
        stack.enter_context(_connected(node.gcs_address, address))
        yield partial(dead_process, node)


@dataclass(frozen=True, slots=True)
class Membership:
    """How this machine is in a cluster: the `process` of its node, None if that is the master's own; its `address`.

    `block` is the first of the ports that are held for this machine; 0 where any may be taken.
    """

    process: int | None
    address: str
    block: int


@contextmanager
def member(
    token: str,
    master: str,
    folder: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Membership]:
    """Join the cluster at `master` (host:port) from this machine; a node is started if there is none here.

    Its files lie in `folder`, or in a temporary one. `note` is as in `head`.
    """
    load_ray(token)
    host, _, port = master.rpartition(":")
    address = ports.resolved(host)
    gcs = f"{address}:{port}"
    with ExitStack() as stack:
        process, block = None, int(port)
        ours = address
        if not ports.is_this_machine(address):
            ours = ports.own_address_towards(address)
            held = stack.enter_context(ports.member_ports(ours, int(port)))
            files = folder or ray_folder(stack)
            block = held.gcs
            if lacking := private.lacking():
                note(note_on(lacking))
                public = stack.enter_context(public_node(ours, held, files, master=gcs))
                process = public.command.pid
            else:
                from speedo.actors.ray_node.node import ray_node

                node = stack.enter_context(ray_node(ours, held, files, master=gcs))
                process = node.all_processes["raylet"][0].process.pid
        try:
            stack.enter_context(_connected(gcs, ours))
        except (ConnectionError, RuntimeError) as error:
            raise ClusterError(
                f"the master at {master} cannot be joined: {' '.join(str(error).split())}"
            ) from None
        yield Membership(process, ours, block)


@contextmanager
def _connected(gcs: str, address: str) -> Iterator[None]:
    """Make this process a driver of the cluster, through the node at `address`."""
    import ray

    special: dict[str, Any] = {}
    if not private.lacking():
        from speedo.actors.ray_node.node import OwnCodeOnly, take_addresses_literally

        take_addresses_literally()
        special = {"job_config": OwnCodeOnly(), "_node_ip_address": address}
    ray.init(
        address=gcs,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        **special,
    )
    # Ray's own words about dead workers stay off standard output: ours come with the cause.
    if (worker := private.find("worker")) is not None:
        worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        ray.shutdown()


def _require_authentication(host: str) -> None:
    """Raises `ClusterError` if Ray, as it was imported, would serve clients without the token, or does not say."""
    mode, modes = private.find("authentication_mode"), private.find("AuthenticationMode")
    if mode is None or modes is None:
        raise ClusterError(
            f"whether this Ray would serve {host} only with the token cannot be seen, so no run starts: install a Ray "
            "that this SpeeDO was tested with, as its requirements.lock names it"
        )
    if mode() != modes.TOKEN:
        raise ClusterError(
            f"Ray would serve {host} without a token, because it was imported with other settings: "
            "start the run in a process of its own"
        )
