"""The three threads of a worker whose turns overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import Vector, as_bytes, header_for
from speedo.messages import Kind, OwnResults, Train, Trained
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.worker import turn_pipeline
from speedo.worker.turn import EngineWorker
from speedo.worker.turn_pipeline import TurnPipeline

WAIT_S = 30.0


class HeldEngine(QuadraticEngine):
    """Steps only while `go` is set; tells in which thread."""

    def __init__(self) -> None:
        super().__init__(4, batch=5, momentum=0.9)
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.threads: set[str] = set()

    def step(self, n: int, delta: Vector | None = None) -> float:
        self.begun.set()
        self.threads.add(threading.current_thread().name)
        assert self.go.wait(WAIT_S)
        return super().step(n, delta)


@pytest.fixture
def pipeline() -> Iterator[TurnPipeline]:
    store = MemoryStore(clock=lambda: 0.0)
    engine = HeldEngine()
    worker = EngineWorker("run", 0, 1, engine, store, lambda: 0.0, outgoing=store, overlap=True)
    publish(worker, 0)
    made = TurnPipeline()
    made.worker = worker
    yield made
    engine.go.set()
    made.close()


def publish(worker: EngineWorker, version: int) -> None:
    body = as_bytes(np.zeros(4, np.float32))
    header = header_for(body, worker.engine.layout, Kind.CENTER, version=version)
    worker.store.write(keys.center("run", version), header.pack(), body)


def train(ticket: int, **change: object) -> Train:
    return replace(Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA), **change)  # type: ignore[arg-type]


def engine_of(pipeline: TurnPipeline) -> HeldEngine:
    engine = pipeline.worker.engine
    assert isinstance(engine, HeldEngine)
    return engine


def results(pipeline: TurnPipeline, *tickets: int, kind: Kind = Kind.DELTA) -> list[Vector]:
    worker, found = pipeline.worker, []
    for ticket in tickets:
        vector = worker.engine.layout.zeros()
        key = keys.payload("run", 0, ticket)
        fetch_vector(worker.store, key, worker.engine.layout, kind, vector)
        found.append(vector)
    return found


def test_turns_come_out_in_order_and_the_solver_knows_one_thread(pipeline: TurnPipeline) -> None:
    last: Future[Trained] | None = None
    for ticket in range(1, 40):
        last = pipeline.submit(train(ticket, own=OwnResults(pending=ticket - 1)))
    assert last is not None
    assert last.result(WAIT_S).ticket == 39
    assert engine_of(pipeline).threads == {"engine_0"}
    alone, center, delta = QuadraticEngine(4, batch=5, momentum=0.9), np.zeros(4, np.float32), None
    for found in results(pipeline, *range(1, 40)):
        start = center if delta is None else center + delta
        alone.load_weights(start)
        delta = np.empty(4, np.float32)
        alone.step(1, delta)
        np.testing.assert_array_equal(found, delta)


def test_elastic_turns_lose_what_the_result_two_turns_before_them_gave(
    pipeline: TurnPipeline,
) -> None:
    """Each is sent when that one has come, as the master does; the center stays at 0, so a result of x gives x / 4."""
    elastic = {"payload": Kind.WEIGHTS, "moving_rate": 0.2}
    turns = [pipeline.submit(train(1, payload=Kind.WEIGHTS))]
    turns.append(
        pipeline.submit(train(2, payload=Kind.WEIGHTS, moving_rate=0.0, own=OwnResults(pending=1)))
    )
    for ticket in range(3, 40):
        assert turns[ticket - 3].result(WAIT_S).ticket == ticket - 2
        turns.append(
            pipeline.submit(train(ticket, **elastic, own=OwnResults(ticket - 2, ticket - 1)))
        )
    turns[-1].result(WAIT_S)
    alone, sent, share = QuadraticEngine(4, batch=5, momentum=0.9), [], np.float32(0.2 / 0.8)
    alone.load_weights(np.zeros(4, np.float32))
    for found in results(pipeline, *range(1, 40), kind=Kind.WEIGHTS):
        weights = np.empty(4, np.float32)
        alone.read_weights(weights)
        if len(sent) >= 2:
            alone.load_weights(weights - share * sent[-2])
        alone.step(1)
        alone.read_weights(weights)
        np.testing.assert_array_equal(found, weights)
        sent.append(weights)


def test_a_turn_is_fetched_and_the_one_before_published_while_the_solver_is_busy(
    pipeline: TurnPipeline,
) -> None:
    worker, engine = pipeline.worker, engine_of(pipeline)
    fetched = threading.Event()
    real = worker.fetch
    worker.fetch = lambda command: (real(command), command.ticket == 3 and fetched.set())[0]  # type: ignore[method-assign]
    first = pipeline.submit(train(1))
    first.result(WAIT_S)
    engine.go.clear()
    engine.begun.clear()
    second = pipeline.submit(train(2))
    assert engine.begun.wait(WAIT_S)
    third = pipeline.submit(train(3, own=OwnResults(pending=2)))
    assert fetched.wait(WAIT_S)
    assert not second.done()
    engine.go.set()
    assert [one.result(WAIT_S).ticket for one in (second, third)] == [2, 3]


def test_a_turn_that_comes_too_early_waits_for_the_one_before_it(pipeline: TurnPipeline) -> None:
    found: list[Trained] = []
    early = threading.Thread(
        target=lambda: found.append(
            pipeline.submit(train(8, own=OwnResults(pending=7))).result(WAIT_S)
        )
    )
    early.start()
    assert pipeline.submit(train(7)).result(WAIT_S).ticket == 7
    early.join(WAIT_S)
    assert [one.ticket for one in found] == [8]


def test_one_whose_predecessor_never_comes_is_refused(
    pipeline: TurnPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_pipeline, "ORDER_S", 0.01)
    with pytest.raises(PayloadError, match="ticket 7, never came"):
        pipeline.submit(train(8, own=OwnResults(pending=7)))


def test_a_turn_that_fails_takes_the_one_behind_it_along_and_no_other(
    pipeline: TurnPipeline,
) -> None:
    for ticket in range(1, 21, 4):
        lost = pipeline.submit(train(ticket, version=99))
        behind = pipeline.submit(train(ticket + 1, own=OwnResults(pending=ticket)))
        with pytest.raises(MissingKeyError):
            lost.result(WAIT_S)
        with pytest.raises(PayloadError, match=f"ticket {ticket}, had no result"):
            behind.result(WAIT_S)
        assert pipeline.submit(train(ticket + 2)).result(WAIT_S).ticket == ticket + 2


def test_a_pipeline_that_is_closed_leaves_no_thread_of_its_own() -> None:
    before = set(threading.enumerate())
    store = MemoryStore(clock=lambda: 0.0)
    worker = EngineWorker(
        "run", 0, 1, HeldEngine(), store, lambda: 0.0, outgoing=store, overlap=True
    )
    publish(worker, 0)
    made = TurnPipeline()
    made.worker = worker
    assert made.submit(train(1)).result(WAIT_S).ticket == 1
    assert len(set(threading.enumerate()) - before) == 3
    made.close()
    assert set(threading.enumerate()) <= before
