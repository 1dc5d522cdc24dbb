"""What a host may send: one that sends anything else is ended with the cause, and nobody else is disturbed."""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

import speedo
from speedo.launch import connection, held_ray
from speedo.launch.cluster import HostAccess
from speedo.launch.commands import LaunchPlan
from speedo.launch.connection import Connection
from speedo.launch.held_hosts import HeldHosts
from speedo.launch.held_ray import HeldRay
from speedo.launch.hosts import Command, RemoteHost, failures
from speedo.launch.launcher import Launcher
from speedo.launch.picture import HostsPicture
from speedo.launch.protocol import EventError, read_event
from speedo.launch.read_cluster import cluster_of
from speedo.version import VERSION
from speedo.watch.console import ErrorConsole

PYTHON = ".".join(map(str, sys.version_info[:2]))
HELLO: dict[str, Any] = {"hello": {"speedo": VERSION, "python": PYTHON, "pid": 4711}}
# Sends its second argument, a line a text of the list; answers every command that its end is good.
HOST = """
import json, sys
for line in json.loads(sys.argv[1]):
    sys.stdout.buffer.write(line.encode("latin-1") + b"\\n")
sys.stdout.flush()
for line in sys.stdin:
    if "start" in json.loads(line):
        role = json.loads(line)["start"]
        for event in {"ended": role, "status": 0}, {"filed": role}:
            print("\\x1e" + json.dumps(event), flush=True)
"""
GREETED = "\x1e" + json.dumps(HELLO)


def sent(values: object) -> str:
    return "\x1e" + json.dumps(values)


MALFORMED = {
    "no-json": ["\x1e{"],
    "no-utf8": ["\x1e{\"hello\": \"\xff\"}"],
    "deep": ["\x1e" + "[" * 100_000],
    "list": [sent([1])],
    "unknown": [sent({"surprise": 1})],
    "hello-text": [sent({"hello": "yes"})],
    "hello-empty": [sent({"hello": {}})],
    "hello-pid": [sent({"hello": {**HELLO["hello"], "pid": "x"}})],
    "hello-twice": [GREETED, GREETED],
    "status-text": [GREETED, sent({"ended": "doctor", "status": "bad"})],
    "status-none": [GREETED, sent({"ended": "doctor"})],
    "status-huge": [GREETED, sent({"ended": "doctor", "status": 10**30})],
    "ended-list": [GREETED, sent({"ended": ["doctor"], "status": 0})],
    "line-no-stream": [GREETED, sent({"line": "x", "of": "doctor"})],
    "line-of-list": [GREETED, sent({"line": "x", "of": [], "stream": "out"})],
    "file-no-data": [GREETED, sent({"file": "x", "of": "doctor"})],
    "file-bad-data": [GREETED, sent({"file": "x", "of": "doctor", "data": "!"})],
    "file-of-path": [GREETED, sent({"file": "x", "of": "../../x", "data": "eA=="})],
    "filed-dict": [GREETED, sent({"filed": {}})],
}  # fmt: skip


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What each host sends; those that are not named here greet, and find nothing wrong."""
    said: dict[str, list[str]] = {}

    def command(name: str, access: HostAccess, config: str | None) -> list[str]:
        return [sys.executable, "-S", "-c", HOST, json.dumps(said.get(name, [GREETED]))]

    monkeypatch.setattr(connection, "host_command", command)
    return said


@pytest.mark.processes
def test_a_malformed_event_ends_its_host_and_no_other(hosts: dict[str, list[str]]) -> None:
    hosts.update(MALFORMED)
    with speedo.Cluster(hosts=[*MALFORMED, "good"]) as cluster:
        cluster.launch_workers(len(MALFORMED) + 1)
        report = cluster.await_workers(60)
        assert [one.host for one in report.workers] == ["good"]
        causes = {one.host: one.cause for one in report.failures}
        assert causes.keys() == MALFORMED.keys()
        for name, cause in causes.items():
            told = "it greeted twice" if name == "hello-twice" else "it sent an event that SpeeDO"
            assert cause.startswith(told), (name, cause)
        began = time.monotonic()
    assert time.monotonic() - began < 10


@pytest.mark.processes
def test_what_fails_in_a_thread_ends_the_run(
    hosts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: HeldHosts, remote: object, values: Mapping[str, Any]) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(HeldHosts, "_take", fail)
    began = time.monotonic()
    with speedo.Cluster(hosts=["good"]) as cluster:
        cluster.launch_workers(1)
        with pytest.raises(MemoryError, match="no memory"):
            cluster.await_workers(60)
        with pytest.raises(MemoryError, match="no memory"):
            cluster.run("solver.prototxt")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "event",
    [{"line": "x", "of": "master", "stream": "out"}, {"ended": "worker", "status": 0}, {"filed": "server"},
     {"started": "worker", "folder": ""}, HELLO],
    ids=lambda event: next(iter(event)),
)  # fmt: skip
def test_an_event_of_a_command_that_was_not_started_ends_its_host(event: dict[str, Any]) -> None:
    rejected = []

    class Ended:
        name = key = "node1"

        def reject(self, why: str) -> None:
            rejected.append(why)

    plan = LaunchPlan(cluster_of("node1", {}), None, (), None, None, "run", None, None)
    made = Launcher(plan, HostsPicture(ErrorConsole()), print)
    made._picture.host("node1", "1 worker")
    made._remotes["node1"] = RemoteHost(Ended(), hello=HELLO["hello"])  # type: ignore[arg-type]
    made._hosts.take("node1", event)
    assert len(rejected) == 1


def test_texts_of_a_host_are_clean_and_bounded() -> None:
    text = "a\x1b]0;owned\x07\x9b31m\u202e\n\rb" + "x" * 100_000
    event = read_event(sent({"line": text, "of": "worker", "stream": "out"}).encode())
    assert event is not None
    assert event["line"].startswith(r"a\x1b]0;owned\x07\x9b31m\u202e\n\rbxxx")
    assert len(event["line"]) == 64 << 10
    hello = read_event(sent({"hello": {**HELLO["hello"], "speedo": text}}).encode())
    assert hello is not None
    assert hello["hello"]["speedo"].isprintable()
    with pytest.raises(EventError) as refused:
        read_event(sent({"hello": {text: 1}}).encode())
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("given", ["UNKNOWN", "10.0.0.1;reboot", "$(reboot)", 7, "fe80::1%\n"])
def test_an_address_in_a_greeting_that_is_none_is_left_out(given: object) -> None:
    found = read_event(sent({"hello": {**HELLO["hello"], "launcher": given}}).encode())
    assert found == HELLO
    other = {**HELLO["hello"], "launcher": "fe80::1%eth0", "address": "10.0.0.7"}
    assert read_event(sent({"hello": other}).encode()) == {"hello": other}


def test_a_command_that_was_killed_by_a_signal_without_a_name_has_words() -> None:
    assert Command(status=-40).end == "was killed by signal 40"
    assert Command(status=-9).end == "was killed by SIGKILL"


def test_of_endless_output_the_end_is_kept() -> None:
    command = Command(status=1)
    for number in range(100_000):
        command.printed(f"{number:100}")
    assert sum(map(len, command.out)) <= 1 << 20
    command.printed("[" * 100_000)
    assert failures(command) == ["`speedo doctor` ended with status 1: "]


@pytest.mark.processes
def test_the_reader_of_a_host_survives_whatever_its_events_raise(
    hosts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(line: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(connection, "read_event", fail)
    events: queue.Queue[Mapping[str, Any]] = queue.Queue()
    Connection("node1", HostAccess(), None, lambda _, values: events.put(values))
    assert "what it sends cannot be read: MemoryError()" in events.get(timeout=20)["why"]


@pytest.mark.processes
def test_a_process_that_ends_instead_of_holding_places_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = held_ray.subprocess.Popen

    def start(words: list[str], **how: Any) -> Any:
        return real([sys.executable, "-S", "-c", "pass"], **how)

    monkeypatch.setattr(held_ray.subprocess, "Popen", start)
    places = HeldRay("10.0.0.1:6379")
    places.launch(2, held_ray.Needs())
    (failure,) = places.report(20).failures
    assert failure.cause == "the process that holds its places has ended"
    assert failure.workers == 2
    places.close()
