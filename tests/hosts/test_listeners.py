"""What other hosts can reach, and what they get there without the token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.grpc_call import UNAUTHENTICATED
from tests.support.commands import Commands, commands, wait_for_line
from tests.support.network import Host, network
from tests.support.sabotaged_net import write_problem

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
        problem = str(write_problem(speedo.folder / "problem"))
        secret = {**CARELESS, "SPEEDO_TOKEN": TOKEN}
        speedo.start(
            *("master", problem, "--host", self.chief.address, "--workers", "1", *LONG),
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with network(3) as hosts, commands(tmp_path_factory.mktemp("listeners")) as speedo:
        yield Cluster(speedo, hosts)
        speedo.stop_all()


def test_other_hosts_reach_only_the_documented_block_of_a_master(cluster: Cluster) -> None:
    ports = cluster.ports(cluster.chief)
    assert {56126, 56127, 56128, 56135} <= set(ports) <= set(BLOCK), ports


def test_other_hosts_reach_only_the_documented_block_of_a_worker_host(cluster: Cluster) -> None:
    ports = cluster.ports(cluster.member)
    assert {56127, 56128} <= set(ports) <= set(BLOCK) - {56126, 56135}, ports


def test_each_open_port_refuses_a_stranger(cluster: Cluster) -> None:
    unimplemented = 12  # another service than the port's
    found = {**cluster.answers(cluster.chief), **cluster.answers(cluster.member)}
    assert len(found) >= 8
    for port, answers in found.items():
        assert answers in ([unimplemented, UNAUTHENTICATED], [401], ["-NOAUTH"]), (port, answers)


def test_the_stranger_would_notice_an_open_door(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same calls with the token are answered, so the test above can fail."""
    monkeypatch.setenv("STRANGER_TOKEN", TOKEN)
    answers = cluster.answers(cluster.chief)
    assert [port for port in (56126, 56127, 56128) if 0 not in answers[port]] == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SPEEDO_TOKEN": "f" * 64}, "refused our token: copy the token file"),
        ({}, "there is no token at"),
        ({"SPEEDO_TOKEN": "f" * 64, **CARELESS}, "refused our token"),
    ],
    ids=["wrong-secret", "no-secret", "wrong-secret-and-careless-ray"],
)
def test_a_worker_without_the_secret_is_refused_in_a_sentence(
    cluster: Cluster, environment: dict[str, str], words: str
) -> None:
    process = cluster.speedo.start(
        *("worker", "--master", cluster.chief.address, "--timeout", "2"),
        environment=environment,
        inside=cluster.stranger.inside,
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    told = [line for line in errors.splitlines() if line.startswith("speedo: ")]
    assert len(told) == 1, errors
    assert words in told[0]
    assert "Traceback" not in errors


def test_a_second_worker_command_of_a_host_takes_the_next_hundred(cluster: Cluster) -> None:
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


def test_train_listens_on_loopback_alone(tmp_path: Path) -> None:
    with network(2) as (here, there), commands(tmp_path) as speedo:
        problem = str(write_problem(tmp_path / "problem"))
        speedo.start(
            *("train", problem, "--workers", "1", *LONG), environment=CARELESS, inside=here.inside
        )
        wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":3,', 90)
        # Three of Ray's head, Redis, command, master and worker; the tester's may be still to come.
        assert len(json.loads(here.python("tests.hosts.scan", "127.0.0.1"))) >= 7
        assert json.loads(there.python("tests.hosts.scan", here.address)) == []
        speedo.stop_all()
