"""Turns that a script drives and that overlap are those of an engine that overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.codecs import Compression
from speedo.exchange.vector import Vector
from speedo.master.plan import Plan
from speedo.messages import Kind, OwnResults
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.storage.memory_store import MemoryStore
from tests.support.simulation import simulator
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World
from tests.worker.test_script_turn import EngineWithAverages, LoopOfOne
from tests.worker.test_turn import Clock, RecordingEngine, command, payload, publish


def make_overlapping(engine: RecordingEngine | None = None) -> LoopOfOne:
    clock = Clock()
    worker = LoopOfOne(
        "run", 3, 2, engine or RecordingEngine(), MemoryStore(clock=clock), clock, 4, overlap=True
    )
    publish(worker, np.full(4, 0.5, np.float32), 0)  # type: ignore[arg-type]
    return worker


def simulated(mode: str, steps: int, compress: str) -> tuple[Vector, int, int]:
    """The center at the end of a run with a death and a return, its version, and the samples merged."""

    def script(cluster: SimulatedCluster) -> None:
        cluster.die(1, 1.0)
        cluster.join(1, 2.0)

    found = simulate(
        make_strategy(make_config({"mode": mode, "workers": 3, "local_steps": steps}), 10),
        Plan(10, 24, workers=3),
        world=World(compression=Compression(compress)),
        script=script,
        overlap=(0, 1, 2),
    )
    assert found.outcome.complete
    return found.center.vector, found.center.version, found.outcome.samples


@pytest.mark.parametrize(("mode", "steps"), [("async", 1), ("async", 3), ("easgd", 3)])
@pytest.mark.parametrize("compress", ["none", "int8"])
def test_a_run_makes_the_same_model_of_it(
    mode: str, steps: int, compress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the rounding of a step, which an engine says without it where a turn has one."""
    expected = simulated(mode, steps, compress)
    monkeypatch.setattr(simulator, "EngineWorker", LoopOfOne)
    found = simulated(mode, steps, compress)
    assert found[1:] == expected[1:]
    largest = float(np.abs(expected[0]).max())
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-6 * largest)


def test_the_next_turn_begins_with_the_result_that_is_not_merged_yet() -> None:
    """Of a moving average it begins with the center's: a result has its value, not its change."""
    worker = make_overlapping(EngineWithAverages())
    first = replace(command(steps=2), ticket=1)
    worker.turn(first)
    center = np.full(4, 0.5, np.float32)
    change = center.copy()
    worker.engine.read_weights(change)
    change[:2] -= center[:2]
    worker.begin(replace(first, ticket=2, own=OwnResults(pending=1, rate=0.25)))
    now = worker.engine.layout.zeros()
    worker.engine.read_weights(now)
    expected = center.copy()
    expected[:2] += np.float32(0.25) * change[:2]
    assert now.tolist() == expected.tolist()


def test_what_is_published_later_is_what_the_turn_came_to() -> None:
    worker = make_overlapping()
    worker.begin(command(steps=1))
    assert worker.stepped(10, worker.engine.step(1))
    now = worker.engine.layout.zeros()
    worker.engine.read_weights(now)
    put = worker.end_later(((0, 0, 10),))
    with pytest.raises(MissingKeyError):
        payload(worker, Kind.DELTA)  # type: ignore[arg-type]
    worker.engine.step(5)  # the script has gone on
    done = put()
    assert (done.samples, done.records, set(done.timings)) == (
        10,
        ((0, 0, 10),),
        {"fetch", "compute", "publish"},
    )
    assert payload(worker, Kind.DELTA)[1].tolist() == (now - np.float32(0.5)).tolist()  # type: ignore[arg-type]


def test_turns_that_do_not_end_keep_no_memory() -> None:
    """With a buffer less each time, the third would wait forever."""
    worker = make_overlapping()
    for ticket in range(1, 30, 3):
        missing = replace(command(), ticket=ticket, version=9)
        worker.fetch_ahead(missing)
        with pytest.raises(MissingKeyError):
            worker.begin(missing)
        late = replace(command(), ticket=ticket + 1, own=OwnResults(pending=ticket))
        worker.fetch_ahead(late)
        with pytest.raises(PayloadError, match=f"ticket {ticket}, had no result"):
            worker.begin(late)
        worker.begin(replace(command(), ticket=ticket + 1))
        worker.turn(replace(command(), ticket=ticket + 2))
