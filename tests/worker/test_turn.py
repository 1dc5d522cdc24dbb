"""One turn of a worker: what it fetches, computes and publishes, on the exact toy problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.codecs import NO_COMPRESSION, Compression, make_codec
from speedo.exchange.served_vectors import PAYLOAD_EXPIRY_S
from speedo.exchange.transfer import fetch_vector, put_vector
from speedo.exchange.vector import Blob, Header, Vector, as_bytes, header_for
from speedo.messages import Kind, Train
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.worker.turn import EngineWorker
from tests.support.errors import refused

BATCH = 5


class RecordingEngine(QuadraticEngine):
    """Writes down for which iteration it was asked for how many steps."""

    def stand_still(self) -> None:
        self._lr = np.float32(0.0)

    def __init__(self) -> None:
        super().__init__(4, batch=BATCH)
        self.iteration = 0
        self.asked: list[tuple[int, int]] = []

    def set_iteration(self, iteration: int) -> None:
        self.iteration = iteration

    def step(self, n: int, delta: Vector | None = None) -> float:
        self.asked.append((self.iteration, n))
        self.iteration += n
        return super().step(n, delta)


class Clock:
    """A second passes at every look, unless it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def make_worker(
    center: Vector | None = None, version: int = 0, compression: Compression = NO_COMPRESSION
) -> tuple[EngineWorker, RecordingEngine]:
    engine = RecordingEngine()
    clock = Clock()
    store = MemoryStore(clock=clock)
    worker = EngineWorker("run", 3, 2, engine, store, clock, epoch=4, compression=compression)
    publish(worker, np.zeros(4, np.float32) if center is None else center, version)
    return worker, engine


def publish(worker: EngineWorker, center: Vector, version: int) -> None:
    key, layout = keys.center("run", version), worker.engine.layout
    put_vector(worker.store, key, layout, Kind.CENTER, as_bytes(center), version=version, epoch=4)


def command(payload: Kind = Kind.DELTA, **change: object) -> Train:
    fields: Mapping[str, object] = {
        "worker": 3, "incarnation": 2, "ticket": 9, "version": 0, "samples": 6, "steps": 1,
        "stride": 1, "payload": payload,
    }  # fmt: skip
    return Train(**{**fields, **change})  # type: ignore[arg-type]


def payload(worker: EngineWorker, kind: Kind) -> tuple[Header, Vector]:
    layout = worker.engine.layout
    vector, codec = layout.zeros(), make_codec(worker.compression.payload, layout)
    key = keys.payload("run", 3, 9)
    return fetch_vector(worker.store, key, layout, kind, vector, codec), vector


def weights(engine: QuadraticEngine) -> Vector:
    found = engine.layout.zeros()
    engine.read_weights(found)
    return found


def test_a_turn_sends_how_far_it_moved_and_says_who_it_is() -> None:
    worker, engine = make_worker()
    result = worker.turn(command(steps=3))
    header, delta = payload(worker, Kind.DELTA)
    assert (header.worker, header.incarnation, header.ticket, header.epoch) == (3, 2, 9, 4)
    np.testing.assert_allclose(delta, weights(engine), rtol=1e-6)
    assert (result.worker, result.incarnation, result.ticket) == (3, 2, 9)
    assert result.samples == 3 * BATCH
    assert result.timings == {"fetch": 2.0, "compute": 1.0, "publish": 2.0}  # the store looks, too


def test_a_turn_trains_on_the_records_of_its_command_and_says_which() -> None:
    worker, engine = make_worker()
    given = ((0, 37, 40), (1, 0, 7))
    assert worker.turn(command(steps=2, records=given)).records == given
    assert engine.read_records == [37, 38, 39, *range(7)]
    # It ends after the first step, so the last five records are untrained.
    early = worker.turn(command(steps=2, records=given, norm=1e-9))
    assert (early.samples, early.records) == (5, ((0, 37, 40), (1, 0, 2)))


def test_a_turn_starts_from_the_center_whatever_came_before() -> None:
    worker, _ = make_worker()
    worker.turn(command(steps=20))
    _, far = payload(worker, Kind.DELTA)
    publish(worker, np.full(4, 7.0, np.float32), 1)
    worker.turn(command(version=1))
    _, near = payload(worker, Kind.DELTA)
    alone, _ = make_worker(np.full(4, 7.0, np.float32))
    alone.turn(command())
    np.testing.assert_array_equal(near, payload(alone, Kind.DELTA)[1])
    assert np.abs(far).max() > 0


def test_weights_are_sent_whole_where_they_are_wanted() -> None:
    worker, engine = make_worker()
    worker.turn(command(Kind.WEIGHTS))
    np.testing.assert_array_equal(payload(worker, Kind.WEIGHTS)[1], weights(engine))


def test_with_a_moving_rate_the_worker_goes_on_from_its_own_weights() -> None:
    """x_w = 2 sent, alpha 0.5: the center moved from 0 to 1, and so does x_w, to 1."""
    worker, engine = make_worker()
    engine.load_weights(np.full(4, 2.0, np.float32))
    publish(worker, np.full(4, 1.0, np.float32), 1)
    expected = QuadraticEngine(4, batch=BATCH)
    expected.load_weights(np.full(4, 1.0, np.float32))
    expected.step(1)
    worker.turn(command(Kind.WEIGHTS, version=1, moving_rate=0.5))
    np.testing.assert_allclose(payload(worker, Kind.WEIGHTS)[1], weights(expected), rtol=1e-6)


class EngineWithStatistics(RecordingEngine):
    """Says that the second half of its weights are BatchNorm's."""

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        for number, statistic in enumerate((False, True)):
            place = slice(2 * number, 2 * number + 2)
            change(Blob(f"w/{number}", (2,), statistic), place, self._weights[place])


def test_the_pull_leaves_statistics_alone() -> None:
    """x_w = 2, alpha 0.5, center after the merge 1: the weights go to 1, the statistics stay at 2."""
    worker, _ = make_worker()
    worker.weights = engine = EngineWithStatistics()
    engine.stand_still()
    engine.load_weights(np.full(4, 2.0, np.float32))
    publish(worker, np.full(4, 1.0, np.float32), 1)
    worker.turn(command(Kind.WEIGHTS, version=1, moving_rate=0.5))
    assert payload(worker, Kind.WEIGHTS)[1].tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rate"), [(Kind.DELTA, None), (Kind.WEIGHTS, 0.3), (Kind.GRADIENT, None)]
)
def test_in_shared_memory_a_turn_makes_the_same_payload(
    tmp_path: Path, kind: Kind, rate: float | None
) -> None:
    size, bodies = 30_000, []
    start = np.random.default_rng(5).standard_normal(size).astype(np.float32)
    for store in (MemoryStore(), SharedMemoryStore(tmp_path)):
        engine = QuadraticEngine(size, batch=BATCH, momentum=0.9, noise=1.0)
        worker = EngineWorker("run", 3, 2, engine, store, Clock(), epoch=4)
        for ticket in range(4):
            publish(worker, start * ticket, ticket)
            fields = {"version": ticket, "ticket": ticket, "steps": 2, "stride": 3}
            worker.turn(command(kind, moving_rate=rate, **fields))
        found = engine.layout.zeros()
        key = keys.payload("run", 3, 3)
        fetch_vector(store, key, engine.layout, kind, found)
        bodies.append(found.tobytes())
    assert bodies[0] == bodies[1]


def test_a_turn_whose_center_is_taken_away_meanwhile_is_refused(tmp_path: Path) -> None:
    """The slot of the center is used for another one while the worker looks at it."""

    class Slow(QuadraticEngine):
        def load_weights(self, vector: Vector) -> None:
            super().load_weights(vector)
            master.store.delete(keys.center("run", 0))
            publish(master, np.zeros(30_000, np.float32), 9)

    worker, master = (
        EngineWorker("run", 3, 2, Slow(30_000), SharedMemoryStore(tmp_path), Clock(), epoch=4)
        for _ in range(2)
    )
    publish(master, np.ones(30_000, np.float32), 0)
    with pytest.raises(MissingKeyError, match="while it was read"):
        worker.turn(command())


def test_a_gradient_is_taken_at_the_center_and_moves_nothing() -> None:
    worker, engine = make_worker()
    worker.turn(command(Kind.GRADIENT))
    _, gradient = payload(worker, Kind.GRADIENT)
    assert weights(engine).tolist() == [0.0] * 4
    engine.apply_gradient(gradient)
    stepped, moved = make_worker()
    stepped.turn(command())
    np.testing.assert_allclose(weights(engine), weights(moved), rtol=1e-6)


@pytest.mark.parametrize(
    ("steps", "stride", "asked"),
    [
        (1, 1, [(6, 1)]),
        (4, 1, [(6, 1), (7, 1), (8, 1), (9, 1)]),
        (1, 3, [(6, 1)]),
        (4, 3, [(6, 1), (9, 1), (12, 1), (15, 1)]),
        (2, 2, [(6, 1), (8, 1)]),
    ],
)
def test_each_step_belongs_to_its_iteration(
    steps: int, stride: int, asked: list[tuple[int, int]]
) -> None:
    worker, engine = make_worker()
    worker.turn(command(steps=steps, stride=stride))
    assert engine.asked == asked


def test_a_step_that_is_part_of_an_iteration_moves_the_learning_rate_by_that_part() -> None:
    worker, engine = make_worker()
    worker.turn(command(steps=5, samples=13, stride=1, batch=2))
    assert [iteration for iteration, _ in engine.asked] == [6, 7, 7, 8, 8]


def test_the_loss_is_the_mean_over_the_steps_whatever_the_stride() -> None:
    losses = [make_worker()[0].turn(command(steps=4, stride=stride)).loss for stride in (1, 3)]
    assert losses[0] == pytest.approx(losses[1])


def test_a_center_that_is_not_there_is_an_error() -> None:
    worker, _ = make_worker()
    with pytest.raises(MissingKeyError, match="center:5"):
        worker.turn(command(version=5))


def test_a_center_under_the_wrong_name_is_an_error() -> None:
    worker, _ = make_worker(version=1)
    head = worker.store.read_head(keys.center("run", 1))[0]
    worker.store.write(keys.center("run", 2), head, as_bytes(np.zeros(4, np.float32)))
    with pytest.raises(PayloadError, match="center:2 holds version 1"):
        worker.turn(command(version=2))


def test_a_delta_is_not_taken_for_a_center() -> None:
    worker, _ = make_worker()
    worker.turn(command())
    head, _ = worker.store.read_head(keys.payload("run", 3, 9))
    worker.store.write(keys.center("run", 1), head, as_bytes(np.zeros(4, np.float32)))
    with refused("kind"):
        worker.turn(command(version=1))


def test_a_payload_that_no_master_fetches_leaves_the_store_by_itself() -> None:
    worker, _ = make_worker()
    worker.turn(command())
    assert isinstance(worker.clock, Clock)
    worker.clock.now += PAYLOAD_EXPIRY_S
    with pytest.raises(MissingKeyError):
        payload(worker, Kind.DELTA)


HALF = Compression(payload="topk:0.5")  # two of the four values


def moves(compression: Compression, *commands: Train) -> list[Vector]:
    """What a master reads of these turns; each starts from the same center."""
    worker, _ = make_worker(compression=compression)
    found = []
    for one in commands:
        worker.turn(one)
        found.append(payload(worker, one.payload)[1])
    return found


def test_what_a_payload_lost_is_in_the_next_once_the_last_was_merged() -> None:
    whole = moves(NO_COMPRESSION, command(), command())
    first, second = moves(HALF, command(), command(carry_over=True))
    assert np.count_nonzero(first) == np.count_nonzero(second) == 2
    np.testing.assert_array_equal(first[first != 0], whole[0][first != 0])
    rest = whole[0] - first
    np.testing.assert_array_equal(second[second != 0], (rest + whole[1])[second != 0])
    assert (rest[second != 0] != 0).any()


@pytest.mark.parametrize(
    "forgetting",
    [
        (command(), command()),  # the last was not merged
        (command(), command(Kind.GRADIENT, carry_over=True)),
        (command(), command(Kind.WEIGHTS), command(carry_over=True)),
    ],
)
def test_what_a_payload_lost_is_forgotten_where_it_has_no_place(
    forgetting: tuple[Train, ...],
) -> None:
    last = moves(HALF, *forgetting)[-1]
    whole = moves(NO_COMPRESSION, *forgetting)[-1]
    np.testing.assert_array_equal(last[last != 0], whole[last != 0])


def test_a_turn_that_was_not_finite_spoils_none_after_it() -> None:
    worker, _ = make_worker(compression=HALF)
    publish(worker, np.full(4, np.nan, np.float32), 1)
    worker.turn(command(version=1))
    assert not np.isfinite(payload(worker, Kind.DELTA)[1]).all()
    worker.engine.load_history(bytes(16))
    worker.turn(command())
    assert np.isfinite(payload(worker, Kind.DELTA)[1]).all()


@pytest.mark.parametrize("compress", ["bfloat16", "int8"])
def test_the_mean_of_weights_that_are_sent_is_nearer_than_each(compress: str) -> None:
    worker, engine = make_worker(compression=Compression(payload=compress))
    engine.stand_still()
    publish(worker, np.array([1, 1 / 3, 1 / 7, 1 / 11], np.float32), 1)
    sent = []
    for _ in range(40):
        worker.turn(command(Kind.WEIGHTS, version=1, carry_over=True))
        sent.append(payload(worker, Kind.WEIGHTS)[1])
    off = [np.abs(one - weights(engine)).max() for one in sent]
    assert np.abs(np.mean(sent, axis=0) - weights(engine)).max() < 0.1 * max(off)


def test_a_worker_fetches_the_rounded_center_where_there_is_one() -> None:
    worker, engine = make_worker(compression=Compression(center="bfloat16"))
    codec, exact = make_codec("bfloat16", engine.layout), np.full(4, 1 + 2**-12, np.float32)
    body = codec.encode(exact)
    header = header_for(body, engine.layout, Kind.CENTER, version=1, dtype=codec.dtype)
    worker.store.write(keys.rounded("run", 1), header.pack(), body)
    worker.turn(command(Kind.GRADIENT, version=1))
    assert weights(engine).tolist() == [1.0] * 4


def test_a_center_in_another_form_than_the_runs_is_an_error() -> None:
    worker, engine = make_worker(compression=Compression(center="bfloat16"))
    body = memoryview(bytes(8))
    header = header_for(body, engine.layout, Kind.CENTER, version=1, dtype=3)
    worker.store.write(keys.rounded("run", 1), header.pack(), body)
    with refused("dtype"):
        worker.turn(command(version=1))
