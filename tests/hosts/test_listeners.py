"""What other hosts can reach, and what they get there without the token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.grpc_call import UNAUTHENTICATED
from tests.support.commands import Commands, commands, wait_for_line
from tests.support.network import Host, network
from tests.support.sabotaged_net import slow_down, write_problem

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
BLOCK = range(56126, 56226)
TOKEN = "0123456789abcdef" * 4
# What would have Ray take everybody, were it heeded.
CARELESS = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": "/dev/null"}
LONG = ("--mode", "async", "--max-iter", "1000000", "--test-interval", "0", "--run-dir", "run")


class Cluster:
    """A master on the first host, a worker on the second, and a third host that has no business there."""

    def __init__(self, speedo: Commands, hosts: list[Host]) -> None:
        self.speedo = speedo
        self.chief, self.member, self.stranger = hosts
        self._ports: dict[str, list[int]] = {}
        problem = write_problem(speedo.folder / "problem")
        slow_down(problem, 2)
        secret = {**CARELESS, "SPEEDO_TOKEN": TOKEN}
        speedo.start(
            *("master", str(problem), "--host", self.chief.address, "--workers", "1", *LONG),
            environment=secret,
            inside=self.chief.inside,
        )
        speedo.start(
            *("worker", "--master", self.chief.address),
            environment=secret,
            inside=self.member.inside,
        )
        wait_for_line(speedo.folder / "run" / "metrics.jsonl", '"version":3,', 90)

    def ports(self, host: Host) -> list[int]:
        if host.name not in self._ports:
            said = self.stranger.python("tests.hosts.scan", host.address)
            self._ports[host.name] = json.loads(said)
        return self._ports[host.name]

    def answers(self, host: Host) -> dict[int, list[int | str]]:
        ports = map(str, self.ports(host))
        said = self.stranger.python("tests.hosts.stranger", host.address, *ports)
        return {int(port): answers for port, answers in json.loads(said).items()}


def other_hosts_reach_only_the_documented_block(cluster: Cluster) -> None:
    ports = set(cluster.ports(cluster.chief))
    assert {56126, 56127, 56128, 56135} <= ports <= set(BLOCK), f"of the master: {ports}"
    ports = set(cluster.ports(cluster.member))
    assert {56127, 56128} <= ports <= set(BLOCK) - {56126, 56135}, f"of the worker's host: {ports}"


def each_open_port_refuses_a_stranger(cluster: Cluster) -> None:
    unimplemented = 12  # another service than the port's
    # Beside the documented ports of each, the master's process has one, and each worker's.
    for host, least in ((cluster.chief, 5), (cluster.member, 3)):
        found = cluster.answers(host)
        assert len(found) >= least, f"of {host.name}: {found}"
        for port, answers in found.items():
            expected = ([unimplemented, UNAUTHENTICATED], [401], ["-NOAUTH"])
            assert answers in expected, f"of {host.name}: {port} answers {answers}"


def the_stranger_would_notice_an_open_door(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same calls with the token are answered, so the check above can fail."""
    monkeypatch.setenv("STRANGER_TOKEN", TOKEN)
    answers = cluster.answers(cluster.chief)
    monkeypatch.delenv("STRANGER_TOKEN")
    assert [port for port in (56126, 56127, 56128) if 0 not in answers[port]] == []


WITHOUT_THE_SECRET: dict[str, tuple[dict[str, str], str]] = {
    "a wrong secret": (
        {"SPEEDO_TOKEN": "f" * 64},
        "refused our token: copy the token file",
    ),
    "no secret": ({}, "there is no token at"),
    "a wrong secret and a careless Ray": (
        {"SPEEDO_TOKEN": "f" * 64, **CARELESS},
        "refused our token",
    ),
}


def a_worker_without_the_secret_is_refused_in_a_sentence(cluster: Cluster, what: str) -> None:
    environment, words = WITHOUT_THE_SECRET[what]
    process = cluster.speedo.start(
        *("worker", "--master", cluster.chief.address, "--timeout", "2"),
        environment=environment,
        inside=cluster.stranger.inside,
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, f"{what}: {errors}"
    told = [line for line in errors.splitlines() if line.startswith("speedo: ")]
    assert len(told) == 1, f"{what}: {errors}"
    assert words in told[0], what
    assert "Traceback" not in errors, what


def a_second_worker_command_of_a_host_takes_the_next_hundred(cluster: Cluster) -> None:
    """Ray may open more ports in the first hundred meanwhile: the scan before does not bound it."""
    process = cluster.speedo.start(
        *("worker", "--master", cluster.chief.address),
        environment={"SPEEDO_TOKEN": TOKEN},
        inside=cluster.member.inside,
    )
    wait_for_line(cluster.speedo.folder / "run" / "metrics.jsonl", '"joined","worker":1', 60)
    said = json.loads(cluster.stranger.python("tests.hosts.scan", cluster.member.address))
    second = set(said) - set(BLOCK)
    assert {56227, 56228} <= second <= set(range(56226, 56326)), sorted(second)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143


def test_other_hosts_reach_the_documented_ports_alone_and_get_nothing_there_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with network(3) as hosts, commands(tmp_path) as speedo:
        cluster = Cluster(speedo, hosts)
        other_hosts_reach_only_the_documented_block(cluster)
        each_open_port_refuses_a_stranger(cluster)
        the_stranger_would_notice_an_open_door(cluster, monkeypatch)
        for what in WITHOUT_THE_SECRET:
            a_worker_without_the_secret_is_refused_in_a_sentence(cluster, what)
        a_second_worker_command_of_a_host_takes_the_next_hundred(cluster)
        speedo.stop_all()
