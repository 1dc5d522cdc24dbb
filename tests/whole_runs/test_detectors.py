"""SSD and Faster R-CNN in two workers: trained, resumed, scored and drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.make import prepare_to_read
from speedo.engines.solver import SolverOverrides, read_solver
from speedo.engines.solver.data_layers import count_records
from speedo.engines.solver.division import obstacle_to_parts
from speedo.run.config.run_config import make_config
from speedo.run.prepare import PreparedRun, check_nets, run_settings, with_division
from speedo.storage.memory_store import MemoryStore
from tests.support.commands import Commands
from tests.support.detection import faster_rcnn_net, make_databases, solver_text, ssd_net
from tests.support.nets import relative_difference, write_solver
from tests.whole_runs.local import train_as

pytestmark = pytest.mark.torch


def said(speedo: Commands, *words: str) -> tuple[str, str]:
    process = speedo.start(*words)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out, errors


# Mode, steps, and the mean average precision that two workers reach in them.
TRAINED = {"ssd": ("async", 300, 0.5), "faster-rcnn": ("sync", 200, 0.5)}


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("kind", TRAINED)
def test_a_detector_trains_resumes_and_is_scored(
    kind: str, speedo: Commands, tmp_path: Path
) -> None:
    """With each layer of other Caffes that the engine has."""
    mode, steps, least = TRAINED[kind]
    make_databases(tmp_path, train=300, test=40)
    net = ssd_net if kind == "ssd" else faster_rcnn_net
    (tmp_path / "net.prototxt").write_text(net(every_layer=True))
    (tmp_path / "solver.prototxt").write_text(solver_text(steps, 100))
    run = tmp_path / "run"
    said(
        speedo, "train", "solver.prototxt", "--engine", "torch", "--device", "cpu", "--mode", mode, "--workers", "2",
        "--run-dir", "run", "--max-iter", str(steps // 2),
    )  # fmt: skip
    out, _ = said(speedo, "train", "--resume", "run", "--max-iter", str(steps))
    result = json.loads((run / "result.json").read_text())
    assert (result["iteration"], result["complete"]) == (steps, True)
    assert result["accuracy"] == result["metrics"]["detection_eval"] > least
    assert f"test mean average precision {result['accuracy']:.4f} after {steps}" in out
    for workers in ("1", "2"):
        scored = said(speedo, "test", "run", "--workers", workers, "--json")[0]
        assert json.loads(scored)["metrics"] == pytest.approx(result["metrics"], abs=1e-6)
    said(speedo, "report", "run")
    page = (run / "report.html").read_text()
    assert "Test mean average precision" in page
    assert f"{result['accuracy']:.4f}" in page


@pytest.fixture
def own_schema() -> Iterator[None]:
    prepare_to_read("torch")
    yield
    prepare_to_read("caffe")


@pytest.mark.processes
@pytest.mark.usefixtures("own_schema")
@pytest.mark.parametrize(
    ("normalization", "division"),
    [("BATCH_SIZE", "mean"), ("FULL", "mean"), ("NONE", "sum"), ("VALID", "none")],
)
def test_two_workers_make_the_step_of_one_or_say_that_they_do_not(
    tmp_path: Path, normalization: str, division: str
) -> None:
    make_databases(tmp_path, train=24, test=1)
    net = ssd_net(batch=8, normalization=normalization, mirror=False)
    solver = write_solver(
        tmp_path, net, test_iter=None, test_interval=None, base_lr=0.001, max_iter=4
    )
    ends, notes = [], list[str]()
    for workers in (1, 2):
        prepare_to_read("torch")  # `train_as` leaves it at pycaffe's
        config = make_config({"workers": workers, "engine": "torch", "run_dir": str(tmp_path)})
        spec = read_solver(solver, overrides=SolverOverrides(engine="torch"))
        settings = run_settings(config, spec, "here")
        run = PreparedRun(config, settings, tmp_path / "run", tmp_path, count_records(spec))
        if workers == 2:
            facts = check_nets(run, tmp_path)
            assert facts.division == division
            run = with_division(run, facts, notes.append)
        _, start, after = train_as(
            run.config, run.settings, MemoryStore(), tmp_path / str(workers), records=run.records
        )
        ends.append((start, after))
    (start, alone), (_, together) = ends
    if division == "none":
        assert "'mbox_loss' (MultiBoxLoss) divides by the matched boxes of its batch" in notes[0]
        assert run.settings.batch_sizes == (8, 8)
        assert run.config.data_share != "offset"
    else:
        assert run.settings.batch_sizes == (4, 4)
        assert relative_difference(together, alone, start) < 1e-5


@pytest.mark.usefixtures("own_schema")
def test_the_regions_of_faster_rcnn_are_drawn_from_whole_batches() -> None:
    net = parse_text(faster_rcnn_net(), caffe_schema().NetParameter())
    assert obstacle_to_parts(net) == (
        "layer 'rpn-data' (Python) draws what is trained from its batch"
    )


@pytest.mark.caffe
def test_pycaffe_refuses_ssd_in_one_sentence_that_offers_this_engine(
    speedo: Commands, tmp_path: Path
) -> None:
    (tmp_path / "net.prototxt").write_text(ssd_net())
    (tmp_path / "solver.prototxt").write_text(
        solver_text(20, 20).replace('eval_type: "detection" ap_version: "11point"\n', "")
    )
    process = speedo.start("train", "solver.prototxt", "--engine", "caffe")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "it is no field of BVLC's Caffe, but of SSD's Caffe: use --engine torch" in errors
    assert "Traceback" not in errors
