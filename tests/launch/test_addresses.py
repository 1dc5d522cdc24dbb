"""Where this machine listens is not a host's to decide, nor are ssh's own settings."""

from __future__ import annotations

import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from speedo.cli.main import main
from speedo.launch import connection
from speedo.launch.cluster import HostAccess
from speedo.launch.commands import LaunchPlan, master_words
from speedo.launch.connection import Connection
from speedo.launch.hosts import RemoteHost
from speedo.launch.ssh import host_command
from speedo.storage.redis.url import PASSWORD_VARIABLE, url_with_password, without_password
from tests.support.fuzz import randoms, value

OURS = {one.address for some in psutil.net_if_addrs().values() for one in some}


def remote(hello: Any, own: str | None = None) -> RemoteHost:
    return RemoteHost(SimpleNamespace(own_address=own), hello=hello)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told", ["0.0.0.0", "::", "192.0.2.7", "224.0.0.1", "", "--help", "127.0.0.1 --redis x", None, 7, []]
)  # fmt: skip
def test_an_address_that_is_not_ours_is_not_taken_from_a_host(told: Any) -> None:
    assert remote({"launcher": told}).launcher_address is None
    assert remote({}).launcher_address is None


def test_one_of_our_addresses_is_taken_and_that_of_the_connection_before_it() -> None:
    assert remote({"launcher": "127.0.0.1"}).launcher_address == "127.0.0.1"
    assert remote({"launcher": "127.0.0.1"}, "10.1.2.3").launcher_address == "10.1.2.3"
    assert remote({}, "::ffff:10.1.2.3").launcher_address == "10.1.2.3"


@pytest.mark.parametrize("told", ["host; id", "--help", "0.0.0.0", 7])
def test_an_address_of_a_host_is_an_address(told: Any) -> None:
    assert remote({"address": told}).address is None
    assert remote({"address": "192.0.2.7"}).address == "192.0.2.7"


def test_no_greeting_chooses_another_address() -> None:
    for chance in randoms():
        hello = {"launcher": value(chance), "address": value(chance)}
        if chance.random() < 0.2:
            hello["launcher"] = ".".join(str(chance.randrange(300)) for _ in range(4))
        found = remote(hello)
        assert found.launcher_address in {None, *OURS}
        if found.address is not None:
            assert set(found.address) <= set("0123456789abcdef.:")


@pytest.mark.processes
def test_the_address_of_sshs_own_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, sys; c = socket.create_connection(('127.0.0.1', {port})); sys.stdin.read()"
        monkeypatch.setattr(connection, "host_command", lambda *_: [sys.executable, "-c", code])
        made = Connection("node1", HostAccess(), None, lambda key, values: None)
        try:
            server.settimeout(30)
            peer, (address, _) = server.accept()
            with peer:
                assert made.own_address == address == "127.0.0.1"
        finally:
            made.kill()
    end = time.monotonic() + 120
    while made.own_address is not None:
        assert time.monotonic() < end


def test_settings_of_the_users_ssh_that_would_change_the_connection_are_off() -> None:
    words = host_command("node1", HostAccess(), None)
    for option in (
        "RemoteCommand=none", "UpdateHostKeys=no", "PermitLocalCommand=no", "ForwardAgent=no", "ForwardX11=no",
        "ClearAllForwardings=yes", "Tunnel=no", "RequestTTY=no", "StrictHostKeyChecking=yes",
    ):  # fmt: skip
        assert words[words.index(option) - 1] == "-o"


# ------------------------------------------------------------ secrets on a command line


@pytest.mark.parametrize(
    ("url", "bare", "password"),
    [
        ("redis://:a%2Fb@h:6379/0", "redis://@h:6379/0", "a/b"),
        ("rediss://me:pw@h", "rediss://me@h", "pw"),
        ("redis://h:6379?password=pw&db=1", "redis://h:6379?db=1", "pw"),
        ("redis://h:6379", "redis://h:6379", ""),
    ],
)
def test_the_password_of_redis_is_taken_out_of_its_url(
    url: str, bare: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert without_password(url) == (bare, password)
    if "?" not in url and password:
        monkeypatch.setenv(PASSWORD_VARIABLE, password)
        assert url_with_password(bare) == url


def launched(monkeypatch: pytest.MonkeyPatch, *words: str) -> LaunchPlan:
    found: list[LaunchPlan] = []

    class Launcher:
        def __init__(self, plan: LaunchPlan, *_: object) -> None:
            found.append(plan)

        def run(self) -> int:
            return 0

    monkeypatch.setattr("speedo.launch.launcher.Launcher", Launcher)
    main.main(["launch", "-H", "node1:2", *words], standalone_mode=False)
    return found[0]


def test_the_password_of_redis_is_on_no_remote_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = launched(monkeypatch, "--redis", "redis://:TheSecret@h:6379")
    words = [*master_words(plan, "192.0.2.1"), *plan.doctor]
    assert words.count("redis://@h:6379") == 2
    assert "TheSecret" not in str(words) + repr(plan)
    assert plan.secrets == {PASSWORD_VARIABLE: "TheSecret"}


def test_another_secret_on_a_remote_command_line_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        launched(monkeypatch, "--weights", "https://h/w.caffemodel?sig=TheSecret")
    told = capsys.readouterr().err
    assert "weights is https:/h/w.caffemodel?sig=***: every user of the master's host" in told
    assert "TheSecret" not in told
