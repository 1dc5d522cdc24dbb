"""What the doctor says of both engines, whichever the run needs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.study.doctor.base import fail, ok
from speedo.study.doctor.engines import NOT_INSTALLED, Torch, engines

CAFFE = ok("pycaffe", "1.0.0 at /there")
NO_CAFFE = fail("pycaffe", "it is not here", "build it")
CPU = Torch(ok("torch", "2.13.0+cpu, devices: cpu"))
GPUS = Torch(ok("torch", "2.13.0, devices: cpu, cuda:0 H100, cuda:1 H100"), 2)
BROKEN = Torch(fail("torch", "its import ends the process: SIGILL", "another"))


def levels(*arguments: object) -> list[str]:
    return [one.level for one in engines(*arguments)]  # type: ignore[arg-type]


def test_the_engine_that_is_not_needed_may_be_missing() -> None:
    caffe, torch, last = engines(CAFFE, NOT_INSTALLED, "caffe", "auto")
    assert (caffe, last.text) == (CAFFE, "caffe")
    assert (torch.level, torch.text) == (
        "ok", "PyTorch is not installed, and is not needed with the engine caffe",
    )  # fmt: skip
    caffe, torch, last = engines(NO_CAFFE, CPU, "torch", "auto")
    assert (caffe.level, torch, last.text) == ("ok", CPU.finding, "torch")
    assert levels(CAFFE, BROKEN, "caffe", "auto") == ["ok", "ok", "ok"]


def test_the_other_one_that_works_here_is_named() -> None:
    assert engines(CAFFE, CPU, "caffe", "auto")[2].text == "caffe; --engine torch works here, too"
    assert engines(CAFFE, CPU, "torch", "cpu")[2].text == "torch; --engine caffe works here, too"


def test_an_engine_that_is_needed_and_missing_fails_with_the_remedy() -> None:
    caffe, _, last = engines(NO_CAFFE, CPU, "caffe", "auto")
    assert caffe == NO_CAFFE
    assert (last.level, last.text) == ("warn", "caffe does not work here, but torch does")
    assert last.remedy.startswith("train with --engine torch")
    _, torch, last = engines(CAFFE, NOT_INSTALLED, "torch", "auto")
    assert (torch.level, torch.remedy) == ("fail", "install PyTorch: pip install 'speedo[torch]'")
    assert last.text == "torch does not work here, but caffe does"
    _, _, last = engines(NO_CAFFE, NOT_INSTALLED, "torch", "auto")
    assert (last.level, last.text) == ("warn", "none works here")
    assert "pip install 'speedo[torch]'" in last.remedy
    assert "make setup" in last.remedy


@pytest.mark.parametrize(
    ("found", "device", "level"),
    [(CPU, "auto", "ok"), (CPU, "cpu", "ok"), (CPU, "cuda", "fail"), (GPUS, "cuda", "ok"),
     (GPUS, "cuda:1", "ok"), (GPUS, "cuda:2", "fail")],
)  # fmt: skip
def test_a_device_that_the_run_wants_must_be_there(found: Torch, device: str, level: str) -> None:
    torch = engines(CAFFE, found, "torch", device)[1]
    assert torch.level == level
    assert (f"the run wants --device {device}" in torch.text) == (level == "fail")


@pytest.mark.torch
@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
def test_the_doctor_builds_the_net_with_the_engine_that_is_asked_for() -> None:
    told = CliRunner().invoke(main, ["doctor", "--engine", "torch", "--device", "cpu", "--json"])
    found = {one["name"]: one for one in json.loads(told.output)["checks"]}
    assert found["engine"]["text"].startswith("torch")
    assert "devices: cpu" in found["torch"]["text"]
    assert found["net"]["text"].startswith("431,080 parameters in 8 blobs")
