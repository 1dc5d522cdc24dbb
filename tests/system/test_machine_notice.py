"""Notices of the three clouds, from a service that answers as theirs do."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from speedo.system import machine_notice
from speedo.system.machine_notice import CLOUDS, has_notice, noticed
from tests.support.metadata import Metadata, serving

AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
CALM = {"aws": {}, "google": {"/computeMetadata/v1/instance/preempted": "FALSE"},
        "azure": {AZURE: '{"DocumentIncarnation": 1, "Events": [{"EventType": "Reboot"}]}'}}  # fmt: skip
LEAVES = {
    "aws": {"/latest/meta-data/spot/instance-action": '{"action": "stop", "time": "2026-01-01T00:00:00Z"}'},
    "google": {"/computeMetadata/v1/instance/preempted": "TRUE"},
    "azure": {AZURE: '{"DocumentIncarnation": 2, "Events": [{"EventType": "Preempt"}]}'},
}  # fmt: skip


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    with serving() as found:
        monkeypatch.setattr(machine_notice, "METADATA", found.address)
        monkeypatch.setattr(machine_notice, "EVERY_S", 0.02)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        yield found


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_notice_is_told_once(metadata: Metadata, cloud: str) -> None:
    metadata.pages |= CALM[cloud]
    assert not has_notice(cloud)
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    notes: list[str] = []
    with noticed(cloud, told.put, notes.append):
        while len(metadata.answered) < 8:
            assert told.empty()
        metadata.pages |= LEAVES[cloud]
        assert told.get(timeout=10) == f"a notice of {cloud}"
    assert told.empty()
    assert notes == []


def test_a_service_without_an_answer_is_told_once_and_asked_again(metadata: Metadata) -> None:
    metadata.fails = True
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    notes: list[str] = []
    with noticed(f"{metadata.address}/own", told.put, notes.append):
        while len(metadata.answered) < 5:
            pass
        metadata.pages["/own"] = "now"
        metadata.fails = False
        assert told.get(timeout=10)
    assert len(notes) == 1
    assert (
        "/own does not say whether this machine ends, and is asked again and again: HTTP Error 500"
        in notes[0]
    )
