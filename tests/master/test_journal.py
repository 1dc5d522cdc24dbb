"""The journal of a master: what is read back, whatever instruction the master was killed at."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from speedo.master.journal import Journal, JournalFile, JournalInStore, entry_of, read_journals
from speedo.messages import Merge, Part
from speedo.run_dir.checkpoint_file import Counters, TrainingProgress, TurnLengths
from speedo.storage import keys
from speedo.storage.lease import MasterFence, MasterLease
from tests.support.conditional_memory import ConditionalMemory
from tests.support.disks import has_room, small_disk

PROGRESS = TrainingProgress(1, 40, 0.5, 3, 2, TurnLengths(4, 2.25, 0.5, 64))


def counters(version: int, epoch: int = 2) -> Counters:
    return Counters(
        "run", epoch, "async", version, version // 2, 8 * version, version + 1, 1.5, 99,
        {"late": 3}, PROGRESS,
    )  # fmt: skip


def merge(version: int, worker: int = 0) -> Merge:
    ticket = 10 * version + worker
    part = Part(worker, 1, ticket, 8, 2, math.nan, records=((0, 8, 16),))
    return Merge(version, version // 2, 8 * version, 0.5, (part,))


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    version = 3
    one = Journal(JournalFile(tmp_path, 2, has_room), lambda: counters(version), tests=lambda: True)
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
    assert part.records == ((0, 8, 16),)


def test_merges_are_those_since_the_version_before(tmp_path: Path) -> None:
    one = Journal(JournalFile(tmp_path, 2, has_room), lambda: counters(version))
    for version in range(1, 6):
        one.merging(merge(version))
        one.publishing()
    newest, before = read_journals(tmp_path)
    assert [entry.counters.version for entry in (newest, before)] == [5, 4]
    assert [one.version for one in newest.merges] == [5]


def test_that_of_a_former_master_stays_until_a_version_of_its_successor_is_seen(
    tmp_path: Path,
) -> None:
    former = Journal(JournalFile(tmp_path, 2, has_room), lambda: counters(7))
    former.merging(merge(7))
    former.publishing()
    one = Journal(JournalFile(tmp_path, 3, has_room), lambda: counters(8, epoch=3))
    assert [entry.counters.version for entry in read_journals(tmp_path)] == [7]
    one.publishing()
    assert [entry.counters.version for entry in read_journals(tmp_path)] == [8, 7]
    one.merging(merge(8))  # what it had published before can be fetched
    assert [entry.counters.version for entry in read_journals(tmp_path)] == [8]


def test_a_file_that_is_torn_is_not_read_and_the_other_is(tmp_path: Path) -> None:
    version = 1
    one = Journal(JournalFile(tmp_path, 2, has_room), lambda: counters(version))
    for version in (1, 2):
        one.merging(merge(version))
        one.publishing()
    file = tmp_path / "journal-2-0"
    whole = file.read_bytes()[:4096]
    length = int.from_bytes(whole[:8], "little")
    chance = random.Random(1)
    for _ in range(200):
        at = chance.randrange(16 + length)
        torn = bytearray(whole)
        torn[at] ^= 1 << chance.randrange(8)
        file.write_bytes(torn)
        assert [entry.counters.version for entry in read_journals(tmp_path)] == [2]


def test_an_entry_of_any_length_is_read_and_leaves_the_one_before_whole(tmp_path: Path) -> None:
    """Of very many workers, or of many records that are out of order. A MB was the most once."""
    records = b""
    one = Journal(
        JournalFile(tmp_path, 2, has_room), lambda: counters(version), records=lambda: records
    )
    for version in range(1, 6):
        records = bytes([48 + version]) * (700_000 * version)
        one.merging(merge(version))
        one.publishing()
        newest, *before = read_journals(tmp_path)
        assert (newest.counters.version, newest.records) == (version, records)
        assert [entry.counters.version for entry in before] == [version - 1][: version - 1]
        assert all(len(entry.records) == 700_000 * (version - 1) for entry in before)


@pytest.mark.processes
def test_if_there_is_no_room_for_an_entry_no_older_one_is_left_and_it_is_said_once(
    tmp_path: Path,
) -> None:
    """From an older entry another master would go on, as if what came after it had not been."""
    records, said = b"", list[str]()
    with small_disk(tmp_path / "memory", "4m"):
        one = Journal(
            JournalFile(tmp_path / "memory", 2, lambda error: said.append(str(error.strerror))),
            lambda: counters(version),
            records=lambda: records,
        )
        for version in range(1, 6):
            records = b"1" * (700_000 * version)
            one.merging(merge(version))
            one.publishing()
            assert bool(said) == (not read_journals(tmp_path / "memory"))
    assert said == ["No space left on device"]


def test_without_a_journal_there_is_none(tmp_path: Path) -> None:
    assert read_journals(tmp_path / "nothing") == []


def test_in_the_store_an_entry_is_seen_with_its_version_and_not_before() -> None:
    server = ConditionalMemory()
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
