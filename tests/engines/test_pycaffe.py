"""The engine against plain Caffe: the same weights, losses and scores, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.solver import read_solver
from speedo.errors import EngineError
from tests.support.nets import (
    BATCH_NORM,
    LENET,
    LOSS,
    SHARED,
    SMOOTH,
    Sequential,
    net_text,
    write_solver,
)
from tests.support.solvers import TYPES, scorer, weights, worker

pytestmark = pytest.mark.caffe


def absolute(path: Path) -> str:
    """The user's own solver text with absolute paths, for plain Caffe."""
    net = path.parent / "net.prototxt"
    net.write_text(net.read_text().replace('"train"', f'"{path.parent}/train"'))
    net.write_text(net.read_text().replace('"test"', f'"{path.parent}/test"'))
    return path.read_text().replace('"net.prototxt"', f'"{net}"')


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("iter_size", [1, 2])
def test_every_solver_type_steps_as_plain_caffe(home: Path, kind: str, iter_size: int) -> None:
    path = write_solver(
        home, net_text(LENET), iter_size=iter_size, lr_policy='"inv"', gamma=0.1, power=0.75,
        test_iter=None, test_interval=None, **TYPES[kind],
    )  # fmt: skip
    engine = worker(read_solver(path))
    plain = Sequential(absolute(path), home)
    np.testing.assert_array_equal(weights(engine), plain.weights())
    start = weights(engine)
    for iteration in range(6):
        engine.set_iteration(iteration)
        engine.step(1)
    plain.step(6)
    assert not np.array_equal(weights(engine), start)
    np.testing.assert_array_equal(weights(engine), plain.weights())
    engine.close()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("iter_size", [1, 2])
def test_gradients_applied_by_a_server_are_the_steps_of_one_solver(
    home: Path, kind: str, iter_size: int
) -> None:
    spec = read_solver(
        write_solver(home, net_text(LENET), iter_size=iter_size, clip_gradients=1.0, **TYPES[kind])
    )
    computing, serving, stepping = worker(spec), worker(spec), worker(spec)
    gradient = serving.layout.zeros()
    for iteration in range(5):
        for engine in (computing, serving, stepping):
            engine.set_iteration(iteration)
        computing.load_weights(weights(serving))
        computing.gradient(1, gradient)
        serving.apply_gradient(gradient)
        stepping.step(1)
        np.testing.assert_allclose(weights(serving), weights(stepping), rtol=2e-5, atol=2e-6)
    for engine in (computing, serving, stepping):
        engine.close()


@pytest.mark.parametrize(("rank", "count"), [(1, 1), (-1, 2), (0, 0)])
def test_a_rank_outside_its_count_is_refused_before_caffe_looks_for_ever(
    home: Path, rank: int, count: int
) -> None:
    with pytest.raises(EngineError, match="a rank is 0 or more"):
        worker(read_solver(write_solver(home, net_text())), rank=rank, count=count)


def test_the_rate_that_caffe_uses_is_that_of_the_global_iteration(home: Path) -> None:
    path = write_solver(home, net_text(), lr_policy='"step"', gamma=0.1, stepsize=10)
    engine = worker(read_solver(path))
    used = []
    for iteration in (0, 9, 10, 25):
        engine.set_iteration(iteration)
        engine.step(1)
        used.append(engine._solver.lr)
    assert used == pytest.approx([0.05, 0.05, 0.005, 0.0005], rel=1e-6)


def test_following_steps_count_on_from_the_iteration(home: Path) -> None:
    path = write_solver(home, net_text(), lr_policy='"exp"', gamma=0.5)
    engine = worker(read_solver(path))
    engine.set_iteration(3)
    engine.step(2)
    assert engine._solver.lr == pytest.approx(0.05 * 0.5**4)


def test_the_loss_is_the_mean_over_the_sub_batches(home: Path) -> None:
    single = worker(read_solver(write_solver(home, net_text(), base_lr=1e-30, weight_decay=0)))
    losses = [single.step(1) for _ in range(4)]
    path = write_solver(home, net_text(), base_lr=1e-30, weight_decay=0, iter_size=2)
    double = worker(read_solver(path))
    assert double.samples_per_step == 16
    assert double.step(2) == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_the_loss_counts_every_weighted_loss(home: Path) -> None:
    second = LOSS.replace('"loss"', '"aux"').replace('name: "ip"', 'name: "ip2"')
    second = second.replace('top: "ip"', 'top: "ip2"').replace('bottom: "ip"', 'bottom: "ip2"')
    second = second[: second.index('layer { name: "accuracy"')] + (
        'layer { name: "aux" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "aux" '
        "loss_weight: 0.5 include { phase: TRAIN } }"
    )
    spec = read_solver(write_solver(home, net_text() + second, base_lr=1e-30, weight_decay=0))
    engine = worker(spec)
    loss = engine.step(1)
    blobs = engine._net.blobs
    expected = float(blobs["loss"].data) + 0.5 * float(blobs["aux"].data)
    assert loss == pytest.approx(expected, rel=1e-6)


def test_shared_parameters_are_held_once(home: Path) -> None:
    path = write_solver(home, net_text(SHARED), test_iter=None, test_interval=None)
    engine = worker(read_solver(path))
    assert [blob.name for blob in engine.layout.blobs] == ["first/0", "first/1", "ip/0", "ip/1"]
    plain = Sequential(absolute(path), home)
    engine.step(5)
    plain.step(5)
    np.testing.assert_array_equal(weights(engine), plain.weights())


def test_batch_norm_statistics_are_marked_and_no_others(home: Path) -> None:
    engine = worker(read_solver(write_solver(home, net_text(BATCH_NORM))))
    marked = [blob.name for blob in engine.layout.blobs if blob.statistic]
    assert marked == ["bn/0", "bn/1", "bn/2"]


@pytest.mark.parametrize("clip_gradients", [-1, 1])
def test_gradients_carry_the_change_of_batch_norm_statistics(
    home: Path, clip_gradients: float
) -> None:
    """What they gained is no part of the norm that is clipped."""
    spec = read_solver(write_solver(home, net_text(BATCH_NORM), clip_gradients=clip_gradients))
    computing, serving, stepping = worker(spec), worker(spec), worker(spec)
    gradient = serving.layout.zeros()
    computing.gradient(1, gradient)
    serving.apply_gradient(gradient)
    stepping.step(1)
    np.testing.assert_allclose(weights(serving), weights(stepping), rtol=1e-5, atol=1e-7)


def test_a_plain_script_with_the_exported_model_finds_the_reported_score(home: Path) -> None:
    path = write_solver(home, net_text(LENET), test_iter=2)
    spec = read_solver(path)
    training, testing = worker(spec), scorer(spec)
    training.step(30)
    testing.load_weights(weights(training))
    reported = testing.evaluate()
    testing.save(home / "model.caffemodel")
    absolute(path)

    caffe = load_caffe()
    net = caffe.Net(str(home / "net.prototxt"), caffe.TEST, weights=str(home / "model.caffemodel"))
    found = {"accuracy": 0.0, "loss": 0.0}
    for _ in range(2):
        output = net.forward()
        for name in found:
            found[name] += float(output[name])
    assert dict(reported) == {name: value / 2 for name, value in found.items()}
    assert reported["accuracy"] > 0.5


@pytest.mark.parametrize("test_iter", [1, 2, 3])
def test_every_evaluation_scores_the_same_records(home: Path, test_iter: int) -> None:
    engine = scorer(read_solver(write_solver(home, net_text(test_batch=16), test_iter=test_iter)))
    first = dict(engine.evaluate())
    assert [dict(engine.evaluate()) for _ in range(2)] == [first, first]


def test_several_test_nets_are_told_apart(home: Path) -> None:
    fields = {"test_iter": [2, 1], "net": None, "train_net": '"net.prototxt"'}
    fields["test_net"] = ['"net.prototxt"', '"net.prototxt"']
    engine = scorer(read_solver(write_solver(home, net_text(), **fields)))
    metrics = engine.evaluate()
    assert list(metrics) == ["accuracy", "loss", "test1/accuracy", "test1/loss"]
    assert metrics["loss"] != metrics["test1/loss"]
    assert engine.test_outputs() == tuple(metrics)


def test_a_head_of_the_train_net_alone_is_in_the_layout_and_in_the_model(home: Path) -> None:
    head = """
    layer { name: "aux" type: "InnerProduct" bottom: "top" top: "aux" include { phase: TRAIN }
      inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
    layer { name: "auxloss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "auxloss"
      loss_weight: 0.3 include { phase: TRAIN } }
    """
    spec = read_solver(write_solver(home, net_text(SMOOTH + head)))
    training, testing = worker(spec), scorer(spec)
    assert testing.layout == training.layout
    training.step(2)
    testing.load_weights(weights(training))
    assert list(testing.evaluate()) == ["accuracy", "loss"]
    testing.save(home / "model.caffemodel")
    net = load_caffe().proto.caffe_pb2.NetParameter()
    net.ParseFromString((home / "model.caffemodel").read_bytes())
    assert {layer.name for layer in net.layer if layer.blobs} == {"conv", "aux", "ip"}


def test_an_output_of_several_values_is_named_by_place(home: Path) -> None:
    net = net_text().replace('top: "accuracy"', 'top: "accuracy" top: "per_class"')
    engine = scorer(read_solver(write_solver(home, net)))
    names = list(engine.evaluate())
    assert "per_class/0" in names
    assert "per_class/3" in names


def test_without_a_test_net_evaluation_says_so(home: Path) -> None:
    with pytest.raises(EngineError, match="no test net"):
        worker(read_solver(write_solver(home, net_text()))).evaluate()


def test_closing_gives_the_scratch_folder_back(home: Path) -> None:
    scratch = home / "scratch"
    scratch.mkdir()
    spec = read_solver(write_solver(home, net_text()))
    engine = worker(spec, scratch=scratch)
    engine.history()
    assert [sorted(f.name for f in d.iterdir()) for d in scratch.iterdir()] == [["solver.prototxt"]]
    engine.close()
    assert not list(scratch.iterdir())
    with pytest.raises(EngineError, match="closed"):
        engine.step(1)
