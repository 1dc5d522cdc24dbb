"""The journal of a master: what is read back, whatever instruction the master was killed at."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from speedo.master import journal
from speedo.master.journal import Journal, JournalFile, JournalInStore, entry_of, read_journals
from speedo.messages import Merge, Part
from speedo.run_dir.checkpoint_file import Counters, Progress, TurnLengths
from speedo.storage import MemoryStore, keys
from speedo.storage.lease import MasterFence, MasterLease

PROGRESS = Progress(1, 40, 0.5, 3, 2, TurnLengths(4, 2.25, 0.5, 64))


def counters(version: int, epoch: int = 2) -> Counters:
    return Counters(
        "run", epoch, "async", version, version // 2, 8 * version, version + 1, 1.5, 99,
        {"late": 3}, PROGRESS,
    )  # fmt: skip


def merge(version: int, worker: int = 0) -> Merge:
    ticket = 10 * version + worker
    return Merge(
        version, version // 2, 8 * version, 0.5, (Part(worker, 1, ticket, 8, 2, math.nan),)
    )


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    version = 3
    one = Journal(JournalFile(tmp_path, 2), lambda: counters(version), tests=lambda: True)
    one.merging(merge(2, worker=1))
    one.merging(merge(3))
    one.publishing()
    (entry,) = read_journals(tmp_path)
    assert entry.counters == counters(3)
    assert entry.merged == {0: 30, 1: 21}
    assert entry.incarnations == {0: 1, 1: 1}
    assert (entry.whole, entry.tests) == (True, True)
    assert [one.version for one in entry.merges] == [2, 3]
    (part,) = entry.merges[0].parts
    assert (part.worker, part.ticket, part.samples, part.staleness) == (1, 21, 8, 2)
    assert math.isnan(part.loss)


def test_merges_are_those_since_the_version_before(tmp_path: Path) -> None:
    one = Journal(JournalFile(tmp_path, 2), lambda: counters(version))
    for version in range(1, 6):
        one.merging(merge(version))
        one.publishing()
    newest, before = read_journals(tmp_path)
    assert [entry.counters.version for entry in (newest, before)] == [5, 4]
    assert [one.version for one in newest.merges] == [5]


def test_that_of_a_former_master_stays_until_a_version_of_its_successor_is_seen(
    tmp_path: Path,
) -> None:
    former = Journal(JournalFile(tmp_path, 2), lambda: counters(7))
    former.merging(merge(7))
    former.publishing()
    one = Journal(JournalFile(tmp_path, 3), lambda: counters(8, epoch=3))
    assert [entry.counters.version for entry in read_journals(tmp_path)] == [7]
    one.publishing()
    assert [entry.counters.version for entry in read_journals(tmp_path)] == [8, 7]
    one.merging(merge(8))  # what it had published before can be fetched
    assert [entry.counters.version for entry in read_journals(tmp_path)] == [8]


def test_a_half_that_is_torn_is_not_read_and_the_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "HALF_BYTES", 4096)
    version = 1
    one = Journal(JournalFile(tmp_path, 2), lambda: counters(version))
    for version in (1, 2):
        one.merging(merge(version))
        one.publishing()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    chance = random.Random(1)
    for _ in range(200):
        at = chance.randrange(16 + length)
        torn = bytearray(whole)
        torn[at] ^= 1 << chance.randrange(8)
        file.write_bytes(torn)
        assert [entry.counters.version for entry in read_journals(tmp_path)] == [2]


def test_of_very_many_workers_the_counters_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "HALF_BYTES", 4096)
    one = Journal(JournalFile(tmp_path, 2), lambda: counters(1))
    parts = tuple(Part(0, 1, ticket, 8, 0, 0.5) for ticket in range(100))
    one.merging(Merge(1, 1, 800, 1.0, parts))
    one.publishing()
    (entry,) = read_journals(tmp_path)
    assert (entry.merges, entry.counters.version) == ((), 1)


def test_without_a_journal_there_is_none(tmp_path: Path) -> None:
    assert read_journals(tmp_path / "nothing") == []


def test_in_the_store_an_entry_is_seen_with_its_version_and_not_before() -> None:
    server = MemoryStore()
    fence = MasterFence(server, "run", MasterLease(server, "run").claim(least=2))
    server.guard = fence.guard
    one = Journal(JournalInStore(fence.guard), lambda: counters(version))
    for version in (1, 2):
        one.merging(merge(version))
        one.publishing()
        before = entry_of(fence.entry())
        assert (before and before.counters.version) == (version - 1 or None)
        server.write(keys.probe("run:2"), b"", memoryview(b"."))  # no version of the center
        assert entry_of(fence.entry()) == before
        server.write(keys.center("run:2", version), b"", memoryview(b"center"))
        entry = entry_of(fence.entry())
        assert entry is not None
        assert entry.counters == counters(version)
        assert [one.version for one in entry.merges] == [version]
    said = fence.entry()
    server.write(keys.center("run:2", 1), b"", memoryview(b"again"))
    assert fence.entry() == said


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"\xff", b'{"counters": 3}'])
def test_what_is_no_entry_is_none(line: bytes) -> None:
    assert entry_of(line) is None
