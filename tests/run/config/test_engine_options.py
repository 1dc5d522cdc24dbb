"""Which engine computes, on which device and how precisely: what may be said, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speedo.engines.make import EngineChoice, chosen_engine, is_installed
from speedo.errors import ConfigError
from speedo.run.config.run_config import make_config
from speedo.run.engine_choice import choice_of, decided_engine


def problems_of(call: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call()
    return list(caught.value.problems)


def quiet(line: str) -> None:
    raise AssertionError(line)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_a_device_is_a_kind_or_one_of_it(device: str) -> None:
    assert make_config({"engine": "torch", "device": device}).device == device


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"device": "gpu"}, "device is 'gpu'; use auto, cpu, cuda, or one of its devices as in cuda:0"),
        ({"device": "cuda:x"}, "device is 'cuda:x'; use auto, cpu, cuda, or one of its devices as in cuda:0"),
        ({"engine": "tf"}, "engine is 'tf'; use one of 'caffe' or 'torch'"),
        ({"precision": "half"}, "precision is 'half'; use one of 'float32' or 'bfloat16'"),
        ({"engine": "caffe", "device": "cuda:1"},
         ("device is cuda:1, but with the engine caffe the solver's solver_mode decides about GPUs; leave device out, "
          "or use --engine torch")),
        ({"engine": "caffe", "precision": "bfloat16"},
         "precision is bfloat16, but Caffe computes with float32 alone; leave precision out, or use --engine torch"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_refused(options: dict[str, Any], problem: str) -> None:
    assert problems_of(lambda: make_config(options)) == [problem]


@pytest.mark.caffe
def test_caffe_is_the_default_and_refuses_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEEDO_ENGINE", raising=False)
    assert decided_engine(make_config({}), quiet) == "caffe"
    assert decided_engine(make_config({"device": "cpu"}), quiet) == "caffe"
    found = problems_of(lambda: decided_engine(make_config({"device": "cuda"}), quiet))
    assert found[0].startswith("device is cuda, but with the engine caffe")


@pytest.mark.caffe
def test_the_environment_names_the_engine_and_an_option_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPEEDO_ENGINE", "torch")
    assert chosen_engine(None) == ("torch", "")
    assert chosen_engine("caffe") == ("caffe", "")
    monkeypatch.setenv("SPEEDO_ENGINE", "jax")
    with pytest.raises(ConfigError, match="SPEEDO_ENGINE is 'jax'; use one of 'caffe' or 'torch'"):
        chosen_engine(None)


@pytest.mark.torch
@pytest.mark.torch
def test_workers_have_the_precision_and_testers_and_the_master_float32() -> None:
    choice = choice_of(quiet, "torch", device="cpu", precision="bfloat16")
    assert choice.of_worker(3, 4) == EngineChoice("torch", "cpu", "bfloat16", sharing=4)
    assert choice.of_tester(0) == choice.on_cpu() == EngineChoice("torch", "cpu", "float32")


def test_a_run_resumed_with_the_other_engine_leaves_the_device_of_the_former(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("engine: torch\ndevice: cuda:1\nprecision: bfloat16\n")
    former = make_config({"resume": tmp_path})
    assert (former.engine, former.device, former.precision) == ("torch", "cuda:1", "bfloat16")
    other = make_config({"resume": tmp_path, "engine": "caffe"})
    assert (other.engine, other.device, other.precision) == ("caffe", "auto", "float32")


def test_a_run_on_the_cpu_stays_there_with_either_engine(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("engine: torch\ndevice: cpu\n")
    assert make_config({"resume": tmp_path, "engine": "torch"}).device == "cpu"
    assert make_config({"resume": tmp_path, "engine": "caffe"}).device == "cpu"


def test_a_folder_of_the_name_is_no_installed_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "caffe").mkdir()
    monkeypatch.delitem(sys.modules, "caffe", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not is_installed("caffe")
