"""SSD and Faster R-CNN on generated images: they train, and find what there is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from speedo.errors import EngineError
from tests.support.detection import faster_rcnn_net, make_databases, solver_text, ssd_net

pytestmark = pytest.mark.torch


def write(folder: Path, net: str, max_iter: int, test_interval: int = 100) -> Path:
    (folder / "net.prototxt").write_text(net)
    solver = folder / "solver.prototxt"
    solver.write_text(solver_text(max_iter, test_interval))
    return solver


def engine_of(solver: Path, micro_batch: str = ""):  # type: ignore[no-untyped-def]
    """The engine of this solver with its test nets, made as a run makes it."""
    from caffenets.host_program import caffe_schema
    from caffenets.prototxt.text import parse_text, to_text
    from speedo.engines.make import EngineChoice, make_engine, prepare_to_read
    from speedo.engines.solver import read_solver, solver_for_worker
    from speedo.engines.solver.checks import check_solver
    from speedo.engines.solver.spec import SolverOverrides

    prepare_to_read("torch")
    spec = read_solver(solver, overrides=SolverOverrides(engine="torch"))
    check_solver(spec, workers=1, split=False)
    text = solver_for_worker(
        spec, rank=0, count=1, batch_size=spec.batch_size, scratch=solver.parent / "scratch"
    )
    worker = parse_text(text, caffe_schema().SolverParameter())
    whole = parse_text(spec.text, caffe_schema().SolverParameter())
    for net in whole.test_net_param:
        own = worker.test_net_param.add()
        own.CopyFrom(net)
        for layer in own.layer:
            if layer.data_param.source:
                layer.data_param.source = str(solver.parent / layer.data_param.source)
    worker.test_iter.extend(whole.test_iter)
    worker.test_interval = 1
    return make_engine(
        EngineChoice("torch", "cpu", micro_batch=micro_batch),
        to_text(worker),
        lr_policy=spec.lr_policy,
        folder=solver.parent,
    )


@pytest.fixture(autouse=True)
def own_schema_only_here():  # type: ignore[no-untyped-def]
    from speedo.engines.schema import use_own_schema

    yield
    use_own_schema(False)


NETS = {
    "ssd": (ssd_net, 400),
    "faster-rcnn": (faster_rcnn_net, 200),
}


@pytest.mark.parametrize("name", ["ssd", pytest.param("faster-rcnn", marks=pytest.mark.matrix)])
def test_a_detector_finds_the_shapes(tmp_path: Path, name: str) -> None:
    net, steps = NETS[name]
    make_databases(tmp_path, train=300, test=40)
    engine = engine_of(write(tmp_path, net(), max_iter=steps))
    before = engine.evaluate()
    losses = []
    for start in range(0, steps, 50):
        engine.set_iteration(start)
        losses.append(engine.step(50))
    after = engine.evaluate()
    engine.close()
    assert list(after) == ["detection_eval"]
    assert before["detection_eval"] < 0.2
    assert losses[-1] < losses[0] / 2
    assert after["detection_eval"] > 0.6, (before, losses, after)


@pytest.mark.parametrize("normalization", ["VALID", "BATCH_SIZE", "FULL", "NONE"])
def test_ssd_in_parts_makes_the_step_of_the_whole_batch(tmp_path: Path, normalization: str) -> None:
    """Of 8 images in parts of 3, 3 and 2, with other numbers of matched boxes in each."""
    make_databases(tmp_path, train=24, test=1)
    net = ssd_net(batch=8, normalization=normalization, every_layer=True)
    gradients = []
    for part in ("", "3"):
        engine = engine_of(write(tmp_path, net, max_iter=20), micro_batch=part)
        gradient = engine.layout.zeros()
        losses = [engine.gradient(1, gradient) for _ in range(3)]
        gradients.append((gradient, losses))
        engine.close()
    (whole, expected), (parts, losses) = gradients
    assert np.abs(parts - whole).max() <= 1e-6 * np.abs(whole).max()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_what_counts_predicted_boxes_does_not_go_in_parts(tmp_path: Path) -> None:
    make_databases(tmp_path, train=24, test=1)
    net = ssd_net(batch=8).replace("use_prior_for_matching: true", "use_prior_for_matching: false")
    with pytest.raises(EngineError, match=r"'mbox_loss'.* does not follow from those of parts"):
        engine_of(write(tmp_path, net, max_iter=20), micro_batch="3")
    with pytest.raises(EngineError, match=r"'rpn-data'.* mixes the records of a batch"):
        engine_of(write(tmp_path, faster_rcnn_net(), max_iter=20), micro_batch="2")


# What docs/layers.md says is trained, resumed and scored (tests/whole_runs/test_detectors.py).
NAMED = {
    "ROIPooling", "PSROIPooling", "SmoothL1Loss", "Interp", "ConvolutionDepthwise", "Permute", "Normalize", "PriorBox",
    "MultiBoxLoss", "DetectionOutput", "Upsample", "ShuffleChannel", "ReLU6", "Axpy",
}  # fmt: skip


def test_the_two_nets_have_each_layer_that_public_prototxts_have() -> None:
    text = ssd_net(every_layer=True) + faster_rcnn_net(every_layer=True)
    assert set(re.findall(r'type: "(\w+)"', text)) >= NAMED
