"""SSD and Faster R-CNN in two workers: trained, resumed, scored and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.detection import faster_rcnn_net, make_databases, solver_text, ssd_net

pytestmark = pytest.mark.torch


def said(speedo: Commands, *words: str) -> tuple[str, str]:
    process = speedo.start(*words)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out, errors


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["ssd", "faster-rcnn"])
def test_a_detector_trains_resumes_and_is_scored(
    kind: str, speedo: Commands, tmp_path: Path
) -> None:
    make_databases(tmp_path, train=60, test=8)
    (tmp_path / "net.prototxt").write_text(
        ssd_net(batch=8, test_batch=4) if kind == "ssd" else faster_rcnn_net()
    )
    (tmp_path / "solver.prototxt").write_text(solver_text(20, 20))
    run = tmp_path / "run"
    said(
        speedo, "train", "solver.prototxt", "--engine", "torch", "--device", "cpu", "--mode", "async", "--workers", "2",
        "--run-dir", "run",
    )  # fmt: skip
    out, _ = said(speedo, "train", "--resume", "run", "--max-iter", "30")
    result = json.loads((run / "result.json").read_text())
    assert (result["iteration"], result["complete"]) == (30, True)
    named = "detection_eval" if kind == "ssd" else "loss_bbox"
    assert (f"detection_eval {result['metrics'][named]:.4f} after 30" in out) == (kind == "ssd")
    for workers in ("1", "2"):
        scored = json.loads(said(speedo, "test", "run", "--workers", workers, "--json")[0])[
            "metrics"
        ]
        if kind == "ssd":  # the tops of Faster R-CNN's test are of regions that it draws
            assert scored[named] == pytest.approx(result["metrics"][named], abs=1e-6)
        assert set(scored) == set(result["metrics"])
    said(speedo, "report", "run")
    assert "Test accuracy" in (run / "report.html").read_text()


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
