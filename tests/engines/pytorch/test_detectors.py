"""SSD and Faster R-CNN on generated images: they train, and SSD finds what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.detection import faster_rcnn_net, make_databases, solver_text, ssd_net

pytestmark = pytest.mark.torch


def write(folder: Path, net: str, max_iter: int, test_interval: int = 100) -> Path:
    (folder / "net.prototxt").write_text(net)
    solver = folder / "solver.prototxt"
    solver.write_text(solver_text(max_iter, test_interval))
    return solver


def engine_of(solver: Path):  # type: ignore[no-untyped-def]
    """The engine of this solver with its test nets, made as a run makes it."""
    from speedo.engines.make import EngineChoice, make_engine, prepare_to_read
    from speedo.engines.solver import read_solver, solver_for_worker
    from speedo.engines.solver.checks import check_solver
    from speedo.engines.solver.proto import caffe_proto, parse_text, to_text
    from speedo.engines.solver.spec import SolverOverrides

    prepare_to_read("torch")
    spec = read_solver(solver, overrides=SolverOverrides(engine="torch"))
    check_solver(spec, workers=1, split=False)
    text = solver_for_worker(
        spec, rank=0, count=1, batch_size=spec.batch_size, scratch=solver.parent / "scratch"
    )
    worker = parse_text(text, caffe_proto().SolverParameter())
    whole = parse_text(spec.text, caffe_proto().SolverParameter())
    for net in whole.test_net_param:
        own = worker.test_net_param.add()
        own.CopyFrom(net)
        for layer in own.layer:
            if layer.data_param.source:
                layer.data_param.source = str(solver.parent / layer.data_param.source)
    worker.test_iter.extend(whole.test_iter)
    worker.test_interval = 1
    return make_engine(
        EngineChoice("torch", "cpu"),
        to_text(worker),
        lr_policy=spec.lr_policy,
        folder=solver.parent,
    )


@pytest.fixture(autouse=True)
def own_schema_only_here():  # type: ignore[no-untyped-def]
    from speedo.engines.schema import use_own_schema

    yield
    use_own_schema(False)


def test_ssd_over_a_small_mobilenet_finds_the_shapes(tmp_path: Path) -> None:
    make_databases(tmp_path, train=300, test=40)
    engine = engine_of(write(tmp_path, ssd_net(), max_iter=400))
    before = engine.evaluate()["detection_eval"]
    losses = []
    for start in range(0, 400, 50):
        engine.set_iteration(start)
        losses.append(engine.step(50))
    after = engine.evaluate()["detection_eval"]
    engine.close()
    assert before < 0.2
    assert losses[-1] < losses[0] / 3
    assert after > 0.6, (before, losses, after)


def test_faster_rcnn_trains_with_its_python_layers(tmp_path: Path) -> None:
    make_databases(tmp_path, train=60, test=4)
    engine = engine_of(write(tmp_path, faster_rcnn_net(), max_iter=60))
    first = engine.step(10)
    for start in range(10, 60, 10):
        engine.set_iteration(start)
        last = engine.step(10)
    metrics = engine.evaluate()
    engine.close()
    assert last < first, (first, last)
    assert {"accuracy", "loss_cls", "loss_bbox", "rpn_cls_loss", "rpn_loss_bbox"} <= set(metrics)
