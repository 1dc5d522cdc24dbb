"""Starts a Ray node for this process, with only those of Ray's services that actors need.

`ray.init()` and `ray start` also start a dashboard, an autoscaler and a log monitor. They also replace 127.0.0.1 by
the machine's own address, which makes all of Ray listen on every interface. So the node is built here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ray.job_config import JobConfig

from speedo.actors.ray_node import private
from speedo.actors.ray_node.agent_stub import idle_agents
from speedo.actors.ray_node.cleanup import kept
from speedo.actors.ray_node.folder import OBJECT_STORE_BYTES, RAY_FOLDER, STORE_SOCKET
from speedo.actors.ray_node.ports import Ports
from speedo.errors import ClusterError
from speedo.system.background_process import deaf_children

Node: Any = private.find("Node")


class OwnCodeOnly(JobConfig):
    """Actors import modules of this installation only: Ray would also search our working directory, and first."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # so Ray adds no folder of this process to those that actors import from


class _PlainNode(Node):
    def start_api_server(self, **_: Any) -> None:
        """No dashboard: it costs two seconds, a process and a listener."""


@contextmanager
def ray_node(
    address: str, ports: Ports, folder: str, *, master: str | None = None
) -> Iterator[Any]:
    """Run a node at `address` (an IP address of this machine): a head, unless `master` (host:port) is given.

    Ray makes its own folder writable for every user, so it is placed in `folder`, which must be private; executables
    are beside it.

    All its processes end with this one, however this one ends. Raises `ClusterError` if it does not start.
    """
    take_addresses_literally()
    # Ray's annotations are wrong here: it wants a text with commas, and a truth value.
    processes: Any = None if ports.processes is None else ",".join(map(str, ports.processes))
    log_monitor: Any = False
    inner = f"{folder}/{RAY_FOLDER}"
    settings = private.find("RayParams")(
        node_ip_address=address,
        gcs_address=master,
        gcs_server_port=ports.gcs if master is None else None,
        node_manager_port=ports.node_manager,
        object_manager_port=ports.object_manager,
        worker_port_list=processes,
        num_cpus=1,
        object_store_memory=OBJECT_STORE_BYTES,
        include_log_monitor=log_monitor,
        no_monitor=True,
        temp_dir=inner,
        # Named by Ray they would be some 60 characters longer, where 107 are all that a socket may have.
        raylet_socket_name=f"{inner}/raylet",
        plasma_store_socket_name=f"{inner}/{STORE_SOCKET}",
    )
    with kept(folder):
        try:
            with idle_agents(folder), _in_own_sessions(), deaf_children():
                node = _PlainNode(
                    settings, head=master is None, shutdown_at_exit=False, spawn_reaper=True
                )
        except Exception as error:
            raise ClusterError(f"no Ray node could be started here: {sentence(error)}") from None
        try:
            yield node
        finally:
            node.kill_all_processes(check_alive=False, wait=True)  # SIGTERM is not heard


@contextmanager
def _in_own_sessions() -> Iterator[None]:
    """Processes of Ray that are started inside this context get their own sessions: signals to our group miss them."""
    theirs: Any = private.find("services")
    usual = theirs.ConsolePopen
    theirs.ConsolePopen = partial(usual, start_new_session=True)
    try:
        yield
    finally:
        theirs.ConsolePopen = usual


def dead_process(node: Any) -> str | None:
    """The name of a process of the node that has died; None while all live."""
    return next((str(kind) for kind, _ in node.dead_processes()), None)


def take_addresses_literally() -> None:
    """Keep Ray from replacing 127.0.0.1 by another address."""
    services: Any = private.find("services")
    services.resolve_ip_for_localhost = lambda host: host


def sentence(error: BaseException) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split())
