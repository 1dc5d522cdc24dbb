"""The block of ports: which are taken, and what is said when they are not free."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from speedo.actors.join.find_master import MasterMonitor, connection_to, wait_for_master
from speedo.actors.launch import serve_master
from speedo.actors.ray_node import session
from speedo.actors.ray_node.ports import (
    BLOCK,
    master_ports,
    member_ports,
    redis_port,
    resolved,
    ring_ports,
)
from speedo.errors import ClusterError
from speedo.run.config.run_config import make_config
from speedo.study.doctor import NodeRequest
from speedo.study.doctor.cluster import free_ports
from speedo.watch.console import Quiet
from tests.support.commands import wait_until

pytestmark = pytest.mark.ray


def address() -> str:
    """An address of this machine that is not loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback's")
        return str(probe.getsockname()[0])


# A block for each process of pytest: they may share these tests.
BASE = 21_300 + 1_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def test_a_master_beyond_loopback_has_a_port_for_everything_in_one_block() -> None:
    with master_ports(address(), BASE) as ports:
        services = [ports.gcs, ports.node_manager, ports.object_manager]
        assert services == [BASE, BASE + 1, BASE + 2]
        assert ports.processes == (*range(BASE + 18, BASE + BLOCK - 4),)
        assert ring_ports(BASE) == (*range(BASE + 10, BASE + 18),)
        assert sorted(ports.agents.values()) == [*range(BASE + BLOCK - 4, BASE + BLOCK)]
    assert redis_port(address(), BASE) == BASE + 9


@pytest.mark.parametrize("base", [None, pytest.param(BASE, id="a base")])
def test_on_loopback_all_but_the_masters_own_port_are_free_ones(base: int | None) -> None:
    with master_ports("127.0.0.1", base) as ports:
        assert ports.gcs == (base or 0)
        assert ports.processes is None
        assert {ports.node_manager, ports.object_manager} == {0}
    assert redis_port("localhost", base) is None


def test_a_taken_service_port_is_named_and_a_taken_process_port_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("speedo.actors.ray_node.ports.LINGER_S", 0.3)
    with socket.create_server((address(), BASE + 44)), master_ports(address(), BASE) as ports:
        assert ports.processes is not None
        assert BASE + 44 not in ports.processes
        assert len(ports.processes) == 77
    with (
        socket.create_server((address(), BASE)),
        pytest.raises(ClusterError, match=f"{BASE} cannot be served .* give another --port"),
        master_ports(address(), BASE),
    ):
        pass


def test_only_the_port_that_workers_know_must_be_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's connection may have one of the others for its end here, for as long as it lasts."""
    monkeypatch.setattr("speedo.actors.ray_node.ports.LINGER_S", 0.3)
    with (
        socket.create_server((address(), BASE + 1)),
        socket.create_server((address(), BASE + 2)),
        master_ports(address(), BASE) as ports,
    ):
        services = [ports.gcs, ports.node_manager, ports.object_manager]
        assert services == [BASE, BASE + 18, BASE + 19]
        assert ports.processes == (*range(BASE + 20, BASE + BLOCK - 4),)


def test_a_port_that_a_killed_node_still_holds_is_waited_for() -> None:
    holder = socket.create_server((address(), BASE + 2))
    threading.Timer(0.5, holder.close).start()
    with master_ports(address(), BASE) as ports:
        assert ports.object_manager == BASE + 2


def test_a_process_that_outlives_a_killed_node_is_in_nobodys_way() -> None:
    with (
        socket.create_server((address(), BASE + 18)),
        member_ports(address(), BASE) as ports,
    ):
        assert ports.processes is not None
        assert (ports.node_manager, ports.processes[0]) == (BASE + 1, BASE + 19)


def test_two_commands_never_share_a_block() -> None:
    with member_ports(address(), BASE) as first, member_ports(address(), BASE) as second:
        assert (first.node_manager, second.node_manager) == (BASE + 1, BASE + 101)
        with pytest.raises(ClusterError, match="belong to another"), master_ports(address(), BASE):
            pass
    with member_ports(address(), BASE) as third:
        assert third.node_manager == BASE + 1


def test_a_connection_with_a_port_of_a_block_for_its_end_does_not_reserve_the_block() -> None:
    """As one whose last byte was a moment ago: nobody can listen at its port for a minute."""
    for port in range(BASE + 3, BASE + 10):
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as one:
            one.bind(("127.0.0.1", port))
            one.connect(server.getsockname())
            with master_ports(address(), BASE) as ports:
                assert ports.gcs == BASE


def test_a_block_ends_with_the_last_port() -> None:
    with pytest.raises(ClusterError, match="use at most 65436"), master_ports(address(), 65_437):
        pass


def test_the_users_settings_of_ray_neither_lead_elsewhere_nor_past_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dangerous = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_AUTH_TOKEN": "another",
        "RAY_AUTH_TOKEN_PATH": "/elsewhere",
        "RAY_ADDRESS": "192.0.2.1:6379",
        "RAY_REDIS_ADDRESS": "192.0.2.1:6379",
        "RAY_RUNTIME_ENV_HOOK": "nowhere.hook",
        "RAY_USE_TLS": "1",
        "ray_raylet_start_wait_time_s": "0",
        "RAY_memory_usage_threshold": "0.9",
    }
    kept = {"RAY_BACKEND_LOG_LEVEL": "warning", "RAYON_NUM_THREADS": "1"}
    for name, value in (dangerous | kept).items():
        monkeypatch.setenv(name, value)
    assert session.ignored_settings() == (
        "note: ignored in the environment, because a run configures Ray itself: RAY_ADDRESS, RAY_AUTH_TOKEN_PATH, "
        "RAY_REDIS_ADDRESS, RAY_RUNTIME_ENV_HOOK, RAY_USE_TLS, RAY_memory_usage_threshold, ray_raylet_start_wait_time_s"
    )
    session.set_environment("the token of the cluster")
    assert session.ignored_settings() == ""
    now = {name: os.environ.get(name) for name in dangerous | kept}
    assert now == {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "the token of the cluster",
        "RAY_AUTH_TOKEN_PATH": None,
        "RAY_ADDRESS": None,
        "RAY_REDIS_ADDRESS": None,
        "RAY_RUNTIME_ENV_HOOK": None,
        "RAY_USE_TLS": None,
        "ray_raylet_start_wait_time_s": None,
        "RAY_memory_usage_threshold": None,
        **kept,
    }


V6: Final = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 0, 0, 0))]
V4: Final = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))]


@pytest.mark.parametrize("host", ["::1", "[::1]", "fd00::7", "six.example"])
def test_a_master_or_a_worker_by_ipv6_alone_is_refused_at_once(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray would stand for minutes."""
    if "." in host:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: V6)
    words = "has only the IPv6 address .* give an IPv4 address of the master's machine, as --host"
    token = tmp_path / "token"
    with pytest.raises(ClusterError, match=words):
        serve_master(make_config({"host": host}), Quiet(), token)
    with pytest.raises(ClusterError, match=words):
        wait_for_master([f"{host}:7000"], 60.0, lambda _: None)
    (found,) = free_ports(NodeRequest(master=f"{host}:7000"))
    assert found.level == "fail"


def test_a_name_with_both_kinds_of_addresses_is_reached_by_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*V6, *V4])
    assert resolved("both.example") == "10.0.0.7"


def test_a_connection_of_a_port_to_itself_is_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system chose the very port that was asked for, because nobody listens there."""

    def to_itself(place: tuple[str, int], timeout: float) -> socket.socket:
        made = socket.socket()
        made.bind(place)
        made.connect(place)
        return made

    monkeypatch.setattr(socket, "create_connection", to_itself)
    with pytest.raises(ConnectionRefusedError):
        connection_to(f"127.0.0.1:{BASE}", 1.0)


def test_a_master_is_lost_once_its_port_stays_closed() -> None:
    lost: list[str] = []

    def listening(place: tuple[str, int]) -> socket.socket:
        made = socket.create_server(place, backlog=100)
        made.settimeout(20)
        return made

    server = listening(("127.0.0.1", 0))
    place = server.getsockname()
    monitor = MasterMonitor(f"{place[0]}:{place[1]}", lost.append)
    monitor.start()
    one, _ = server.accept()
    server.close()
    one.close()
    time.sleep(0.5)
    assert monitor.interrupted_within(60)
    assert not monitor.came_back_within(60)
    server = listening(place)  # what listened has died, and was started again
    kept = [server.accept()[0] for _ in range(3)]  # it connects each second
    assert not lost
    assert monitor.came_back_within(60)
    server.close()
    for one in kept:
        one.close()
    wait_until(lambda: lost, 10)
    assert lost == ["it refuses connections"]


def test_the_wait_for_a_master_counts_from_the_commands_start() -> None:
    with socket.create_server((address(), 0)) as silent:
        silent.close()
        began = time.monotonic()
        with pytest.raises(ClusterError, match="no master answered"):
            wait_for_master([f"{address()}:{BASE}"], 30.0, lambda _: None, since=began - 30)
        assert time.monotonic() - began < 20
