"""A worker whose turns overlap, alone: what it begins with, what it sends, and what becomes of its memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import PayloadError
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.transfer import fetch_vector, put_vector
from speedo.exchange.vector import Blob, Layout, Vector, as_bytes, header_for
from speedo.messages import Kind, OwnResults, Train
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.worker.turn import EngineWorker
from speedo.worker.turn_buffers import TurnBuffer, TurnBuffers

BATCH = 10


class HalfStatistics(QuadraticEngine):
    """Says that the second half of its weights are BatchNorm's."""

    def __init__(self) -> None:
        super().__init__(4, batch=BATCH, momentum=0.9)
        self._layout = Layout((Blob("w/0", (2,)), Blob("w/1", (2,), True)))

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        for blob, place in self._layout.slices():
            change(blob, place, self._weights[place])


def worker_of(
    store: Store, compression: Compression = NO_COMPRESSION, engine: QuadraticEngine | None = None
) -> EngineWorker:
    engine = engine or QuadraticEngine(4, batch=BATCH, momentum=0.9)
    worker = EngineWorker(
        "run", 0, 1, engine, store, lambda: 0.0,
        compression=compression, outgoing=store, overlap=True,
    )  # fmt: skip
    publish(worker, np.zeros(4, np.float32), 0)
    return worker


def publish(worker: EngineWorker, center: Vector, version: int) -> None:
    key, layout = keys.center("run", version), worker.engine.layout
    put_vector(worker.store, key, layout, Kind.CENTER, as_bytes(center), version=version)


def result(worker: EngineWorker, ticket: int, kind: Kind = Kind.DELTA) -> Vector:
    vector = worker.engine.layout.zeros()
    fetch_vector(worker.store, keys.payload("run", 0, ticket), worker.engine.layout, kind, vector)
    return vector


def train(ticket: int, **change: object) -> Train:
    return replace(Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA), **change)  # type: ignore[arg-type]


@pytest.fixture(params=["views", "copies"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "copies":
        return MemoryStore(clock=lambda: 0.0)
    return SharedMemoryStore(tmp_path)


def taken(buffers: TurnBuffers, most: int, within_s: float = 5.0) -> TurnBuffer | None:
    """A buffer, if there is one within this time."""
    found: list[TurnBuffer] = []
    thread = threading.Thread(target=lambda: found.append(buffers.take(most)), daemon=True)
    thread.start()
    thread.join(within_s)
    return found[0] if found else None


def test_buffers_come_back_once_nobody_needs_them() -> None:
    buffers = TurnBuffers(Layout((Blob("w/0", (4,)),)))
    first = taken(buffers, 1)
    assert first is not None
    buffers.share(first)
    buffers.give_back(first)
    buffers.give_back(first)
    assert taken(buffers, 2) is first


def test_no_more_buffers_are_made_than_are_wanted() -> None:
    buffers = TurnBuffers(Layout((Blob("w/0", (4,)),)))
    first, second = taken(buffers, 2), taken(buffers, 2)
    assert first is not None
    assert second is not None
    assert first.vector.tolist() == [0.0] * 4
    assert not np.shares_memory(first.vector, second.vector)
    assert taken(buffers, 2, 0.02) is None


@pytest.mark.parametrize("steps", [1, 3])
def test_a_turn_begins_where_the_center_will_be_with_its_own_result(
    store: Store, steps: int
) -> None:
    worker, waits = worker_of(store), QuadraticEngine(4, batch=BATCH, momentum=0.9)
    worker.turn(train(1, steps=steps))
    waits.step(steps)
    first = result(worker, 1)
    worker.turn(train(2, steps=steps, own=OwnResults(0, 1, 0.5)))
    waits.load_weights(np.float32(0.5) * first)
    expected = np.empty(4, np.float32)
    before = np.float32(0.5) * first
    waits.step(steps, expected)
    if steps > 1:
        waits.read_weights(expected)
        expected -= before
    np.testing.assert_array_equal(result(worker, 2), expected)


def test_the_time_in_the_store_counts_as_fetching_and_publishing() -> None:
    """Fetching is in two parts: 1 s before the solver is free and 2 s in its thread, where the center is loaded."""
    worker = worker_of(MemoryStore(clock=lambda: 0.0))
    times = iter([0.0, 1.0, 10.0, 12.0, 17.0, 100.0, 103.0])
    worker.clock = lambda: next(times)
    assert worker.turn(train(1)).timings == {"fetch": 3.0, "compute": 5.0, "publish": 3.0}


def test_a_worker_counts_the_samples_that_its_solver_read(store: Store) -> None:
    """The position in the data, which a checkpoint keeps, is made of them: a turn that did not train has no part."""
    worker = worker_of(store)
    assert worker.turn(train(1, steps=3)).samples == 30
    assert worker.samples == 30
    ahead = train(2, steps=2, own=OwnResults(pending=1))
    computed = worker.compute(ahead, worker.fetch(ahead))
    assert (computed().samples, worker.samples) == (20, 50)
    with pytest.raises(PayloadError):
        worker.turn(train(4, own=OwnResults(pending=3)))
    assert worker.samples == 50


def test_weights_are_pulled_a_turn_later_by_what_the_center_gained(store: Store) -> None:
    """Zhang et al. 2015, eq. 5 and 6: what the center gains by the first result the worker loses, two turns on."""
    worker, engine = worker_of(store), QuadraticEngine(4, batch=BATCH, momentum=0.9)
    worker.turn(train(1, payload=Kind.WEIGHTS))
    sent, before = result(worker, 1, Kind.WEIGHTS), np.full(4, 2.0, np.float32)
    gained = np.float32(0.25) * (sent - before)
    publish(worker, before + gained, 1)
    worker.turn(train(2, payload=Kind.WEIGHTS, moving_rate=0.0, own=OwnResults(pending=1)))
    worker.turn(train(3, payload=Kind.WEIGHTS, version=1, moving_rate=0.25, own=OwnResults(1, 2)))
    engine.step(2)
    own = engine.layout.zeros()
    engine.read_weights(own)
    np.testing.assert_array_equal(result(worker, 2, Kind.WEIGHTS), own)
    engine.load_weights(own - gained)
    engine.step(1)
    engine.read_weights(own)
    np.testing.assert_allclose(result(worker, 3, Kind.WEIGHTS), own, rtol=1e-5)


def test_a_result_that_nobody_waits_for_any_more_gives_its_memory_back(store: Store) -> None:
    worker = worker_of(store)
    for ticket in range(1, 40, 4):
        worker.turn(train(ticket, payload=Kind.WEIGHTS))
        worker.turn(
            train(ticket + 1, payload=Kind.WEIGHTS, moving_rate=0.0, own=OwnResults(pending=ticket))
        )
        with pytest.raises(PayloadError, match=f"ticket {ticket + 90}, now merged, is gone"):
            worker.turn(
                train(
                    ticket + 2, payload=Kind.WEIGHTS, moving_rate=0.3, own=OwnResults(ticket + 90)
                )
            )
        worker.turn(train(ticket + 3, payload=Kind.WEIGHTS))
    assert np.any(result(worker, 40, Kind.WEIGHTS))


def test_without_the_result_before_it_a_turn_fails_and_the_next_begins_anew(store: Store) -> None:
    worker = worker_of(store)
    worker.turn(train(1))
    for ticket in range(3, 13, 2):
        with pytest.raises(PayloadError, match=f"before it, ticket {ticket - 1}, had no result"):
            worker.turn(train(ticket, own=OwnResults(pending=ticket - 1)))
        store.write(keys.center("run", 8), *as_written(worker, 7))
        with pytest.raises(PayloadError, match="holds version 7"):
            worker.turn(train(ticket + 1, version=8))
    worker.turn(train(20))
    worker.turn(train(21, own=OwnResults(pending=20)))
    assert np.any(result(worker, 21))


def as_written(worker: EngineWorker, version: int) -> tuple[bytes, memoryview]:
    """A center of this version, head and body."""
    body = as_bytes(np.zeros(4, np.float32))
    return header_for(body, worker.engine.layout, Kind.CENTER, version=version).pack(), body


def test_statistics_of_a_compressed_result_are_added_whole(store: Store) -> None:
    """A codec sends BatchNorm's sums beside the rest, and its encoding must leave the own result as it was."""
    worker = worker_of(store, Compression("int8"), HalfStatistics())
    worker.turn(train(1))
    exact = worker_of(MemoryStore(clock=lambda: 0.0), engine=HalfStatistics())
    exact.turn(train(1))
    for one in (worker, exact):
        one.turn(train(2, own=OwnResults(pending=1)))
    found, expected = (one.engine.layout.zeros() for one in (worker, exact))
    worker.engine.read_weights(found)
    exact.engine.read_weights(expected)
    np.testing.assert_array_equal(found, expected)
