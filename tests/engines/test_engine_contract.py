"""What every engine promises, held against each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.base import Engine
from speedo.engines.quadratic import QuadraticEngine
from speedo.engines.solver import SolverSpec, read_solver, solver_for_tester
from speedo.errors import EngineError
from speedo.exchange.vector import Vector
from tests.support.nets import net_text, write_solver

Make = Callable[[], Engine]


@pytest.fixture(
    params=[
        "quadratic",
        pytest.param("pycaffe", marks=pytest.mark.caffe),
        pytest.param("pytorch", marks=[pytest.mark.torch, pytest.mark.caffe]),
    ]
)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes engines that are alike, each at the beginning of its records."""
    made: list[Engine] = []

    def quadratic() -> Engine:
        return QuadraticEngine(batch=4, momentum=0.9, lr=0.05, noise=0.5)

    def solver() -> tuple[SolverSpec, str]:
        home = request.getfixturevalue("home")
        spec = read_solver(write_solver(home, net_text(batch=4)))
        return spec, solver_for_tester(spec).replace("batch_size: 1\n", "batch_size: 4\n")

    def pycaffe() -> Engine:
        from speedo.engines.pycaffe import PycaffeEngine

        spec, text = solver()
        return PycaffeEngine(text, lr_policy=spec.lr_policy, scratch=spec.folder)

    def pytorch() -> Engine:
        from speedo.engines.pytorch.engine import PytorchEngine

        spec, text = solver()
        return PytorchEngine(text, lr_policy=spec.lr_policy, scratch=spec.folder)

    kinds = {"quadratic": quadratic, "pycaffe": pycaffe, "pytorch": pytorch}

    def build() -> Engine:
        engine = kinds[request.param]()
        made.append(engine)
        return engine

    yield build
    for engine in made:
        engine.close()


def weights(engine: Engine) -> Vector:
    vector = engine.layout.zeros()
    engine.read_weights(vector)
    return vector


def test_engines_that_are_alike_begin_and_go_on_alike(make: Make) -> None:
    first, second = make(), make()
    assert first.layout == second.layout
    np.testing.assert_array_equal(weights(first), weights(second))
    assert first.step(3) == second.step(3)
    np.testing.assert_array_equal(weights(first), weights(second))


def test_loaded_weights_are_read_back_to_the_bit(make: Make) -> None:
    engine = make()
    vector = np.random.default_rng(0).standard_normal(engine.layout.size).astype(np.float32)
    engine.load_weights(vector)
    np.testing.assert_array_equal(weights(engine), vector)


def test_reading_gives_a_copy_that_later_steps_leave_alone(make: Make) -> None:
    engine = make()
    before = weights(engine)
    kept = before.copy()
    engine.step(1)
    np.testing.assert_array_equal(before, kept)
    assert not np.array_equal(weights(engine), kept)


def test_training_lowers_the_loss(make: Make) -> None:
    engine = make()
    first = engine.step(5)
    engine.step(60)
    assert engine.step(5) < 0.8 * first


def test_a_step_of_three_is_three_steps(make: Make) -> None:
    whole, single = make(), make()
    mean = whole.step(3)
    losses = [single.step(1) for _ in range(3)]
    assert mean == pytest.approx(sum(losses) / 3, rel=1e-6)
    np.testing.assert_array_equal(weights(whole), weights(single))


def test_gradient_leaves_the_weights_and_its_application_is_the_step(make: Make) -> None:
    stepped, applied = make(), make()
    gradient = applied.layout.zeros()
    for iteration in range(4):
        before = weights(applied)
        for engine in (stepped, applied):
            engine.set_iteration(iteration)
        loss = applied.gradient(1, gradient)
        np.testing.assert_array_equal(weights(applied), before)
        applied.apply_gradient(gradient)
        assert loss == pytest.approx(stepped.step(1), rel=1e-6)
        np.testing.assert_array_equal(weights(applied), weights(stepped))


def test_gradient_of_two_batches_is_the_mean_of_their_gradients(make: Make) -> None:
    both, each = make(), make()
    mean, first, second = (both.layout.zeros() for _ in range(3))
    loss = both.gradient(2, mean)
    losses = [each.gradient(1, first), each.gradient(1, second)]
    np.testing.assert_allclose(mean, (first + second) / 2, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(sum(losses) / 2, rel=1e-6)


@pytest.mark.parametrize("batches", [1, 2])
def test_each_value_of_a_gradient_is_reported_once_when_it_is_final(
    make: Make, batches: int
) -> None:
    whole, early = make(), make()
    expected, found = whole.layout.zeros(), early.layout.zeros()
    reported = np.zeros(early.layout.size, int)

    def done(start: int, stop: int) -> None:
        reported[start:stop] += 1
        np.testing.assert_array_equal(found[start:stop], expected[start:stop])

    loss = whole.gradient(batches, expected)
    assert early.gradient(batches, found, done) == loss
    np.testing.assert_array_equal(found, expected)
    assert (reported == 1).all()


def test_what_is_raised_where_values_are_reported_ends_the_gradient(make: Make) -> None:
    engine, fresh = make(), make()
    found, expected = engine.layout.zeros(), engine.layout.zeros()

    def done(start: int, stop: int) -> None:
        raise EngineError("the others are gone")

    with pytest.raises(EngineError, match=r"^the others are gone$"):
        engine.gradient(1, found, done)
    fresh.gradient(1, expected)
    assert engine.gradient(1, found) == fresh.gradient(1, expected)  # of the next records
    np.testing.assert_array_equal(found, expected)


def test_history_goes_on_to_the_bit(make: Make) -> None:
    running, resumed = make(), make()
    running.step(3)
    resumed.load_weights(np.ones(resumed.layout.size, np.float32))
    resumed.step(3)
    resumed.load_weights(weights(running))
    resumed.load_history(running.history())
    np.testing.assert_array_equal(weights(resumed), weights(running))
    running.step(3)
    resumed.step(3)
    np.testing.assert_array_equal(weights(resumed), weights(running))


def test_loading_weights_keeps_the_history(make: Make) -> None:
    moving, fresh = make(), make()
    start = weights(fresh)
    moving.step(2)
    fresh.step(2)
    fresh_history = make()
    fresh_history.step(2)
    fresh_history.load_history(make().history())
    for engine in (moving, fresh, fresh_history):
        engine.load_weights(start)
        engine.step(1)
    np.testing.assert_array_equal(weights(moving), weights(fresh))
    assert not np.array_equal(weights(moving), weights(fresh_history))


@pytest.mark.parametrize("state", [b"", b"anything\nelse", b"\0" * 7])
def test_a_history_of_something_else_is_refused(make: Make, state: bytes) -> None:
    with pytest.raises(EngineError, match="history"):
        make().load_history(state)


def test_evaluation_is_finite_and_repeats(make: Make) -> None:
    engine = make()
    metrics = dict(engine.evaluate())
    assert metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert dict(engine.evaluate()) == metrics
    engine.step(5)
    assert dict(engine.evaluate()) != metrics


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_not_scored(make: Make, poison: float) -> None:
    engine = make()
    vector = weights(engine)
    vector[-1] = poison
    engine.load_weights(vector)
    with pytest.raises(EngineError, match="finite"):
        engine.evaluate()


def test_save_leaves_the_whole_file_and_nothing_else(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    engine = make()
    engine.save(folder / "model")
    first = (folder / "model").read_bytes()
    engine.step(1)
    engine.save(folder / "model")
    assert [file.name for file in folder.iterdir()] == ["model"]
    assert (folder / "model").read_bytes() != first


def test_save_into_a_missing_folder_says_so(make: Make, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot write the model"):
        make().save(tmp_path / "nowhere" / "model")


def test_a_batch_of_four_is_four_samples(make: Make) -> None:
    assert make().samples_per_step == 4


def test_close_may_be_called_twice(make: Make) -> None:
    engine = make()
    engine.close()
    engine.close()
