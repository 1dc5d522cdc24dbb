"""A turn that a script drives is the turn of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.codecs import Compression
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.master.plan import Plan
from speedo.messages import Kind, Train, Trained
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.storage.memory_store import MemoryStore
from speedo.worker.script_turn import ScriptWorker
from tests.support.every_mode import MODES, options_of
from tests.support.simulation import simulator
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World
from tests.worker.test_turn import BATCH, Clock, RecordingEngine, command, payload, publish


@dataclass
class LoopOfOne(ScriptWorker):
    """A script's loop: it steps until it is told that the turn is over."""

    @property
    def engine(self) -> QuadraticEngine:
        assert isinstance(self.weights, QuadraticEngine)
        return self.weights

    def turn(self, command: Train) -> Trained:
        if self.overlap:
            self.fetch_ahead(command)
        self.begin(command)
        while True:
            self.engine.set_iteration(self.iteration)
            if self.stepped(self.engine.samples_per_step, self.engine.step(1)):
                return self.end()


def make_driven(engine: RecordingEngine | None = None) -> tuple[LoopOfOne, RecordingEngine]:
    engine, clock = engine or RecordingEngine(), Clock()
    worker = LoopOfOne("run", 3, 2, engine, MemoryStore(clock=clock), clock, 4)
    publish(worker, np.zeros(4, np.float32), 0)  # type: ignore[arg-type]
    return worker, engine


def simulated(mode: str, compress: str) -> tuple[Vector, int, int]:
    """The center at the end of a run with a death and a return, its version, and the samples merged."""
    options = options_of(mode, 24)
    if mode == "hybrid":
        options["phases"] = [{**phase, "local_steps": 3} for phase in options["phases"]]
    else:
        options["local_steps"] = 3

    def script(cluster: SimulatedCluster) -> None:
        cluster.die(1, 1.0)
        cluster.join(1, 2.0)

    found = simulate(
        make_strategy(make_config(options), 10),
        Plan(10, 24, workers=3),
        world=World(compression=Compression(compress)),
        script=script,
    )
    assert found.outcome.complete
    return found.center.vector, found.center.version, found.outcome.samples


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compress", ["none", "int8"])
def test_every_mode_makes_the_same_model_of_it(
    mode: str, compress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the rounding of a step: at the end of a phase a turn has one, which an engine says without it."""
    expected = simulated(mode, compress)
    monkeypatch.setattr(simulator, "EngineWorker", LoopOfOne)
    found = simulated(mode, compress)
    assert found[1:] == expected[1:]
    largest = float(np.abs(expected[0]).max())
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-6 * largest)


def test_a_turn_ends_after_its_steps_and_says_what_was_trained() -> None:
    worker, _ = make_driven()
    worker.begin(command(steps=3))
    assert [worker.stepped(BATCH, loss) for loss in (1.0, 2.0, 6.0)] == [False, False, True]
    done = worker.end(((0, 10, 25),))
    assert (done.loss, done.samples, done.has_loss) == (3.0, 3 * BATCH, True)
    assert (done.records, worker.samples, worker.command) == (((0, 10, 25),), 3 * BATCH, None)
    assert done.timings == {"fetch": 2.0, "compute": 1.0, "publish": 2.0}  # the store looks, too


def test_a_script_may_say_no_loss() -> None:
    worker, _ = make_driven()
    worker.begin(command())
    assert worker.stepped(2)
    done = worker.end()
    assert math.isnan(done.loss)
    assert not done.has_loss


def test_a_single_step_is_the_way_of_its_weights() -> None:
    worker, engine = make_driven()
    publish(worker, np.full(4, 0.5, np.float32), 0)  # type: ignore[arg-type]
    worker.turn(command())
    way = engine.layout.zeros()
    engine.read_weights(way)
    assert payload(worker, Kind.DELTA)[1].tolist() == (way - np.float32(0.5)).tolist()  # type: ignore[arg-type]


def test_a_turn_may_end_early() -> None:
    worker, engine = make_driven()
    worker.begin(command(steps=9))
    worker.stepped(BATCH, engine.step(1))
    assert worker.end().samples == BATCH


@pytest.mark.parametrize("kind", [Kind.DELTA, Kind.WEIGHTS])
def test_a_turn_ends_once_the_weights_are_far_enough(kind: Kind) -> None:
    worker, engine = make_driven()
    far = replace(command(kind, steps=1000), norm=0.5)
    assert worker.turn(far).samples < 1000 * BATCH
    now = engine.layout.zeros()
    engine.read_weights(now)
    assert np.linalg.norm(now) > 0.5


class EngineWithAverages(RecordingEngine):
    """Says that its last two values are moving averages."""

    layout = Layout((Blob("w", (2,)), Blob("mean", (2,), statistic=True, average=True)))


def test_of_moving_averages_a_turn_sends_the_value() -> None:
    worker, engine = make_driven(EngineWithAverages())
    publish(worker, np.full(4, 0.5, np.float32), 0)  # type: ignore[arg-type]
    worker.turn(command(steps=2))
    now = engine.layout.zeros()
    engine.read_weights(now)
    now[:2] -= np.float32(0.5)
    assert payload(worker, Kind.DELTA)[1].tolist() == now.tolist()  # type: ignore[arg-type]


def test_iterations_are_counted_through_the_turn() -> None:
    worker, engine = make_driven()
    worker.turn(command(samples=6, steps=3, stride=4, batch=2))
    assert [iteration for iteration, _ in engine.asked] == [3, 5, 7]
