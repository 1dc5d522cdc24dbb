"""Ranges cover the vector once, side by side, and none is taken for another."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest

from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.ranges import ranges_of, whole
from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.vector import Blob, Layout
from speedo.messages import Kind
from speedo.storage.memory_store import MemoryStore

LAYOUT = Layout((Blob("a/0", (4, 10)), Blob("bn/0", (20,), statistic=True), Blob("b/0", (40,))))


def test_a_hundred_values_in_three_ranges() -> None:
    ranges = ranges_of(LAYOUT, 3)
    assert [(one.place.start, one.place.stop) for one in ranges] == [(0, 32), (32, 64), (64, 100)]
    assert [one.layout.size for one in ranges] == [32, 32, 36]
    assert [one.layout.statistics for one in ranges] == [(), (slice(8, 28),), ()]
    assert len({one.layout.digest for one in ranges}) == 3
    averages = Layout((LAYOUT.blobs[0], Blob("bn/0", (20,), True, True), LAYOUT.blobs[2]))
    assert [one.layout.averages for one in ranges_of(averages, 3)] == [(), (slice(8, 28),), ()]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 431_080])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 64])
def test_ranges_cover_the_vector_without_an_empty_one(size: int, count: int) -> None:
    ranges = ranges_of(Layout((Blob("all", (size,)),)), count)
    assert len(ranges) == min(count, -(-size // 16))
    assert ranges[0].place.start == 0
    assert ranges[-1].place.stop == size
    for one, after in pairwise(ranges):
        assert one.place.stop == after.place.start
        assert one.place.stop % 16 == 0
    sizes = [one.layout.size for one in ranges]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 31


def test_one_range_is_the_whole_vector_under_its_own_digest() -> None:
    assert ranges_of(LAYOUT, 1) == (whole(LAYOUT),)
    assert whole(LAYOUT).layout.digest == LAYOUT.digest


def test_the_same_bounds_in_another_net_are_another_range() -> None:
    other = Layout((*LAYOUT.blobs[:2], Blob("c/0", (40,))))
    assert ranges_of(other, 3)[0].layout.digest != ranges_of(LAYOUT, 3)[0].layout.digest


def exchange(stores: list[MemoryStore]) -> Exchange:
    return Exchange("run", LAYOUT, [Stores(store) for store in stores])


@pytest.mark.parametrize("count", [1, 3])
def test_a_history_goes_out_in_ranges_and_comes_back_whole_for_its_version_only(count: int) -> None:
    stores = [MemoryStore() for _ in range(count)]
    flat, found = np.arange(200, dtype=np.float32), np.zeros(200, np.float32)
    with exchange(stores) as way:
        way.publish_history(7, 0, flat, 5)
        assert way.fetch_history(7, found) == 5
        np.testing.assert_array_equal(found, flat)
        with pytest.raises(MissingKeyError):
            way.fetch_history(8, found)


def test_a_vector_goes_out_in_ranges_and_comes_back_whole() -> None:
    stores = [MemoryStore() for _ in range(3)]
    vector = np.arange(100, dtype=np.float32)
    with exchange(stores) as way:
        way.publish_center(7, 0, vector)
        back = np.zeros(100, np.float32)
        way.fetch_center(7, back)
    assert back.tolist() == vector.tolist()
    assert [store.read_head("speedo:run:center:7")[1] for store in stores] == [128, 128, 144]


def test_a_payload_is_under_the_same_name_in_every_store() -> None:
    stores = [MemoryStore() for _ in range(3)]
    with exchange(stores) as way:
        bodies = way.encode(np.ones(100, np.float32), None)
        way.publish(Sender(2, 1, 5, 0, 0), Kind.DELTA, bodies)
    assert [store.keys("") for store in stores] == [["speedo:run:payload:2:5"]] * 3


def test_a_center_of_which_one_range_is_missing_or_older_is_not_there() -> None:
    stores = [MemoryStore() for _ in range(3)]
    into = np.zeros(100, np.float32)
    with exchange(stores) as way:
        way.publish_center(1, 0, into)
        way.publish_center(2, 0, into)
        head, size = stores[1].read_head("speedo:run:center:1")
        body = bytearray(size)
        stores[1].read("speedo:run:center:1", memoryview(body))
        stores[1].write("speedo:run:center:2", head, memoryview(body))
        with pytest.raises(PayloadError, match="center:2 holds version 1"):
            way.fetch_center(2, into)
        stores[1].delete("speedo:run:center:2")
        with pytest.raises(MissingKeyError):
            way.fetch_center(2, into)


def test_a_range_in_the_place_of_another_is_refused() -> None:
    stores = [MemoryStore() for _ in range(3)]
    into = np.zeros(100, np.float32)
    with exchange(stores) as way:
        way.publish_center(1, 0, into)
    with exchange([stores[1], stores[0], stores[2]]) as way, pytest.raises(PayloadError):
        way.fetch_center(1, into)


def test_a_center_that_is_about_to_be_merged_is_waited_for() -> None:
    stores = [MemoryStore() for _ in range(3)]
    vector, into = np.ones(100, np.float32), np.zeros(100, np.float32)
    patient = Exchange("run", LAYOUT, [Stores(store) for store in stores], patience_s=10.0)
    with exchange(stores) as way, patient:
        timer = threading.Timer(0.1, way.publish_center, (1, 0, vector))
        timer.start()
        patient.fetch_center(1, into)
        timer.join()
        with pytest.raises(MissingKeyError):
            way.fetch_center(2, into)
    assert into.tolist() == vector.tolist()
