"""What is special to shared memory: files and slots in a folder, room that may end, writers that die."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedo.errors import MissingKeyError, PayloadError, StoreUnavailableError
from speedo.storage.shared_memory.folder import SharedMemory
from speedo.storage.shared_memory.slots import Slot
from speedo.storage.shared_memory.store import SharedMemoryStore
from tests.support.commands import how_loaded


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A memory of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def put(store: SharedMemoryStore, key: str, body: bytes) -> None:
    store.write(key, b"head", memoryview(body))


def make(store: SharedMemoryStore, key: str, body: bytes) -> None:
    """Write a blob whose body is made in the store's memory."""
    memory = store.place(key, len(body))
    assert memory is not None
    memory[:] = body
    store.write(key, b"head", memory)


def get(store: SharedMemoryStore, key: str) -> bytes:
    into = bytearray(store.read_head(key)[1])
    store.read(key, memoryview(into))
    return bytes(into)


@pytest.mark.processes
def test_a_full_memory_refuses_a_blob_and_keeps_the_former_one(small: Path) -> None:
    store = SharedMemoryStore(small)
    put(store, "center", b"1" * 400_000)
    with pytest.raises(StoreUnavailableError, match=r"full .*--redis same_node=redis"):
        put(store, "center", b"2" * 700_000)
    assert get(store, "center") == b"1" * 400_000
    assert len(list(small.iterdir())) == 1
    put(store, "payload", b"3" * 500_000)


def test_before_a_body_is_shown_and_before_it_is_deleted_is_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors other than x86-64 may show another order otherwise."""
    other, shown = SharedMemoryStore(tmp_path), list[list[str]]()
    monkeypatch.setattr(
        f"{Slot.__module__}.memory_fence", lambda: lambda: shown.append(other.keys(""))
    )
    store = SharedMemoryStore(tmp_path)
    for key in ("payload:1", "payload:2"):
        shown.clear()
        make(store, key, b"body")
        assert shown == [[], []]  # before the body is made, and before it is shown
        other.delete(key)
        assert shown == [[], [], [key]]
        assert other.keys("") == []
    assert len(list(tmp_path.iterdir())) == 1


def test_a_blob_of_many_megabytes_arrives_whole(tmp_path: Path) -> None:
    body = os.urandom(9_000_001)
    store = SharedMemoryStore(tmp_path)
    put(store, "k", body)
    assert get(store, "k") == body


@pytest.mark.parametrize("damage", [b"", b"x", b"nothing of ours" * 10])
def test_a_foreign_file_is_refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "k").write_bytes(damage)
    with pytest.raises(PayloadError, match=r"/k is damaged"):
        SharedMemoryStore(tmp_path).read("k", memoryview(bytearray(3)))


@pytest.mark.parametrize("damage", [b"", b"x", b"nothing of ours" * 10_000])
def test_a_foreign_file_in_the_place_of_a_slot_is_not_looked_at(
    tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / ".slot@k@0").write_bytes(damage)
    store = SharedMemoryStore(tmp_path)
    with pytest.raises(MissingKeyError):
        store.view("k", 100_000)
    assert store.keys("") == []


def test_a_cut_blob_is_refused(tmp_path: Path) -> None:
    store = SharedMemoryStore(tmp_path)
    put(store, "k", b"x" * 1000)
    os.truncate(tmp_path / "k", 500)
    with pytest.raises(PayloadError, match=r"damaged.*500 bytes"):
        store.read("k", memoryview(bytearray(1000)))


def slots(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.iterdir() if path.name.startswith(".slot@")}


def test_the_slot_of_a_deleted_blob_is_used_again_for_its_kind(tmp_path: Path) -> None:
    store, other, size = SharedMemoryStore(tmp_path), SharedMemoryStore(tmp_path), 100_000
    make(store, "k:1", b"1" * size)
    first = slots(tmp_path)
    other.delete("k:1")
    assert store.keys("") == other.keys("") == []
    with pytest.raises(MissingKeyError):
        store.read_head("k:1")
    make(store, "k:2", b"2" * size)
    assert slots(tmp_path) == first
    make(store, "k:3", b"3" * size)
    make(store, "other:2", b"o" * size)
    assert len(slots(tmp_path)) == 3
    assert get(other, "k:2") == b"2" * size
    for number in range(4, 24):
        other.delete(f"k:{number - 1}")
        make(store, f"k:{number}", bytes([number]) * size)
    assert len(slots(tmp_path)) == 3
    assert get(other, "k:23") == bytes([23]) * size


def test_who_deletes_late_deletes_only_what_it_found(tmp_path: Path) -> None:
    """Two that delete may be stopped at any instruction."""
    store, one, other = (SharedMemoryStore(tmp_path) for _ in range(3))
    make(store, "k:1", b"1" * 100_000)
    late = [reader._found("k:1") for reader in (one, other)]
    one.delete("k:1")
    for found in late:
        found.delete()
        assert store.keys("") == []
    make(store, "k:2", b"2" * 100_000)
    for found in late:
        found.delete()
        assert get(other, "k:2") == b"2" * 100_000
    assert len(slots(tmp_path)) == 1


def test_a_slot_of_another_size_is_not_used(tmp_path: Path) -> None:
    store = SharedMemoryStore(tmp_path)
    make(store, "k:1", b"1" * 200_000)
    store.delete("k:1")
    make(store, "k:2", b"2" * 100_000)
    assert get(store, "k:2") == b"2" * 100_000
    assert len(slots(tmp_path)) == 1


def test_what_has_expired_unread_is_never_written_over(tmp_path: Path) -> None:
    """Somebody may still look at it."""
    now = [10.0]
    store, reader = (SharedMemoryStore(tmp_path, clock=lambda: now[0]) for _ in range(2))
    memory = store.place("k:1", 100_000)
    assert memory is not None
    memory[:] = b"1" * 100_000
    store.write("k:1", b"", memory, expire_s=5.0)
    view = reader.view("k:1", 100_000)
    assert view is not None
    now[0] = 20.0
    with pytest.raises(MissingKeyError):
        reader.view("k:1", 100_000)
    make(store, "k:2", b"2" * 100_000)
    view.check()
    assert view.body == b"1" * 100_000
    assert len(slots(tmp_path)) == 1


@pytest.mark.parametrize("way", ["place", "copy"])
@pytest.mark.parametrize("other", [False, True])
def test_a_blob_that_is_written_again_is_found_in_its_new_form_alone(
    tmp_path: Path, way: str, other: bool
) -> None:
    store, reader = SharedMemoryStore(tmp_path), SharedMemoryStore(tmp_path)
    first, second = (make, put) if way == "copy" else (put, make)
    first(store, "k:1", b"1" * 100_000)
    assert get(reader, "k:1") == b"1" * 100_000
    second(reader if other else store, "k:1", b"2" * 100_000)
    assert get(store, "k:1") == get(reader, "k:1") == b"2" * 100_000
    store.delete("k:1")
    assert store.keys("") == reader.keys("") == []


def test_a_body_is_made_and_looked_at_where_it_lies(tmp_path: Path) -> None:
    size = 100_000
    writer, reader = SharedMemoryStore(tmp_path), SharedMemoryStore(tmp_path)
    for number in range(10):
        memory = writer.place(f"k:{number}", size)
        assert memory is not None
        memory[:] = bytes([number]) * size
        assert writer.keys("") == [], "it is there before it was written"
        writer.write(f"k:{number}", b"head", memory)
        view = reader.view(f"k:{number}", size)
        assert view is not None
        assert (view.head, view.body) == (b"head", bytes([number]) * size)
        assert view.body.readonly
        view.check()
        (writer if number % 2 else reader).delete(f"k:{number}")
        with pytest.raises(MissingKeyError, match="while it was read"):
            view.check()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_body_that_was_written_is_copied_when_it_is_written_again(tmp_path: Path) -> None:
    """Its memory is that of the first blob then, and not of the second."""
    store = SharedMemoryStore(tmp_path)
    memory = store.place("k:1", 100_000)
    assert memory is not None
    memory[:] = b"1" * 100_000
    store.write("k:1", b"", memory)
    store.write("k:2", b"", memory)
    assert get(store, "k:1") == get(store, "k:2") == b"1" * 100_000


def test_memory_that_was_not_used_is_given_back(tmp_path: Path) -> None:
    store = SharedMemoryStore(tmp_path)
    first = store.place("k:1", 100_000)
    assert first is not None
    first[:5] = b"first"
    put(store, "other:1", b"o" * 100_000)
    again = store.place("k:2", 100_000)
    assert again is not None
    assert bytes(again[:5]) == b"first", "its kind and size are the same"
    assert len(slots(tmp_path)) == 1
    put(store, "k:3", b"3" * 100_000)
    assert get(store, "k:3") == b"3" * 100_000
    store.close()
    assert {path.name for path in tmp_path.iterdir()} == {"k:3", "other:1"}


def test_an_empty_slot_of_a_living_writer_stays_when_others_sweep(tmp_path: Path) -> None:
    store, other = SharedMemoryStore(tmp_path), SharedMemoryStore(tmp_path)
    memory = store.place("k:1", 100_000)
    assert memory is not None
    make(other, "k:2", b"2" * 100_000)
    assert other.keys("") == ["k:2"]
    memory[:] = b"1" * 100_000
    store.write("k:1", b"", memory)
    assert get(other, "k:1") == b"1" * 100_000


@pytest.mark.processes
def test_slots_of_killed_writers_go_once_nothing_is_in_them(tmp_path: Path) -> None:
    """A worker has its slot from the beginning of its steps on."""
    code = (
        "import os, pathlib, sys; from speedo.storage.shared_memory.store import SharedMemoryStore\n"
        "store = SharedMemoryStore(pathlib.Path(sys.argv[1]))\n"
        "memory = store.place('k:1', 100_000)\n"
        "if sys.argv[2] == 'written': store.write('k:1', b'', memory)\n"
        "os.kill(os.getpid(), 9)"
    )
    for state in ("placed", "placed", "written"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path), state], check=False)
        assert len(list(tmp_path.iterdir())) == 1
    store = SharedMemoryStore(tmp_path)
    make(store, "k:2", b"2" * 100_000)
    assert get(store, "k:1") == bytes(100_000)
    store.delete("k:1")
    assert store.keys("") == ["k:2"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.processes
def test_no_memory_is_lent_where_there_is_no_room(small: Path) -> None:
    with closing(SharedMemoryStore(small)) as store:
        assert store.place("k:1", 1_100_000) is None
        assert store.place("k:1", 900_000) is not None


def test_a_reader_whose_slot_is_taken_for_another_blob_notices(tmp_path: Path) -> None:
    size = 200_000
    writer, reader = SharedMemoryStore(tmp_path), SharedMemoryStore(tmp_path)
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            make(writer, "k", bytes([number % 251]) * size)
            if not number % 4:
                time.sleep(0.001)  # a reader on a busy machine finds it, too
            writer.delete("k")

    thread = threading.Thread(target=write)
    thread.start()
    whole = missing = 0
    into = bytearray(size)
    end = time.monotonic() + 60
    while (whole < 200 or missing < 20) and time.monotonic() < end:
        try:
            reader.read("k", memoryview(into))
        except MissingKeyError:
            missing += 1
        else:
            assert into == into[:1] * size
            whole += 1
    stop.set()
    thread.join()
    assert whole >= 200
    assert missing >= 20


@pytest.mark.processes
def test_empty_slots_go_when_there_is_no_room(small: Path) -> None:
    with closing(SharedMemoryStore(small)) as store:
        make(store, "k:1", b"1" * 600_000)
        store.delete("k:1")
        put(store, "other:2", b"2" * 700_000)
        assert get(store, "other:2") == b"2" * 700_000
        store.delete("other:2")
        make(store, "k:3", b"3" * 600_000)
        store.delete("k:3")
        make(store, "third:4", b"4" * 700_000)
        assert get(store, "third:4") == b"4" * 700_000


def test_a_reader_that_began_reads_on_after_the_blob_was_replaced(tmp_path: Path) -> None:
    store = SharedMemoryStore(tmp_path)
    put(store, "k", b"1" * 1000)
    with (tmp_path / "k").open("rb") as begun:
        put(store, "k", b"2" * 1000)
        assert begun.read().endswith(b"1" * 1000)


@pytest.mark.processes
def test_files_are_for_their_user_alone(tmp_path: Path) -> None:
    with SharedMemory(1, tmp_path) as memory:
        assert memory.path is not None
        put(SharedMemoryStore(memory.path), "k", b"body")
        assert memory.path.stat().st_mode & 0o777 == 0o700
        assert (memory.path / "k").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_the_folder_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from speedo.storage.shared_memory.folder import SharedMemory\n"
        "with SharedMemory(1, pathlib.Path(sys.argv[1])) as memory: os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    deadline = time.monotonic() + 10 * how_loaded()
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_folder_is_made_where_there_is_no_room(tmp_path: Path) -> None:
    with SharedMemory(1 << 60, tmp_path) as memory:
        assert memory.path is None
    with SharedMemory(1, tmp_path / "missing") as memory:
        assert memory.path is None


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    store = SharedMemoryStore(tmp_path / "gone")
    with pytest.raises(StoreUnavailableError, match="gone"):
        put(store, "k", b"")
    with pytest.raises(StoreUnavailableError, match="gone"):
        store.ping()
    with pytest.raises(MissingKeyError):
        store.read_head("k")


@pytest.mark.processes
def test_what_expired_and_what_dead_writers_left_is_swept(tmp_path: Path) -> None:
    now = [10.0]
    store = SharedMemoryStore(tmp_path, clock=lambda: now[0])
    store.write("old", b"", memoryview(b"x"), expire_s=5.0)
    put(store, "stays", b"x")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".{ended.pid}.1").write_bytes(b"half")
    (tmp_path / f".{os.getpid()}.1").write_bytes(b"half, and going on")
    now[0] = 20.0
    assert store.keys("") == ["stays"]
    assert {one.name for one in tmp_path.iterdir()} == {"stays", f".{os.getpid()}.1"}
