"""What every store promises; `RedisStore` is tried on a real server, over TCP and a unix socket."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedo.errors import MissingKeyError, PayloadError, StoreError
from speedo.storage.base import Store
from speedo.storage.keys import MAX_HEAD_BYTES
from speedo.storage.memory_store import MemoryStore
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import RetryingStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.storage.tiered_store import TieredStore
from tests.storage.conftest import RawClient

CHUNK = 64
_numbers = itertools.count()


@dataclass
class Bench:
    """A store under test, another user of the same blobs, and its time."""

    store: Store
    other: Store
    sleep: Callable[[float], None]
    key: str = field(default_factory=lambda: f"speedo:test{next(_numbers)}:")


@pytest.fixture(
    params=[
        "memory",
        "patient-memory",
        "shared-memory",
        "near-first",
        pytest.param("patient-redis", marks=pytest.mark.redis),
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("redis-unix", marks=pytest.mark.redis),
    ]
)
def bench(request):
    if request.param.endswith("memory"):
        now = [100.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        store: Store = MemoryStore(clock=lambda: now[0])
        if request.param == "patient-memory":
            store = RetryingStore(store, patience_s=1.0)
        if request.param == "shared-memory":
            folder = request.getfixturevalue("tmp_path")
            store = SharedMemoryStore(folder, clock=lambda: now[0])
            yield Bench(store, SharedMemoryStore(folder, clock=lambda: now[0]), sleep)
            return
        yield Bench(store, store, sleep)
        return
    if request.param == "near-first":
        folder, far = request.getfixturevalue("tmp_path"), MemoryStore()
        stores = (TieredStore(SharedMemoryStore(folder), far) for _ in range(2))
        yield Bench(*stores, time.sleep)
        assert far.keys("") == []
        return
    server = request.getfixturevalue("server")
    url = server.unix_url if request.param == "redis-unix" else server.url
    store, other = (RedisStore(url, chunk_bytes=CHUNK) for _ in range(2))
    if request.param == "patient-redis":
        store = RetryingStore(store, patience_s=1.0)
    yield Bench(store, other, time.sleep)
    store.delete(*store.keys("speedo:"))
    behind = RawClient(server).redis
    left = behind.keys("*")
    behind.flushall()
    store.close()
    other.close()
    assert left == [], "a test left chunks behind"


def put(store: Store, key: str, head: bytes, body: bytes, expire_s: float | None = None) -> None:
    store.write(key, head, memoryview(body), expire_s=expire_s)


def get(store: Store, key: str) -> tuple[bytes, bytes]:
    _, size = store.read_head(key)
    into = bytearray(size)
    return store.read(key, memoryview(into)), bytes(into)


SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 3, 40_000, 300 * CHUNK, 1 << 17]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_read_is_what_was_written(bench: Bench, size: int):
    body = bytes(i * 7 % 251 for i in range(size))
    put(bench.store, bench.key, b"head", body)
    assert bench.store.read_head(bench.key) == (b"head", size)
    assert get(bench.store, bench.key) == (b"head", body)


@pytest.mark.parametrize("size", [0, 1000, 700_000])
def test_what_is_told_to_have_arrived_is_in_place(bench: Bench, size: int):
    body, into = bytes(range(1, 251)) * (size // 250), bytearray(size)
    bench.store.write(bench.key, b"head", memoryview(body))
    told: list[int] = []

    def arrived(upto: int) -> None:
        told.append(upto)
        assert into[:upto] == body[:upto]

    assert bench.other.read(bench.key, memoryview(into), arrived) == b"head"
    assert into == body
    assert told == sorted(told)
    assert all(upto <= size for upto in told)


@pytest.mark.parametrize("size", [0, 1000, 1 << 17])
def test_a_body_may_be_made_in_memory_of_the_store_and_looked_at_there(bench: Bench, size: int):
    body = bytes(i * 7 % 251 for i in range(size))
    for number in range(3):
        key = f"{bench.key}{number}"
        memory = bench.store.place(key, size)
        if memory is None:
            memory = memoryview(bytearray(size))
        memory[:] = body
        bench.store.write(key, b"head", memory)
        view = bench.other.view(key, size)
        if view is not None:
            assert (view.head, bytes(view.body)) == (b"head", body)
            view.check()
        assert get(bench.other, key) == (b"head", body)
        bench.store.delete(key)


def test_a_look_at_nothing_finds_nothing(bench: Bench):
    with contextlib.suppress(MissingKeyError):
        assert bench.store.view(bench.key, 1 << 17) is None


def test_any_bytes_may_be_in_head_and_body(bench: Bench):
    every = bytes(range(256)) + b"\r\n$-1\r\n-ERR no\r\n"
    put(bench.store, bench.key, every, every[::-1])
    assert get(bench.store, bench.key) == (every, every[::-1])


@pytest.mark.parametrize("size", [0, MAX_HEAD_BYTES])
def test_a_head_may_have_up_to_4096_bytes(bench: Bench, size: int):
    put(bench.store, bench.key, b"h" * size, b"body" * 100)
    assert get(bench.store, bench.key) == (b"h" * size, b"body" * 100)


def test_a_longer_head_is_refused_and_nothing_is_written(bench: Bench):
    with pytest.raises(PayloadError, match="at most 4096 bytes, this one 4097"):
        put(bench.store, bench.key, b"h" * 4097, b"body")
    assert bench.store.keys(bench.key) == []


@pytest.mark.parametrize("key", ["", "speedo:a#b"])
def test_a_key_that_could_be_part_of_another_is_refused(bench: Bench, key: str):
    with pytest.raises(StoreError, match="cannot be a key"):
        put(bench.store, key, b"", b"")


@pytest.mark.parametrize(("first", "second"), [(10, 5), (10, 500), (500, 10), (500, 500)])
def test_overwriting_replaces_head_and_body(bench: Bench, first: int, second: int):
    put(bench.store, bench.key, b"one", b"1" * first)
    put(bench.store, bench.key, b"second", b"2" * second)
    assert get(bench.store, bench.key) == (b"second", b"2" * second)


def test_a_missing_key_is_told_with_the_store(bench: Bench):
    for call in (
        lambda: bench.store.read_head(bench.key),
        lambda: bench.store.read(bench.key, memoryview(bytearray(3))),
    ):
        with pytest.raises(MissingKeyError, match=bench.key) as caught:
            call()
        assert bench.store.address in str(caught.value)


@pytest.mark.parametrize("size", [10, 500])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_buffer_of_another_length_is_refused_untouched(bench: Bench, size: int, wrong: int):
    put(bench.store, bench.key, b"head", b"x" * size)
    into = bytearray(b"." * (size + wrong))
    with pytest.raises(PayloadError, match=f"{size} bytes, {size + wrong} were expected"):
        bench.store.read(bench.key, memoryview(into))
    assert into == b"." * (size + wrong)
    assert get(bench.store, bench.key) == (b"head", b"x" * size)


@pytest.mark.parametrize("size", [10, 500])
def test_a_blob_expires_as_a_whole(bench: Bench, size: int):
    put(bench.store, bench.key, b"head", b"x" * size, expire_s=0.15)
    assert get(bench.store, bench.key) == (b"head", b"x" * size)
    bench.sleep(0.2)
    with pytest.raises(MissingKeyError):
        bench.store.read_head(bench.key)
    with pytest.raises(MissingKeyError):
        bench.store.read(bench.key, memoryview(bytearray(size)))
    assert bench.store.keys(bench.key) == []
    put(bench.store, bench.key, b"again", b"y")
    assert get(bench.store, bench.key) == (b"again", b"y")


@pytest.mark.parametrize("size", [10, 500])
def test_overwriting_without_expiry_keeps_the_blob(bench: Bench, size: int):
    put(bench.store, bench.key, b"one", b"1" * size, expire_s=0.1)
    put(bench.store, bench.key, b"two", b"2" * size)
    bench.sleep(0.15)
    assert get(bench.store, bench.key) == (b"two", b"2" * size)


def test_deleting_removes_many_and_minds_no_missing_one(bench: Bench):
    names = [f"{bench.key}{i}" for i in range(30)]
    for i, name in enumerate(names):
        put(bench.store, name, b"", b"x" * i * 10)
    bench.store.delete()
    bench.store.delete(*names[:20], f"{bench.key}never")
    assert bench.store.keys(bench.key) == sorted(names[20:])


def test_keys_are_those_with_the_prefix_taken_literally(bench: Bench):
    for name in ("a*b:2", "a*b:1", "axb:1", "a*b", "[x]:1"):
        put(bench.store, bench.key + name, b"", b"x" * 200)
    assert bench.store.keys(f"{bench.key}a*b:") == [f"{bench.key}a*b:1", f"{bench.key}a*b:2"]
    assert bench.store.keys(f"{bench.key}[x]") == [f"{bench.key}[x]:1"]
    assert bench.store.keys(f"{bench.key}nothing") == []


def test_two_users_see_what_the_other_writes(bench: Bench):
    put(bench.store, bench.key, b"one", b"1" * 500)
    assert get(bench.other, bench.key) == (b"one", b"1" * 500)
    put(bench.other, bench.key, b"two", b"2" * 100)
    assert get(bench.store, bench.key) == (b"two", b"2" * 100)
    bench.other.delete(bench.key)
    with pytest.raises(MissingKeyError):
        bench.store.read_head(bench.key)


def test_later_changes_of_the_writers_memory_do_not_reach_the_blob(bench: Bench):
    body = bytearray(b"x" * 200)
    bench.store.write(bench.key, b"", memoryview(body))
    body[:] = b"y" * 200
    assert get(bench.store, bench.key) == (b"", b"x" * 200)


@pytest.mark.slow
def test_a_reader_never_sees_parts_of_two_writes(bench: Bench):
    sizes = 20 * CHUNK
    stop = threading.Event()

    def overwrite() -> None:
        for i in itertools.cycle(range(10)):
            put(bench.other, bench.key, b"%d" % i, b"%d" % i * sizes)
            if stop.is_set():
                return

    put(bench.store, bench.key, b"0", b"0" * sizes)
    writer = threading.Thread(target=overwrite, daemon=True)
    writer.start()
    whole = 0
    into = bytearray(sizes)
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        with contextlib.suppress(MissingKeyError):
            head = bench.store.read(bench.key, memoryview(into))
            assert bytes(into) == head * sizes
            whole += 1
    stop.set()
    writer.join(10)
    assert not writer.is_alive()
    assert whole > 0


def test_ping_and_closing_twice(bench: Bench):
    bench.store.ping()
    put(bench.store, bench.key, b"", b"stays")
    bench.store.close()
    bench.store.close()
    assert get(bench.store, bench.key) == (b"", b"stays")


_names = st.sampled_from(["a", "b", "ab", "a:b"])
_operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _names, st.binary(max_size=20), st.binary(max_size=300)),
        st.tuples(st.just("read"), _names),
        st.tuples(st.just("delete"), st.lists(_names, max_size=3)),
        st.tuples(st.just("keys"), st.sampled_from(["", "a", "ab", "b"])),
    ),
    max_size=30,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(_operations)
def test_any_sequence_of_calls_does_what_a_dictionary_does(bench: Bench, operations):
    base = f"{bench.key}{next(_numbers)}:"
    model: dict[str, tuple[bytes, bytes]] = {}
    for name, *arguments in operations:
        if name == "write":
            key, head, body = arguments
            put(bench.store, base + key, head, body)
            model[base + key] = (head, body)
        elif name == "delete":
            keys = [base + key for key in arguments[0]]
            bench.store.delete(*keys)
            for key in keys:
                model.pop(key, None)
        elif name == "keys":
            prefix = base + arguments[0]
            assert bench.store.keys(prefix) == sorted(k for k in model if k.startswith(prefix))
        elif base + arguments[0] in model:
            assert get(bench.store, base + arguments[0]) == model[base + arguments[0]]
        else:
            with pytest.raises(MissingKeyError):
                bench.store.read_head(base + arguments[0])
