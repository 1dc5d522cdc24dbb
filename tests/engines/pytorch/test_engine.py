"""Training with PyTorch against pycaffe: the same records and first weights must give the same weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from speedo.engines.base import Engine
from speedo.engines.solver import SolverSpec, read_solver, solver_for_tester, solver_for_worker
from speedo.errors import EngineError
from speedo.exchange.vector import Vector
from tests.support.bundled_nets import Bench
from tests.support.nets import (
    BATCH_NORM,
    LENET,
    SHARED,
    SMOOTH,
    net_text,
    relative_difference,
    write_solver,
)
from tests.support.solvers import TYPES, scorer, worker
from tests.support.update_trials import history_of

if TYPE_CHECKING:
    from speedo.engines.pytorch.engine import PytorchEngine

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

# Multipliers, and a layer that is not trained at all.
UNEVEN = """
layer { name: "one" type: "InnerProduct" bottom: "data" top: "one"
  param { lr_mult: 0 } param { lr_mult: 0 }
  inner_product_param { num_output: 30 weight_filler { type: "xavier" } } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two"
  param { lr_mult: 0.5 decay_mult: 3 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "sig" type: "Sigmoid" bottom: "two" top: "top" }
"""
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "L1": {"regularization_type": '"L1"', "weight_decay": 0.0005},
    "clipped": {"clip_gradients": 0.3},
    "three batches": {"iter_size": 3, "clip_gradients": 1.0},
    "falling rate": {"lr_policy": '"inv"', "gamma": 0.05, "power": 0.75},
}


@pytest.fixture
def engines() -> Iterator[ExitStack]:
    """Closes the engines that are given to it."""
    with ExitStack() as opened:
        yield opened


def torch_worker(spec: SolverSpec, **options: Any) -> PytorchEngine:
    """As `tests.support.solvers.worker`."""
    from speedo.engines.pytorch.engine import PytorchEngine

    text = solver_for_worker(
        spec,
        rank=options.get("rank", 0),
        count=options.get("count", 1),
        batch_size=spec.batch_size,
    )
    return PytorchEngine(text, lr_policy=spec.lr_policy, folder=spec.folder, **options)


def torch_scorer(spec: SolverSpec) -> PytorchEngine:
    from speedo.engines.pytorch.engine import PytorchEngine

    return PytorchEngine(solver_for_tester(spec), lr_policy=spec.lr_policy, folder=spec.folder)


def weights(engine: Engine) -> Vector:
    vector = engine.layout.zeros()
    engine.read_weights(vector)
    return vector


def trained(spec: SolverSpec, iterations: int) -> tuple[float, float]:
    """How far weights and deltas of both engines are apart, relative to the change."""
    with closing(worker(spec)) as caffe, closing(torch_worker(spec)) as torch:
        start = weights(caffe)
        torch.load_weights(start)
        assert torch.layout == caffe.layout
        expected, delta = caffe.layout.zeros(), torch.layout.zeros()
        losses = caffe.step(iterations, expected), torch.step(iterations, delta)
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
        return (
            relative_difference(weights(torch), weights(caffe), start),
            relative_difference(delta, expected, np.zeros_like(start)),
        )


def small(name: str, folder: Path, batch: int) -> SolverSpec:
    """A bundled net over made-up records, its widest layers narrow, without what draws random numbers."""
    path = Bench.make(name, folder).solver(batch)
    net = folder / f"net_{batch}.prototxt"
    text = net.read_text().replace("mirror: true", "mirror: false")
    text = text.replace("num_output: 4096", "num_output: 256")
    net.write_text(re.sub(r"dropout_ratio: [\d.]+", "dropout_ratio: 0", text))
    text = path.read_text().replace("base_lr: 0.0001", "base_lr: 0.01")
    path.write_text(f"{text}\nrandom_seed: 3\n")
    return read_solver(path)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_smooth_net_stays_with_pycaffe(home: Path, kind: str, variant: str) -> None:
    fields = {**TYPES[kind], **VARIANTS[variant]}
    spec = read_solver(write_solver(home, net_text(SMOOTH), **fields))
    apart, deltas_apart = trained(spec, 200 if variant == "plain" else 40)
    assert max(apart, deltas_apart) < 1e-3


@pytest.mark.parametrize("body", [BATCH_NORM, SHARED, UNEVEN], ids=["norm", "shared", "uneven"])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_statistics_shared_blobs_and_multipliers_are_those_of_pycaffe(
    home: Path, kind: str, body: str
) -> None:
    spec = read_solver(write_solver(home, net_text(body), **TYPES[kind]))
    apart, deltas_apart = trained(spec, 20)
    assert max(apart, deltas_apart) < 1e-4


def test_a_worker_of_several_reads_its_own_records(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(SMOOTH)))
    with (
        closing(worker(spec, rank=1, count=3)) as caffe,
        closing(torch_worker(spec, rank=1, count=3)) as torch,
    ):
        start = weights(caffe)
        torch.load_weights(start)
        for engine in (caffe, torch):
            engine.step(2)
            engine.advance(5)
            engine.step(2)
        assert relative_difference(weights(torch), weights(caffe), start) < 1e-4


@pytest.mark.parametrize("kind", TYPES)
def test_a_history_goes_from_either_engine_to_the_other(home: Path, kind: str) -> None:
    spec = read_solver(write_solver(home, net_text(SMOOTH), **TYPES[kind]))
    with closing(worker(spec)) as caffe, closing(torch_worker(spec)) as torch:
        torch.load_weights(weights(caffe))
        for engine in (caffe, torch):
            engine.step(5)
        for giver, taker in ((caffe, torch), (torch, caffe)):
            start = weights(giver)
            taker.load_weights(start)
            taker.load_history(giver.history())
            np.testing.assert_array_equal(history_of(taker, kind), history_of(giver, kind))
            for engine in (giver, taker):
                engine.step(3)
            assert relative_difference(weights(taker), weights(giver), start) < 1e-4


@pytest.mark.parametrize("body", [LENET, BATCH_NORM, SHARED], ids=["lenet", "norm", "shared"])
@pytest.mark.parametrize("form", ["caffemodel", "caffemodel.h5"])
def test_a_model_of_either_engine_has_the_same_score_in_the_other(
    home: Path, body: str, form: str, engines: ExitStack
) -> None:
    spec = read_solver(write_solver(home, net_text(body)))
    caffe, torch = (engines.enter_context(closing(make(spec))) for make in (scorer, torch_scorer))
    with closing(torch_worker(spec)) as trained_engine:
        trained_engine.step(10)
        from_torch = weights(trained_engine)
    with closing(worker(spec)) as trained_by_caffe:
        trained_by_caffe.step(12)
        from_caffe = weights(trained_by_caffe)
    for giver, taker, vector in ((torch, caffe, from_torch), (caffe, torch, from_caffe)):
        file = home / f"model.{form}"
        giver.load_weights(vector)
        giver.written(hdf5=form.endswith("h5")).write(file)
        taker.load_weights(np.zeros_like(vector))
        taker.copy_from(file)
        np.testing.assert_array_equal(weights(taker), vector)
        expected = dict(giver.evaluate())
        assert list(expected) == list(taker.test_outputs()) == list(giver.test_outputs())
        assert dict(taker.evaluate()) == pytest.approx(expected, rel=1e-4)


def test_of_an_output_with_very_many_values_the_mean_is_reported(home: Path) -> None:
    """80 scores that no layer reads, and 1,280."""
    unread = """
    layer { name: "few" type: "Power" bottom: "ip" top: "few" power_param { scale: 2 } include { phase: TEST } }
    layer { name: "many" type: "Tile" bottom: "ip" top: "many" tile_param { tiles: 16 } include { phase: TEST } }
    """
    spec = read_solver(write_solver(home, net_text() + unread))
    with closing(scorer(spec)) as caffe, closing(torch_scorer(spec)) as torch:
        torch.load_weights(weights(caffe))
        found = dict(caffe.evaluate())
        few = [value for name, value in found.items() if name.startswith("few/")]
        assert len(few) == 80
        assert list(found) == ["accuracy", *(f"few/{place}" for place in range(80)), "loss", "many"]
        assert found["many"] == pytest.approx(sum(few) / 160, rel=1e-5)
        assert tuple(found) == caffe.test_outputs() == torch.test_outputs()
        assert dict(torch.evaluate()) == pytest.approx(found, rel=1e-4, abs=1e-5)


def test_the_gradient_is_that_of_pycaffe(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(BATCH_NORM), iter_size=2))
    with closing(worker(spec)) as caffe, closing(torch_worker(spec)) as torch:
        torch.load_weights(weights(caffe))
        expected, found = caffe.layout.zeros(), caffe.layout.zeros()
        assert torch.gradient(2, found) == pytest.approx(caffe.gradient(2, expected), rel=1e-5)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_other_solver_values_are_used_from_the_next_step_on(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(SMOOTH), weight_decay=0.0))
    with closing(worker(spec)) as caffe, closing(torch_worker(spec)) as torch:
        start = weights(caffe)
        torch.load_weights(start)
        for engine in (caffe, torch):
            engine.step(3)
            engine.adjust(0.1, 0.5, 0.01, 2)
            engine.step(3)
            engine.adjust(None, None, None, 1)
            engine.step(3)
        assert relative_difference(weights(torch), weights(caffe), start) < 1e-4


def test_shares_of_a_test_are_the_whole_test(home: Path) -> None:
    from speedo.engines.evaluation import PartOfTest, combined

    spec = read_solver(write_solver(home, net_text(LENET, test_batch=8), test_iter=7))
    with closing(torch_scorer(spec)) as engine, closing(scorer(spec)) as caffe:
        caffe.load_weights(weights(engine))
        whole = dict(engine.evaluate())
        done: list[int] = []
        parts = [engine.evaluate_share(PartOfTest(index, 3), done.append) for index in (2, 0, 1)]
        assert done == 7 * [8]
        assert combined(parts) == pytest.approx(whole, rel=1e-6)
        assert whole == pytest.approx(dict(caffe.evaluate()), rel=1e-4)


def test_a_test_leaves_the_random_numbers_of_training_alone(home: Path) -> None:
    dropout = LENET.replace('top: "top" }', 'top: "relu1" }') + (
        'layer { name: "drop" type: "Dropout" bottom: "relu1" top: "top" }\n'
    )
    spec = read_solver(write_solver(home, net_text(dropout)))
    with closing(torch_scorer(spec)) as tested:
        tested.evaluate()
        tested.step(2)
        after = weights(tested)
    with closing(torch_scorer(spec)) as untested:
        untested.step(2)
        np.testing.assert_array_equal(weights(untested), after)


def test_bfloat16_trains_and_keeps_its_weights_in_float32(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(LENET)))
    with (
        closing(torch_worker(spec)) as exact,
        closing(torch_worker(spec, precision="bfloat16")) as rounded,
    ):
        start = weights(exact)
        np.testing.assert_array_equal(weights(rounded), start)
        assert rounded.step(20) == pytest.approx(exact.step(20), rel=0.02)
        assert 1e-5 < relative_difference(weights(rounded), weights(exact), start) < 0.2


def test_a_solver_that_names_weights_begins_with_them(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(SMOOTH)))
    with closing(worker(spec)) as caffe:
        caffe.save(home / "first.caffemodel")
        expected = weights(caffe)
    fields = {"weights": '"first.caffemodel"', "random_seed": 99}
    spec = read_solver(write_solver(home, net_text(SMOOTH), **fields))
    with closing(torch_worker(spec)) as torch:
        np.testing.assert_array_equal(weights(torch), expected)


def test_weights_of_another_shape_change_nothing(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(SMOOTH)))
    with closing(torch_worker(spec)) as engine:
        engine.save(home / "first.caffemodel")
    other = SMOOTH.replace("num_output: 6", "num_output: 7")
    spec = read_solver(write_solver(home, net_text(other)))
    with closing(torch_worker(spec)) as engine:
        before = weights(engine)
        with pytest.raises(EngineError, match="'conv'"):
            engine.copy_from(home / "first.caffemodel")
        np.testing.assert_array_equal(weights(engine), before)


def test_what_cannot_be_is_refused_with_a_remedy(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(SMOOTH)))
    with pytest.raises(EngineError, match="rank 2 of 2"):
        torch_worker(spec, rank=2, count=2)
    with pytest.raises(EngineError, match=r"cuda:99, but PyTorch sees .*or cpu|cuda:99.*cuda:0 to"):
        torch_worker(spec, device="cuda:99")
    with pytest.raises(EngineError, match="'float16' is not one of float32, bfloat16"):
        torch_worker(spec, precision="float16")
    engine = torch_worker(spec)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.step(1)


def test_lenet_stays_with_pycaffe_for_10_iterations(tmp_path: Path) -> None:
    apart, deltas_apart = trained(small("lenet", tmp_path, 16), 10)
    assert max(apart, deltas_apart) < 1e-4


def test_cifar10_full_stays_with_pycaffe_for_5_iterations(tmp_path: Path) -> None:
    apart, deltas_apart = trained(small("cifar10_full", tmp_path, 8), 5)
    assert max(apart, deltas_apart) < 1e-4


def test_alexnet_without_dropout_stays_with_pycaffe_for_2_iterations(tmp_path: Path) -> None:
    apart, deltas_apart = trained(small("alexnet", tmp_path, 2), 2)
    # One ReLU or maximum that rounding flips moves 3e-3 (on an Intel, any kernel of OpenBLAS); a wrong layer far more.
    assert max(apart, deltas_apart) < 1e-2


def test_googlenet_without_dropout_stays_with_pycaffe_for_an_iteration(tmp_path: Path) -> None:
    apart, deltas_apart = trained(small("googlenet", tmp_path, 2), 1)
    assert max(apart, deltas_apart) < 1e-3
